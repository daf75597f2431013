//! `Wgpu`: what all streams of a device share. Opening one, and the backend contract, lie in `open`, above
//! the streams.

use crate::adapter::Listed;
use crate::arithmetic::{Arithmetic, Sums};
use crate::config::WgpuConfig;
use crate::device::{Counters, Gpu, Uploads};
use crate::encoding::{self, Encoding, Loss};
use crate::limits::{Limits, Way};
use crate::outcome::Probe;
use crate::pipelines::Pipelines;
use crate::scores::{FixedWords, OfHeads, ScoreBuffers};
use crate::select::Select;
use crate::{WgpuMem, WgpuWeight};
use engraft_core::Result;
use engraft_core::backend::Caps;
use engraft_core::mem::{Device, Float, KvFormat, KvLayout, StepShape};
use engraft_core::numerics::Mode;
use engraft_shaders::{Kernel, KvElem};
use std::sync::{Mutex, MutexGuard};

/// A GPU (or a driver that plays one) as a backend.
#[derive(Debug)]
pub struct Wgpu {
    listed: Listed,
    pub(crate) caps: Caps,
    arithmetic: Arithmetic,
    pub(crate) probes: Vec<Probe>,
    pub(crate) select: Select,
    pub(crate) pipelines: Pipelines,
    pub(crate) scores: ScoreBuffers,
    pub(crate) fixed: FixedWords,
    pub(crate) of_heads: OfHeads,
    pub(crate) encoding: Mutex<Encoding>,
    nothing: WgpuMem,
    pub(crate) gpu: Gpu,
}

/// Bounds of the steps that an attention schedule serves; grids follow the step's own sizes.
#[derive(Debug, Clone, Copy)]
pub struct WgpuPlan {
    pub(crate) bound: StepShape,
}

impl Device for Wgpu {
    type Mem = WgpuMem;
    type Weight = WgpuWeight;
    type AttnPlan = WgpuPlan;

    fn kv_bytes(layout: &KvLayout) -> (usize, usize) {
        let heads = layout.slots() * layout.kv_heads;
        let bytes = |width| match layout.format {
            KvFormat::Plain(_) => layout.format.head_bytes(width),
            KvFormat::Coded(_) => 4 * KvElem::coded_words(width),
        };
        (heads * bytes(layout.k_dim), heads * bytes(layout.v_dim))
    }
}

impl Wgpu {
    /// The state of a device whose driver was not looked at yet.
    pub(crate) fn on(gpu: Gpu, listed: Listed, select: Select, pipelines: Pipelines) -> Result<Self> {
        let caps = Caps {
            device: format!("{} ({}, {})", listed.name, listed.api, listed.driver),
            dtypes: vec![Float::F32, Float::F16, Float::Bf16],
            kv_formats: KvFormat::ALL.to_vec(),
            graphs: true,
            asynchronous: true,
            memory_bytes: None,
            slab_bytes: None,
        };
        Ok(Self {
            listed,
            caps,
            arithmetic: Arithmetic::default(),
            probes: Vec::new(),
            select,
            encoding: Mutex::new(Encoding::new(&gpu, &pipelines)?),
            pipelines,
            scores: ScoreBuffers::default(),
            fixed: FixedWords::default(),
            of_heads: OfHeads::default(),
            nothing: gpu.alloc("nothing", 16)?,
            gpu,
        })
    }

    /// The same once it was: what the driver cannot do after all is taken back, halves by their own type that
    /// are `inexact`, subgroups that are `unusable`.
    ///
    /// # Errors
    /// `Unsupported` when the configuration named subgroups.
    pub(crate) fn probed(
        mut self,
        config: &WgpuConfig,
        arithmetic: Arithmetic,
        inexact: Option<String>,
        unusable: Option<String>,
    ) -> Result<Self> {
        self.arithmetic = arithmetic;
        if !arithmetic.order && self.pipelines.dialect.strict {
            let device = &self.caps.device;
            tracing::warn!("{device} contracts or reassociates sums: bits may depend on the batch");
        }
        // The probe's own buffers are large.
        let limits = &mut self.gpu.limits;
        limits.binding = limits.binding.min(config.binding_bytes.unwrap_or(u64::MAX));
        // Kernels bind a layer's slab whole.
        self.caps.slab_bytes = Some(limits.binding.min(limits.buffer));
        self.encoding().limit(config.submit_groups);
        if let Some(reason) = inexact {
            self.select.unpack_by_hand(&reason);
            self.pipelines = self.pipelines.by_hand();
        }
        if let Some(reason) = unusable {
            self.select = self.select.without_subgroups(config, &self.gpu.name, &reason)?;
        }
        // Kernels without guards have other bits than their twins, and are no worse for it.
        self.pipelines.by_bits = self.promise() != Mode::Fast;
        Ok(self)
    }

    /// How kernels of this device sum, chosen by `select`.
    fn sums(&self, select: &Select, guarded: bool) -> Sums {
        let compared = self.pipelines.tries_rows || self.listed.is_tested();
        Sums { leaves: select.keeps_order(), guarded, compared }
    }

    /// What is promised about bits.
    pub(crate) fn promise(&self) -> Mode {
        self.arithmetic.promise(self.sums(&self.select, self.pipelines.dialect.strict))
    }

    /// The kernel that runs in the place of `kernel`: the same, unless it did not give its twin's bits.
    ///
    /// # Errors
    /// As [`Pipelines::get`].
    pub(crate) fn runs(&self, kernel: Kernel) -> Result<Kernel> {
        Ok(self.pipelines.get(&self.gpu, kernel)?.kernel)
    }

    /// The adapter.
    pub fn adapter(&self) -> &Listed {
        &self.listed
    }

    /// What the probe found out when the device was opened.
    pub fn arithmetic(&self) -> &Arithmetic {
        &self.arithmetic
    }

    /// What every probe found when the device was opened, by name.
    pub fn probes(&self) -> &[Probe] {
        &self.probes
    }

    /// For every promise why this adapter does not keep it, opened for that mode; none where it does.
    pub fn withheld(&self) -> [(Mode, Option<String>); 3] {
        [Mode::Reference, Mode::Invariant, Mode::Fast].map(|mode| {
            let config = WgpuConfig { mode, ..WgpuConfig::default() };
            let why = match Select::offered(&config, &self.listed) {
                Ok(select) => self.arithmetic.withheld(mode, self.sums(&select, mode != Mode::Fast)),
                Err(e) => Some(e.to_string()),
            };
            (mode, why)
        })
    }

    /// Kernels that are not used on this adapter because they did not give the bits of plainer ones (those
    /// that exchange through workgroup memory, or take one row), and what was found: by their labels, as far
    /// as they were asked for.
    pub fn replaced_kernels(&self) -> Vec<(String, String)> {
        self.pipelines.replaced().into_iter().map(|(kernel, why)| (kernel.label(), why)).collect()
    }

    /// Whether times of its streams are the device's own; the host's behind a wait else.
    pub fn has_clock(&self) -> bool {
        self.gpu.clock != Way::Nowhere
    }

    /// What the device's streams have done so far.
    pub fn counters(&self) -> Counters {
        self.gpu.tally.so_far()
    }

    /// For tests: the command buffer that is handed over behind `others` more is dropped without an error, as
    /// a driver's watchdog drops one that takes too long.
    #[doc(hidden)]
    pub fn lose_command_buffer(&self, others: u64) {
        self.encoding().lose(others, Loss::Dropped);
    }

    /// For tests: the device is lost when the command buffer is handed over behind `others` more.
    #[doc(hidden)]
    pub fn lose_device(&self, others: u64) {
        self.encoding().lose(others, Loss::Device);
    }

    /// For tests: what is uploaded behind `others` more uploads is not written.
    #[cfg(test)]
    pub(crate) fn lose_upload(&self, others: u64) {
        self.encoding().lose(others, Loss::Upload);
    }

    /// For tests: the pass that begins behind `others` more runs nothing.
    #[cfg(test)]
    pub(crate) fn lose_pass(&self, others: u64) {
        self.encoding().lose(others, Loss::Pass);
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.gpu.limits
    }

    /// Zeros, bound where an operand is absent.
    pub(crate) fn nothing(&self) -> &WgpuMem {
        &self.nothing
    }

    /// What writes to buffers so that the host sees it where a write was given up.
    pub(crate) fn uploads(&self) -> &dyn Uploads {
        &self.encoding
    }

    /// The open command buffer.
    pub(crate) fn encoding(&self) -> MutexGuard<'_, Encoding> {
        encoding::lock(&self.encoding)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where columns are whole words a slab is as large as plans say, else by less than a word a row larger.
    #[test]
    fn slabs_of_codes_have_rows_of_whole_words() {
        for format in KvFormat::ALL {
            for (k_dim, v_dim) in [(64, 128), (7, 2), (576, 0)] {
                let layout = KvLayout { pages: 5, page_size: 3, kv_heads: 2, k_dim, v_dim, format };
                let rows = 5 * 3 * 2;
                let of = |width: usize| match format.float() {
                    Some(dtype) => rows * width * dtype.bytes(),
                    None if width == 0 => 0,
                    None => rows * (width.next_multiple_of(4) + 4),
                };
                assert_eq!(Wgpu::kv_bytes(&layout), (of(k_dim), of(v_dim)), "{layout:?}");
            }
        }
    }
}
