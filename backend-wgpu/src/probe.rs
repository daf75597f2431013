//! What a driver does to arithmetic, found out when a device is opened.
//!
//! WGSL promises correctly rounded sums and products only, and lets a compiler reassociate. The kernels guard
//! against the latter, and correct the driver's division and square root; here it is checked that the guards
//! hold, and whether those two and the functions made of them give the host's bits. Only then does the
//! backend claim the contract's order bit for bit (`Mode::Reference`); where the guards do not hold it
//! promises nothing (`Arithmetic::promise`).

use crate::arithmetic::Arithmetic;
use crate::command::{Call, Slot, groups};
use crate::outcome::Probe;
use crate::wanted::each_once;
use crate::{Wgpu, WgpuStream, expected};
use engraft_core::backend::Stream;
use engraft_core::math::{self, SeparateMadd};
use engraft_core::mem::Buf;
use engraft_core::{Error, Result};
use engraft_shaders::{Elem, Elementwise, Kernel};
use std::sync::Arc;

/// Pairs that are tried.
const PAIRS: usize = 4096;
/// Results per pair.
const RESULTS: usize = 9;
/// Products of a chain.
const CHAIN: usize = 8;
/// What the results are of.
const NAMES: [&str; RESULTS] = [
    "division",
    "square root",
    "multiply-add",
    "sum",
    "exp",
    "tanh",
    "erf",
    "subnormals",
    "chain of multiply-adds",
];

/// Runs the probe kernel and the plainest of every class, and compares: what may be promised for them, and
/// each result by name.
pub(crate) async fn run(gpu: &Arc<Wgpu>) -> Result<(Arithmetic, Vec<Probe>)> {
    let pairs = pairs();
    // Drivers that whole tests run on, and pages, which promise nothing, have those of every class alone.
    let all = gpu.pipelines.tries_rows;
    let (cases, lone) = (expected::cases(all), expected::lone(all).into_iter().map(|kernel| (kernel, true)));
    let lone: Vec<_> = lone.collect();
    // On all cores; what the driver refuses is found below.
    let kernels = cases.iter().chain(&lone).map(|(kernel, _)| *kernel);
    gpu.pipelines.ready(&gpu.gpu, &each_once(kernels))?;
    let seen = compare(&pairs, &results(gpu, &pairs).await?);
    // What the probe's own kernel does says nothing of others: a driver contracts or reassociates kernel by
    // kernel.
    let summed = compared(gpu, "sums of kernels", &cases).await?;
    let mut arithmetic = judge(&seen);
    arithmetic.order &= summed.passed != Some(false);
    let alone = compared(gpu, "kernels without twins", &lone).await?;
    arithmetic.alone = alone.passed != Some(false);
    let own = NAMES.iter().zip(&seen).map(|(name, seen)| seen.probe(name));
    let probes = own.chain([summed, alone]).collect();
    Ok((arithmetic, probes))
}

/// What the probe kernel makes of pairs.
async fn results(gpu: &Arc<Wgpu>, pairs: &[f32]) -> Result<Vec<f32>> {
    let count = pairs.len() / 2;
    let input = gpu.gpu.alloc_filled("the probe", bytemuck::cast_slice(pairs), &gpu.gpu.queue)?;
    let mut got = vec![0f32; count * RESULTS];
    let output: Buf<_, f32> = Buf::new(gpu.gpu.alloc("the probe", got.len() * 4)?, got.len())?;
    let mut stream = WgpuStream::new(gpu.clone());
    let limits = *gpu.limits();
    let slots =
        [Slot::whole(&limits, &input, "the probe")?, Slot::whole(&limits, output.view().mem(), "the probe")?];
    let grid = groups(&limits, count, 64);
    stream.call(&Call { kernel: Kernel::Probe, slots: &slots, words: &[count as u32], grid })?;
    let ticket = stream.download(output.view())?;
    stream.collect(ticket, &mut got).await?;
    Ok(got)
}

/// Whether kernels give the host's bits.
async fn compared(gpu: &Arc<Wgpu>, name: &'static str, cases: &[(Kernel, bool)]) -> Result<Probe> {
    let mut wrong = Vec::new();
    for (kernel, leaves) in cases {
        if let Some(why) = differs(gpu, *kernel, *leaves).await? {
            wrong.push(format!("{}: {why}", kernel.label()));
        }
    }
    let failed = (!wrong.is_empty()).then(|| wrong.join("; "));
    Ok(Probe::of(name, failed.as_deref(), &format!("the host's bits in {} cases", cases.len())))
}

/// How a kernel's results are not the host's; none where they are.
async fn differs(gpu: &Arc<Wgpu>, kernel: Kernel, leaves: bool) -> Result<Option<String>> {
    let none = || Error::internal(format!("nothing to try {} with", kernel.label()));
    let trial = expected::trial(&kernel, leaves).ok_or_else(none)?;
    let (binding, want) = expected::of(&kernel, &trial, leaves).ok_or_else(none)?;
    let filled =
        |words: &Vec<u32>| gpu.gpu.alloc_filled("the probe", bytemuck::cast_slice(words), &gpu.gpu.queue);
    let buffers = trial.buffers.iter().map(filled).collect::<Result<Vec<_>>>()?;
    let slot = |mem| Slot::whole(gpu.limits(), mem, "the probe");
    let slots = buffers.iter().map(slot).collect::<Result<Vec<_>>>()?;
    let mut stream = WgpuStream::new(gpu.clone());
    let call = Call { kernel, slots: &slots, words: &trial.words, grid: trial.grid };
    match stream.call(&call) {
        Err(Error::Unsupported { reason, .. }) => return Ok(Some(reason)),
        called => called?,
    }
    let output: Buf<_, u32> = Buf::new(buffers[binding].share(), want.len())?;
    let ticket = stream.download(output.view())?;
    let mut got = vec![0u32; want.len()];
    stream.collect(ticket, &mut got).await?;
    Ok(other(&want, &got))
}

/// How many words are others, and the first of them.
fn other(want: &[u32], got: &[u32]) -> Option<String> {
    let mut differ = want.iter().zip(got).enumerate().filter(|(_, (want, got))| want != got);
    let (at, (first, found)) = differ.next()?;
    let count = differ.count() + 1;
    Some(format!(
        "{count} of {} words are not the host's, word {at} is {found:#010x} for {first:#010x}",
        want.len()
    ))
}

/// Invocations of the workgroup that is looked at, and words that each writes.
const LANES: (usize, usize) = (256, 4);

/// How wide subgroups are, and why they cannot be used though the adapter offers them: WGSL promises neither
/// that they are full nor how wide they are.
pub(crate) async fn subgroups(gpu: &Arc<Wgpu>) -> Result<(u32, Option<String>)> {
    let mut got = vec![0u32; LANES.0 * LANES.1];
    let output: Buf<_, u32> = Buf::new(gpu.gpu.alloc("the probe", got.len() * 4)?, got.len())?;
    let mut stream = WgpuStream::new(gpu.clone());
    let slots = [Slot::whole(gpu.limits(), output.view().mem(), "the probe")?];
    let words = [LANES.0 as u32];
    stream.call(&Call { kernel: Kernel::Lanes, slots: &slots, words: &words, grid: [1, 1, 1] })?;
    let ticket = stream.download(output.view())?;
    stream.collect(ticket, &mut got).await?;
    Ok((got[1], unusable(&got)))
}

fn unusable(got: &[u32]) -> Option<String> {
    let size = got[1];
    if size < 4 || !size.is_power_of_two() {
        return Some(format!("they are {size} wide"));
    }
    let odd = got.as_chunks::<4>().0.iter().zip(0u32..).find(|(lane, v)| {
        // Numbers begin at 1, since what was not written is 0.
        **lane != [v + 1, size, v ^ 1, v ^ (size / 2)]
    });
    odd.map(|(lane, v)| format!("invocation {v} of a workgroup is seen as {lane:?}, {size} wide"))
}

/// Rows and columns of a matrix of all halves.
const ALL_HALVES: (u32, u32) = (256, 256);

/// Why f16 as a type of the driver's shaders cannot be used: every half must come back from f32 as it was,
/// subnormals too.
pub(crate) async fn halves(gpu: &Arc<Wgpu>) -> Result<Option<String>> {
    let all: Vec<u16> = (0..=u16::MAX).collect();
    let input = gpu.gpu.alloc_filled("the probe", bytemuck::cast_slice(&all), &gpu.gpu.queue)?;
    let mut got = vec![0u16; all.len()];
    let output: Buf<_, u16> = Buf::new(gpu.gpu.alloc("the probe", got.len() * 2)?, got.len())?;
    let mut stream = WgpuStream::new(gpu.clone());
    let limits = *gpu.limits();
    let slots =
        [Slot::whole(&limits, &input, "the probe")?, Slot::whole(&limits, output.view().mem(), "the probe")?];
    let kernel = Kernel::Elementwise(Elementwise::Convert, Elem::F16, Elem::F16);
    let (rows, cols) = ALL_HALVES;
    let words = [rows, cols, 0, cols, 0, cols, 0];
    stream.call(&Call { kernel, slots: &slots, words: &words, grid: groups(&limits, all.len(), 256) })?;
    let ticket = stream.download(output.view())?;
    stream.collect(ticket, &mut got).await?;
    Ok(changed(&got).map(|(was, is)| format!("the driver turns the half {was:#06x} into {is:#06x}")))
}

/// The first half that came back as another one.
fn changed(got: &[u16]) -> Option<(u16, u16)> {
    let nan = |bits: u16| bits & 0x7fff > 0x7c00;
    (0..=u16::MAX).zip(got.iter().copied()).find(|(was, is)| was != is && !(nan(*was) && nan(*is)))
}

/// Magnitudes over the range that models use, both signs.
fn pairs() -> Vec<f32> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let (sign, exponent, mantissa) = (state >> 63, 127 - 8 + (state >> 40) % 13, state & 0x7f_ffff);
        f32::from_bits((sign << 31 | exponent << 23 | mantissa) as u32)
    };
    (0..2 * PAIRS).map(|_| next()).collect()
}

/// How often a result was not the host's.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    pairs: usize,
    other: usize,
    /// The first pair that gave other bits, the host's result and the device's.
    first: Option<([f32; 2], f32, f32)>,
}

impl Seen {
    fn same(&self) -> bool {
        self.other == 0
    }

    fn probe(&self, name: &'static str) -> Probe {
        let found = match self.first {
            None => format!("the host's bits for {} pairs", self.pairs),
            Some(([a, b], want, got)) => format!(
                "other bits for {} of {} pairs, first for {a:e} and {b:e}: {want:e} ({:#010x}) was wanted, {got:e} \
                 ({:#010x}) found",
                self.other,
                self.pairs,
                want.to_bits(),
                got.to_bits()
            ),
        };
        Probe { name, passed: Some(self.same()), found }
    }
}

/// Compares every result of every pair with the host's.
fn compare(pairs: &[f32], got: &[f32]) -> [Seen; RESULTS] {
    let mut all = [Seen::default(); RESULTS];
    let pairs = pairs.as_chunks::<2>().0;
    for (i, (pair, got)) in pairs.iter().zip(got.as_chunks::<RESULTS>().0).enumerate() {
        let [a, b] = *pair;
        let chain = (0..CHAIN).map(|k| pairs[(i + k) % pairs.len()]).fold(0.0, |acc, [a, b]| a * b + acc);
        let want = [
            a / b,
            a.abs().sqrt(),
            a * b + a,
            (a + b) - a,
            math::exp::<SeparateMadd>(b),
            math::tanh::<SeparateMadd>(b),
            math::erf::<SeparateMadd>(b),
            a * 7.888_609e-31 * 1.323_488_9e-23,
            chain,
        ];
        for ((seen, got), want) in all.iter_mut().zip(got).zip(want) {
            seen.pairs += 1;
            if got.to_bits() != want.to_bits() {
                seen.other += 1;
                seen.first = seen.first.or(Some((*pair, want, *got)));
            }
        }
    }
    all
}

fn judge(seen: &[Seen; RESULTS]) -> Arithmetic {
    let [division, square_root, multiply, sum, exp, tanh, erf, subnormals, chain] = seen.map(|s| s.same());
    let functions = exp && tanh && erf;
    // Whole kernels are looked at behind this.
    let (order, alone) = (multiply && sum && chain, true);
    Arithmetic { division, square_root, order, functions, alone, subnormals }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::WgpuConfig;
    use crate::tests::{on_driver, with};
    use engraft_core::backend::block_on;

    /// Magnitudes around which something changes: zero, the least and the largest numbers of every sort,
    /// powers of two and their neighbours, infinity, NaN.
    const EDGES: [u32; 24] = [
        0,
        1,
        2,
        0x3f_ffff,
        0x40_0000,
        0x7f_ffff,
        0x80_0000,
        0x80_0001,
        0xff_ffff,
        0x100_0000,
        0x3f7f_ffff,
        0x3f80_0000,
        0x3f80_0001,
        0x3fff_ffff,
        0x4000_0000,
        0x4040_0000,
        0x7e80_0000,
        0x7f00_0000,
        0x7f7f_fffe,
        0x7f7f_ffff,
        0x7f80_0000,
        0x7f80_0001,
        0x7fc0_0000,
        0x7fff_ffff,
    ];

    /// Pairs of edges of both signs; of any bits; of like size; and with quotients on both sides of the least
    /// normal number.
    fn any_pairs() -> Vec<f32> {
        let edges: Vec<u32> = EDGES.into_iter().flat_map(|bits| [bits, bits | 1 << 31]).collect();
        let mut all: Vec<u32> = edges.iter().flat_map(|a| edges.iter().flat_map(move |b| [*a, *b])).collect();
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        for i in 0..1 << 17 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let (a, b) = (state as u32, (state >> 32) as u32);
            let sized = |bits: u32, exponent: u32| bits & 0x807f_ffff | exponent << 23;
            all.extend(match i % 4 {
                0 | 1 => [a, b],
                2 => [sized(a, 127), sized(b, 127 + (a >> 23 & 1))],
                _ => [sized(a, 20), sized(b, 127 + (a >> 23) % 48)],
            });
        }
        all.into_iter().map(f32::from_bits).collect()
    }

    /// The probe's text with another driver's division and square root in the place of the seeds.
    fn seeded(text: String, quotient: &str, root: &str) -> String {
        let text = with(text, "let r = 1.0 / f32(d);", &format!("let r = {quotient} / f32(d);"));
        with(text, "let seed = sqrt(x);", &format!("let seed = {root} * sqrt(x);"))
    }

    /// Whatever a driver's own are: exact as those of the CPU, or wrong by some ten units on either side.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn division_and_square_root_are_rounded_as_the_hosts_are() {
        let pairs = any_pairs();
        let drivers: [fn(&Kernel, String) -> String; 4] = [
            |_, text| text,
            |_, text| seeded(text, "1.000001", "1.000001"),
            |_, text| seeded(text, "0.999999", "0.999999"),
            |_, text| seeded(text, "0.9999999", "1.0000001"),
        ];
        // The promise leaves out what is below 2^-126, and what would be without the last rounding.
        let small = |v: f32| v != 0.0 && v.abs() <= f32::MIN_POSITIVE;
        let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan();
        for driver in drivers {
            let gpu = Arc::new(on_driver(WgpuConfig::default(), driver));
            let got = block_on(results(&gpu, &pairs)).unwrap();
            let mut compared = 0;
            for (pair, got) in pairs.as_chunks::<2>().0.iter().zip(got.as_chunks::<RESULTS>().0) {
                let [a, b] = *pair;
                let (quotient, root) = (a / b, a.abs().sqrt());
                let bits = [a, b, got[0], quotient, got[1], root].map(f32::to_bits);
                if ![a, b, quotient].into_iter().any(small) {
                    compared += 1;
                    assert!(same(got[0], quotient), "a quotient: {bits:#010x?}");
                }
                assert!(small(a) || same(got[1], root), "a root: {bits:#010x?}");
            }
            assert!(compared > pairs.len() / 3, "{compared}");
        }
    }

    #[test]
    fn subgroups_that_are_not_full_are_seen() {
        let full = |size: u32| -> Vec<u32> {
            (0..LANES.0 as u32).flat_map(|v| [v + 1, size, v ^ 1, v ^ (size / 2)]).collect()
        };
        assert!([4, 8, 16, 32, 64, 128].into_iter().all(|size| unusable(&full(size)).is_none()));
        assert!(unusable(&full(2)).is_some() && unusable(&full(24)).is_some());
        let mut hole = full(32);
        hole[4 * 40..4 * 41].fill(0);
        assert!(unusable(&hole).is_some_and(|why| why.contains("invocation 40")));
    }

    #[test]
    fn a_flushed_half_is_seen() {
        let mut all: Vec<u16> = (0..=u16::MAX).collect();
        assert_eq!(changed(&all), None);
        all[0x7d00] = 0x7e00;
        assert_eq!(changed(&all), None);
        all[0x83ff] = 0x8000;
        assert_eq!(changed(&all), Some((0x83ff, 0x8000)));
    }

    /// What drivers do to the chain where the guards do not hold.
    #[test]
    fn contraction_and_reassociation_are_seen() {
        let pairs = pairs();
        let all = pairs.as_chunks::<2>().0;
        let term = |i: usize, k: usize| all[(i + k) % PAIRS];
        let chains: [&dyn Fn(usize) -> f32; 3] = [
            &|i| (0..CHAIN).fold(0.0, |acc, k| term(i, k)[0] * term(i, k)[1] + acc),
            &|i| (0..CHAIN).fold(0.0, |acc, k| term(i, k)[0].mul_add(term(i, k)[1], acc)),
            &|i| {
                let half = |from: usize| {
                    (from..from + CHAIN / 2).fold(0.0, |acc, k| term(i, k)[0] * term(i, k)[1] + acc)
                };
                half(0) + half(CHAIN / 2)
            },
        ];
        let orders = chains.map(|chain| {
            let results = (0..PAIRS).flat_map(|i| {
                let [a, b] = all[i];
                [0.0, 0.0, a * b + a, (a + b) - a, 0.0, 0.0, 0.0, 0.0, chain(i)]
            });
            judge(&compare(&pairs, &results.collect::<Vec<_>>())).order
        });
        assert_eq!(orders, [true, false, false]);
    }

    #[test]
    fn one_wrong_bit_is_seen() {
        let pairs = [3.0, 7.0];
        let right = [
            3.0f32 / 7.0,
            3.0f32.sqrt(),
            24.0,
            7.0,
            math::exp::<SeparateMadd>(7.0),
            math::tanh::<SeparateMadd>(7.0),
            math::erf::<SeparateMadd>(7.0),
            3.0f32 * 7.888_609e-31 * 1.323_488_9e-23,
            168.0,
        ];
        let all = judge(&compare(&pairs, &right));
        assert!(all.strict() && all.subnormals);
        let passed = compare(&pairs, &right)[0].probe(NAMES[0]);
        assert_eq!((passed.passed, passed.found.as_str()), (Some(true), "the host's bits for 1 pairs"));
        for i in 0..RESULTS {
            let mut wrong = right;
            wrong[i] = f32::from_bits(right[i].to_bits() ^ 1);
            let seen = compare(&pairs, &wrong);
            let probe = seen[i].probe(NAMES[i]);
            assert_eq!(probe.passed, Some(false), "result {i}");
            let bits = format!("{:#010x}) found", wrong[i].to_bits());
            assert!(probe.found.contains(&bits) && probe.found.contains("3e0 and 7e0"), "{}", probe.found);
            let judged = judge(&seen);
            assert_eq!(judged.strict(), i == 7, "result {i}");
            assert_eq!(judged.order, ![2, 3, 8].contains(&i), "result {i}");
            assert!(!judged.subnormals || i != 7);
        }
    }
}
