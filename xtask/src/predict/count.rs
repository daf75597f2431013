//! What a launch does, counted on sampled blocks.
//!
//! Blocks that do alike are run once and counted as often as there are of them; along an axis where work
//! grows evenly the first and the last four blocks stand for all ([`Axis`](super::step::Axis)).

use super::operands::{Arena, Operand, Outcome};
use super::pipes::{Pipes, pipes};
use super::step::Item;
use engraft_kernels::params::Elem;
use ptx_vm::memory::Traffic;
use ptx_vm::tensor::{DataType, Swizzle, TensorMap};
use ptx_vm::{Instance, Module, Options, Report};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What all blocks of a launch do.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Counts {
    /// Work of all blocks.
    pub pipes: Pipes,
    /// The same of the block with the most slots.
    pub largest: Pipes,
    /// Most instructions of a warp.
    pub longest_warp: f64,
    /// Warps of a block that do anything.
    pub warps: f64,
    /// Blocks that do anything beyond finding that there is nothing to do.
    pub busy: f64,
    /// Bytes between SMs and the L2 cache.
    pub l2_bytes: f64,
    /// Bytes between the L2 cache and device memory, each once.
    pub dram_bytes: f64,
}

/// The machine with the modules that it has parsed.
#[derive(Default)]
pub struct Machine {
    modules: BTreeMap<String, Arc<Module>>,
}

/// Compute capability of the device that is predicted.
const CAPABILITY: (i32, i32) = (9, 0);
/// Instructions of a warp that finds nothing to do, at most; it writes nothing.
const IDLE: u64 = 120;

/// All checks off, everything counted.
fn options() -> Options {
    Options {
        shared_races: false,
        global_races: false,
        uninitialised: false,
        count_traffic: true,
        count_lines: true,
        ..Options::default()
    }
}

impl Machine {
    /// The module of one entry alone: what is shared by all, and the entry.
    fn module(&mut self, stem: &str, entry: &str) -> Outcome<Arc<Module>> {
        if let Some(module) = self.modules.get(entry) {
            return Ok(module.clone());
        }
        let source = engraft_kernels::module(stem, CAPABILITY).ok_or_else(|| format!("no kernels {stem}"))?;
        let text = source.ptx().map_err(|e| e.to_string())?;
        let text = engraft_kernels::single(text, entry).ok_or_else(|| format!("no kernel {entry}"))?;
        let module = Arc::new(Module::parse(&text).map_err(|e| e.to_string())?);
        self.modules.insert(entry.into(), module.clone());
        Ok(module)
    }

    /// Runs these blocks of a launch, or all.
    fn run(&mut self, item: &Item, arena: &mut Arena, blocks: Option<&[u32]>) -> Outcome<Report> {
        let module = self.module(item.launch.stem(), &item.launch.entry)?;
        let instance = Instance::load(module, &mut arena.memory, 0).map_err(|e| e.to_string())?;
        let mut params = item.params.clone();
        for (i, map) in item.maps.iter().enumerate() {
            let ty = if map.elem == Elem::F16 { DataType::F16 } else { DataType::Bf16 };
            let made = TensorMap {
                swizzle: if map.swizzled { Swizzle::Bytes128 } else { Swizzle::None },
                ..TensorMap::tiled(ty, map.address, &map.dims, &map.strides, &map.box_dims)
            };
            let made = made.encode().map_err(|e| e.to_string())?;
            let place = i * made.len()..(i + 1) * made.len();
            params.get_mut(place).ok_or("parameters without room for a map")?.copy_from_slice(&made);
        }
        let mut job = ptx_vm::Launch::new(item.launch.grid, item.launch.block).with_params(params);
        job.dynamic_shared = item.launch.shared_bytes;
        job.cluster[0] = item.cluster;
        let (entry, options) = (&item.launch.entry, options());
        let ran = match blocks {
            None => ptx_vm::launch(&instance, entry, &job, &mut arena.memory, &options),
            Some(blocks) => {
                ptx_vm::launch_blocks(&instance, entry, &job, blocks, &mut arena.memory, &options)
            }
        };
        instance.unload(&mut arena.memory).map_err(|e| e.to_string())?;
        ran.map_err(|fault| fault.to_string())
    }

    /// What a launch does, by its sampled blocks.
    ///
    /// # Errors
    /// A fault of the machine: the parameters do not fit the kernel.
    pub fn count(&mut self, item: &Item, arena: &mut Arena) -> Outcome<Counts> {
        let [across, down, _] = item.launch.grid;
        let across = across / item.cluster;
        let [xs, ys, zs] = item.axes.each_ref().map(|axis| axis.sampled());
        let mut tally = Tally::new(item, arena);
        for (z, z_times) in &zs {
            for (y, y_times) in &ys {
                for (x, x_times) in &xs {
                    arena.memory.clear_traffic();
                    let block = x + across * (y + down * z);
                    let report = self.run(item, arena, Some(&[block]))?;
                    tally.add(&report, x_times * y_times * z_times, arena);
                }
            }
        }
        Ok(tally.counts())
    }

    /// What a launch does, all its blocks run: what [`Machine::count`] is held to.
    ///
    /// # Errors
    /// As [`Machine::count`].
    #[cfg(test)]
    pub fn count_all(&mut self, item: &Item, arena: &mut Arena) -> Outcome<(Pipes, f64)> {
        let report = self.run(item, arena, None)?;
        Ok((pipes(&report.lines), moved(report.traffic)))
    }
}

fn moved(traffic: Traffic) -> f64 {
    (traffic.read.transferred + traffic.written.transferred) as f64
}

/// Sums over sampled blocks.
struct Tally {
    counts: Counts,
    /// Cold operands with the bytes that all blocks ask for.
    cold: Vec<(Operand, f64)>,
    threads: u32,
}

impl Tally {
    fn new(item: &Item, arena: &Arena) -> Self {
        let cold = arena.operands.iter().filter(|o| o.cold).map(|o| (*o, 0.0)).collect();
        Self { counts: Counts::default(), cold, threads: item.launch.block.iter().product() }
    }

    fn add(&mut self, report: &Report, times: f64, arena: &Arena) {
        let (c, own) = (&mut self.counts, pipes(&report.lines));
        c.pipes.add(&own, times);
        if own.slots > c.largest.slots {
            c.largest = own;
        }
        c.longest_warp = c.longest_warp.max(report.longest_warp as f64);
        c.warps = f64::from(self.threads.div_ceil(32));
        if report.longest_warp > IDLE || report.traffic.written.requested > 0 {
            c.busy += times;
        }
        c.l2_bytes += times * moved(report.traffic);
        for (operand, bytes) in &mut self.cold {
            *bytes += times * moved(arena.memory.traffic(operand.address, operand.bytes));
        }
    }

    fn counts(mut self) -> Counts {
        self.counts.dram_bytes =
            self.cold.iter().map(|(operand, bytes)| bytes.min(operand.live as f64)).sum();
        self.counts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::predict::llama::launches;
    use crate::predict::mixture::{self, Latent, MIXTURES, Mixture};
    use crate::predict::step::{Axis, SHAPES, Shape, Step, Weights};

    /// Every launch of a step: by its sampled blocks, and by all.
    fn held(step: Step, of: Option<&Mixture>) {
        let (mut machine, mut arena) = (Machine::default(), Arena::new(1 << 30));
        let items = match of {
            Some(of) => mixture::launches(Step { shape: of.shape, ..step }, of, &mut arena),
            None => launches(step, &mut arena),
        };
        // Alone, a rank would wait for the others for ever.
        for item in items.unwrap().into_iter().filter(|item| item.exchange.is_none()) {
            let sampled = machine.count(&item, &mut arena).unwrap();
            let (whole, bytes) = machine.count_all(&item, &mut arena).unwrap();
            let blocks: u32 = item.launch.grid.iter().product();
            let runs: usize = item.axes.iter().map(|axis| axis.sampled().len()).product();
            assert!(runs <= blocks as usize, "{}: {runs} of {blocks} blocks", item.role);
            let grows = matches!(item.axes[0], Axis::Grows(_));
            for (what, got, want) in [
                ("slots", sampled.pipes.slots, whole.slots),
                ("wavefronts", sampled.pipes.wavefronts, whole.wavefronts),
                ("special", sampled.pipes.special, whole.special),
                ("mma", sampled.pipes.mma, whole.mma),
                ("wgmma", sampled.pipes.wgmma, whole.wgmma),
                ("copies", sampled.pipes.copies, whole.copies),
                ("bytes", sampled.l2_bytes, bytes),
            ] {
                let most = match what {
                    // What is masked in the last chunk of keys does not lie on a straight line.
                    _ if grows => 0.01 * want,
                    // Rows of quantized tables and parts of rows begin anywhere in a sector.
                    "bytes" => 0.05 * want,
                    _ => 0.0,
                };
                assert!((got - want).abs() <= most, "{} {what}: {got} sampled, {want} in all", item.role);
            }
        }
    }

    #[test]
    fn sampled_blocks_count_what_all_blocks_do() {
        let shape = *SHAPES.iter().find(|shape| shape.name == "narrow").unwrap();
        let decode = Step {
            shape,
            weights: Weights::Bf16,
            fast: false,
            seqs: 5,
            queries: 1,
            context: 600,
            max_keys: 1100,
            table_edits: 5,
            wanted: 5,
            ranks: 1,
        };
        let prompt =
            Step { seqs: 1, queries: 256, context: 512, max_keys: 512, table_edits: 0, wanted: 1, ..decode };
        let all = [
            decode,
            Step { seqs: 35, weights: Weights::Int8, ..decode },
            Step { seqs: 67, context: 200, ..decode },
            prompt,
            Step { fast: true, ..prompt },
            Step { weights: Weights::Int4, ..prompt },
            Step { ranks: 2, ..decode },
        ];
        // A step of either half by `ENGRAFT_SEED`; all of them take minutes.
        let seed = std::env::var("ENGRAFT_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(0usize);
        let (full, half) = (std::env::var_os("ENGRAFT_FULL").is_some(), all.len() / 2);
        let taken = |i: &usize| full || i % half == seed % half;
        (0..all.len()).filter(taken).for_each(|i| held(all[i], None));
    }

    /// Small models with what both published shapes have: experts of different numbers of slots, windows,
    /// latent rows with two matmuls of queries.
    #[test]
    fn sampled_blocks_of_experts_count_what_all_blocks_do() {
        let small = |of: Mixture| {
            let shape = Shape { hidden: 256, layers: 3, heads: 8, vocab: 512, ..of.shape };
            let kv_heads = if of.latent.is_some() { 1 } else { 2 };
            let latent = Latent { rank: 160, rotated: 32, plain: 64, value: 64, query_rank: Some(96) };
            Mixture {
                shape: Shape { kv_heads, inner: 320, ..shape },
                latent: of.latent.map(|_| latent),
                experts: 12,
                top_k: 3,
                inner: 96,
                shared: of.shared.min(192),
                ..of
            }
        };
        let step = |seqs: usize, context: usize| Step {
            shape: MIXTURES[0].shape,
            weights: Weights::Bf16,
            fast: false,
            seqs,
            queries: 1,
            context,
            max_keys: 1100,
            table_edits: seqs,
            wanted: seqs,
            ranks: 1,
        };
        for of in MIXTURES {
            for step in sample::some([step(3, 600), step(35, 70), step(70, 300)]) {
                held(step, Some(&small(of)));
            }
        }
    }
}
