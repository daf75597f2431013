//! Times of ops, layers and steps of a running model: what each is a sum of.

#![cfg(feature = "cpu")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use engraft::{GenerateOptions, ModelSource, Options, TextGenerator};

/// Of a step's time what its ops take at least, in the best of several: the rest is the host's way from op to
/// op.
const COVERED: f64 = 0.75;
const STEPS: usize = 24;

fn generate(model: &TextGenerator, tokens: usize) {
    let options = GenerateOptions::new().max_new_tokens(tokens).ignore_end(true).greedy();
    model.generate("This package provides a library", &options).unwrap().text().unwrap();
}

#[test]
fn ops_add_up_to_layers_and_layers_to_steps() {
    let model = Options::new().threads(1).open(ModelSource::Demo).unwrap();
    let handle = model.handle();
    handle.set_profiling(true).unwrap();
    let mut covered = 0f64;
    for _ in 0..STEPS {
        // One step: the prompt, which gives the only token.
        generate(&model, 1);
        let profile = handle.take_profile().unwrap();
        assert_eq!(profile.steps_ms().len(), 1);
        let spans: f64 = profile.spans.iter().map(|span| span.us).sum();
        let ops: f64 = profile.by_op().iter().map(|(_, us, _)| us).sum();
        let layers: f64 = profile.by_layer().iter().map(|(_, us)| us).sum();
        let step = profile.steps_ms()[0] * 1e3;
        // The same spans, added in other orders.
        assert!((ops - spans).abs() <= 1e-9 * spans && (layers - spans).abs() <= 1e-9 * spans);
        let calls: usize = profile.by_op().iter().map(|(.., calls)| calls).sum();
        assert_eq!(calls, profile.spans.len());
        // Every layer, and what stands before and behind them.
        let numbers: Vec<Option<usize>> = profile.by_layer().iter().map(|(layer, _)| *layer).collect();
        assert_eq!(
            numbers,
            std::iter::once(None).chain((0..model.info().layers).map(Some)).collect::<Vec<_>>()
        );
        // Ops run one after the other, inside of the step.
        assert!(spans > 0.0 && spans <= step * (1.0 + 1e-9), "{spans} us of ops in a step of {step} us");
        for pair in profile.spans.windows(2) {
            assert!(pair[0].start_us + pair[0].us <= pair[1].start_us + 1e-3, "{pair:?}");
        }
        covered = covered.max(spans / step);
    }
    assert!(covered >= COVERED, "ops take {covered:.2} of a step's time");
}

#[test]
fn times_are_taken_once_and_only_where_they_are_measured() {
    let model = engraft::demo().unwrap();
    let handle = model.handle();
    let text = handle.model_times().unwrap_err().to_string();
    assert!(text.contains("profiling") && text.contains("set_profiling"), "{text}");
    handle.set_profiling(true).unwrap();
    generate(&model, 5);
    let times = handle.model_times().unwrap();
    assert!(times.len() == 5 && times.iter().all(|ms| *ms > 0.0), "{times:?}");
    assert!(handle.model_times().unwrap().is_empty());
    generate(&model, 2);
    let two = handle.take_profile().unwrap();
    assert_eq!(two.steps_ms().len(), 2);
    // Spans of both steps, one behind the other: together they take as long as the steps.
    let total: f64 = two.steps_ms().iter().sum();
    assert!(
        (two.total_us() / 1e3 - total).abs() <= 1e-6 * total.max(1.0),
        "{} us, {total} ms",
        two.total_us()
    );
    handle.set_profiling(false).unwrap();
    generate(&model, 1);
    assert!(handle.take_profile().is_err());
}
