//! Tokens per step as Prometheus reads a histogram: the engine counts them, whether anybody looks or not.

use engraft::engraft_core::engine::StepTokens;
use prometheus::Opts;
use prometheus::core::{Collector, Desc, Describer};
use prometheus::proto::{Bucket, Histogram, Metric, MetricFamily, MetricType};
use std::sync::{Arc, Mutex, PoisonError};

/// The histogram; clones share it.
#[derive(Debug, Clone)]
pub struct Iterations {
    desc: Desc,
    all: Arc<Mutex<StepTokens>>,
}

impl Iterations {
    /// Of no step yet.
    ///
    /// # Errors
    /// For names that Prometheus does not allow.
    pub fn new(opts: &Opts) -> prometheus::Result<Self> {
        Ok(Self { desc: opts.describe()?, all: Arc::default() })
    }

    /// Steps that came.
    pub fn add(&self, more: &StepTokens) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        *all = all.and(more);
    }
}

impl Collector for Iterations {
    fn desc(&self) -> Vec<&Desc> {
        vec![&self.desc]
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let all = *self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = |(bound, steps): (u64, u64)| {
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound as f64);
            bucket.set_cumulative_count(steps);
            bucket
        };
        let mut histogram = Histogram::default();
        histogram.set_sample_count(all.steps());
        histogram.set_sample_sum(all.tokens() as f64);
        histogram.set_bucket(all.up_to().map(bucket).collect());
        let mut metric = Metric::from_label(self.desc.const_label_pairs.clone());
        metric.set_histogram(histogram);
        let mut family = MetricFamily::default();
        family.set_name(self.desc.fq_name.clone());
        family.set_help(self.desc.help.clone());
        family.set_field_type(MetricType::HISTOGRAM);
        family.set_metric(vec![metric]);
        vec![family]
    }
}
