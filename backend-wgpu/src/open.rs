//! Opening a device, and the backend contract on top of everything else.

use crate::adapter;
use crate::cache::Cache;
use crate::config::WgpuConfig;
use crate::device::{Gpu, carrier};
use crate::kernel::WgpuKernel;
use crate::outcome::Probe;
use crate::pipelines::Pipelines;
use crate::select::{Select, composed};
use crate::{Wgpu, WgpuGraph, WgpuMem, WgpuPlan, WgpuStream, WgpuWeight, limits, probe, wanted, weight};
use engraft_core::backend::{Backend, Board, Caps, Communicator, Coverage, HostGroup, block_on};
use engraft_core::mem::{HostWeight, StepShape};
use engraft_core::numerics::{Madd, Mode, Numerics};
use engraft_core::ops::Signature;
use engraft_core::{Error, Result};
use engraft_shaders::{Dialect, Kernel};
use std::sync::{Arc, PoisonError};

impl Wgpu {
    /// Opens an adapter, compiles the probe and finds out what the driver does to arithmetic.
    ///
    /// # Errors
    /// `Unsupported` when no adapter fits the name, or when it is too small (names the limit).
    pub fn new(config: WgpuConfig) -> Result<Arc<Self>> {
        block_on(Self::open(config))
    }

    /// The same where waiting has to be awaited: in the browser.
    ///
    /// # Errors
    /// As [`Wgpu::new`].
    pub async fn open(config: WgpuConfig) -> Result<Arc<Self>> {
        let (adapter, listed) = adapter::choose(&config).await?;
        let have = adapter.limits();
        limits::check(&listed.name, &have)?;
        let carrier = carrier(&adapter, &have, config.uniform_parameters);
        let select = Select::offered(&config, &listed)?;
        let strict = config.mode != Mode::Fast;
        let dialect = Dialect { carrier, f16: select.f16(), dot: select.dot(), strict };
        let cached = config.kernel_cache.is_some();
        let gpu = Gpu::open(&adapter, &listed, dialect, (select.subgroups(), cached)).await?;
        let cache = match &config.kernel_cache {
            Some(folder) => Cache::open(&gpu, &adapter.get_info(), folder)?,
            None => None,
        };
        // Pages cannot wait for a comparison, and would have no matmul of several rows.
        let tries_rows = !adapter::IN_BROWSER && !listed.is_tested();
        let pipelines = Pipelines::new(dialect, cache, tries_rows);
        let gpu = Arc::new(Self::on(gpu, listed, select, pipelines)?);
        let (arithmetic, mut probes) = probe::run(&gpu).await?;
        let (probed, unusable) = match gpu.select.subgroups() {
            true => {
                let (size, unusable) = probe::subgroups(&gpu).await?;
                (Probe::of("subgroups", unusable.as_deref(), &format!("full, {size} wide")), unusable)
            }
            false => (Probe::not_run("subgroups", gpu.select.why_no_subgroups()), None),
        };
        probes.push(probed);
        let (probed, inexact) = match gpu.select.f16() {
            true => {
                let inexact = probe::halves(&gpu).await?;
                (Probe::of("f16", inexact.as_deref(), "every half comes back"), inexact)
            }
            false => (Probe::not_run("f16", gpu.select.why_no_f16()), None),
        };
        probes.push(probed);
        probes.push(gpu.contraction()?);
        let mut gpu = Arc::try_unwrap(gpu).map_err(|_| Error::internal("the probe kept the device"))?;
        gpu.probes = probes;
        Ok(Arc::new(gpu.probed(&config, arithmetic, inexact, unusable)?))
    }
}

impl Wgpu {
    /// Whether the driver is asked to contract nothing, which the probe's own kernel shows for all.
    pub(crate) fn contraction(&self) -> Result<Probe> {
        let exact = match &self.gpu.exact {
            Err(why) => return Ok(Probe::not_run("contraction", why)),
            Ok(exact) => exact,
        };
        let refused = self.gpu.unmarked.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let failed = match refused.first() {
            Some((label, why)) => {
                let count = refused.len();
                Some(format!("the driver refuses {count} of the marked shaders, such as {label}: {why}"))
            }
            None if self.pipelines.get(&self.gpu, Kernel::Probe)?.exact => None,
            None => Some("the driver could be asked, but the shaders cannot be written for it".into()),
        };
        let found = format!("multiplications and additions are marked NoContraction; {}", exact.asked());
        Ok(Probe::of("contraction", failed.as_deref(), &found))
    }

    /// Tries a kernel of every class that has a plainer twin: whether both give the same bits on this
    /// adapter. A model's own kernels are tried when they are compiled. One that the driver does not take has
    /// failed, too.
    ///
    /// # Errors
    /// `DeviceLost`.
    pub fn probe_kernels(&self) -> Result<Probe> {
        let all = wanted::classes(&self.select, self.pipelines.compares_rows());
        if all.is_empty() {
            return Ok(Probe::not_run("kernels", "no kernel that is used here has a plainer twin"));
        }
        let refused = self.pipelines.ready(&self.gpu, &all)?;
        let refused = refused.into_iter().map(|(kernel, e)| (kernel.label(), format!("refused: {e}")));
        let wrong: Vec<String> = self
            .replaced_kernels()
            .into_iter()
            .chain(refused)
            .map(|(label, why)| format!("{label}: {why}"))
            .collect();
        let failed = (!wrong.is_empty()).then(|| wrong.join("; "));
        let found = match self.pipelines.by_bits {
            true => format!("{} give the bits of plainer ones", all.len()),
            false => format!("{} are near plainer ones", all.len()),
        };
        Ok(Probe::of("kernels", failed.as_deref(), &found))
    }
}

impl Backend for Wgpu {
    type Device = Wgpu;
    type Kernel = WgpuKernel;
    type Graph = WgpuGraph;
    type Stream = WgpuStream;

    fn name(&self) -> &str {
        &self.gpu.name
    }
    fn caps(&self) -> &Caps {
        &self.caps
    }
    fn numerics(&self) -> Numerics {
        Numerics { mode: self.promise(), madd: Madd::Separate }
    }
    fn alloc(&self, bytes: usize) -> Result<WgpuMem> {
        self.gpu.alloc("a buffer", bytes)
    }
    fn stream(self: &Arc<Self>) -> Result<WgpuStream> {
        Ok(WgpuStream::new(self.clone()))
    }
    fn group(self: &Arc<Self>, board: Box<dyn Board>) -> Result<Box<dyn Communicator<Self>>> {
        Ok(Box::new(HostGroup::new(board)))
    }
    fn prepare_weight(&self, weight: HostWeight<'_>, _uses: &[Signature]) -> Result<WgpuWeight> {
        weight::prepare((&self.gpu, self.uploads()), weight)
    }
    fn attention_plan(&self, bound: StepShape) -> Result<WgpuPlan> {
        Ok(WgpuPlan { bound })
    }
    fn coverage(&self, signature: &Signature) -> Coverage<WgpuKernel> {
        if let Some(reason) = composed(signature.op) {
            return Coverage::Composed(reason.into());
        }
        match self.select.kernel(signature) {
            Ok(kernel) => Coverage::Native(kernel),
            Err(reason) => Coverage::Missing(reason),
        }
    }
    fn ready(&self, kernels: &[WgpuKernel]) -> Result<()> {
        let staged = self.counters().staged.div_ceil(limits::MIB);
        tracing::info!(
            "{}: weights took at most {staged} MiB of the host's memory on their way",
            self.gpu.name
        );
        let of = |kernel| wanted::shaders(kernel, &self.select);
        let refused = self.pipelines.ready(&self.gpu, &wanted::each_once(kernels.iter().flat_map(of)))?;
        let lost = kernels.iter().find_map(|kernel| wanted::lost(kernel.op, &of(kernel), &refused));
        for (kernel, e) in refused {
            if lost == Some(kernel) {
                return Err(e);
            }
            tracing::warn!("{}: {e}; a model that needs {} fails there", self.gpu.name, kernel.label());
        }
        Ok(())
    }
}
