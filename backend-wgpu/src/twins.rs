//! Two kernels that must give the same bits, compared on random operands; or numbers that are near, where
//! nothing is promised about bits.
//!
//! A driver chooses the width of subgroups pipeline by pipeline (Intel's does), and may leave some of them
//! partly empty; it contracts or reassociates kernel by kernel, too. That one kernel is right says nothing of
//! another. So each that exchanges within subgroups is compared with the one that exchanges through workgroup
//! memory, each that takes several rows with the one that takes one, that of lanes with that of tiles, tiles
//! of attention with single queries, experts' slots by group with slots one by one, before anything relies on
//! it.

use crate::WgpuMem;
use crate::adapter::IN_BROWSER;
use crate::device::Gpu;
use crate::faults::{Fault, Faults};
use crate::pipeline::{Pipeline, arena_layout};
use crate::trial::Trial;
use engraft_core::{Error, Result};
use engraft_shaders::{Access, Carrier, Elem, Kernel};
use std::sync::mpsc;

/// Stands behind what the host reads, noted by the dispatch that follows the trial's in its pass: a command
/// buffer or a pass that was given up leaves none.
const MARK: u32 = 0x5eed_cafe;

/// Why `kernel` cannot be used: it leaves other bits than `twin` for the same operands, or, where bits do not
/// count, numbers that no order of sums explains; none where it does not.
///
/// # Errors
/// `DeviceLost`, `OutOfMemory`.
pub(crate) fn differ(
    gpu: &Gpu,
    carrier: Carrier,
    [mark, kernel, twin]: [&Pipeline; 3],
    (trial, by_bits): (&Trial, bool),
) -> Result<Option<String>> {
    if IN_BROWSER {
        return Ok(Some("pages cannot wait for a comparison".into()));
    }
    let got = run(gpu, carrier, [mark, kernel], trial)?;
    let want = run(gpu, carrier, [mark, twin], &trial.by(&twin.kernel))?;
    let near = (!by_bits).then_some(&kernel.kernel);
    Ok(compare(trial, &twin.bindings, [&got, &want], near))
}

/// Compares what was written, by its numbers where these need only be `near` as this kernel writes them; both
/// must have written something.
fn compare(
    trial: &Trial,
    access: &[Access],
    [got, want]: [&[Vec<u32>]; 2],
    near: Option<&Kernel>,
) -> Option<String> {
    let mut changed = false;
    for (i, before) in trial.buffers.iter().enumerate().filter(|(i, _)| access[*i] == Access::Write) {
        let others = others(&got[i], &want[i], near.map(|kernel| Trial::written(kernel, i)));
        if let Some(at) = others.first() {
            let (got, want) = (got[i][*at], want[i][*at]);
            let how = if near.is_some() { "near" } else { "those of" };
            return Some(format!(
                "{} of {} words are not {how} the plainer kernel{}, word {at} of binding {i} is {got:#010x} for \
                 {want:#010x}",
                others.len(),
                before.len(),
                if near.is_some() { "'s" } else { "" }
            ));
        }
        changed |= want[i] != *before;
    }
    (!changed).then(|| "nothing was written".into())
}

/// What no order of sums comes to, as a part of the largest number that a kernel writes: some hundreds of
/// times what reordering the longest sum of a trial does, and less than a term of it.
const FAR: f32 = 1.0 / 1024.0;

/// The words of `got` that are others than those of `want`, or, of elements of a type, whose numbers are far
/// from them.
fn others(got: &[u32], want: &[u32], near: Option<Elem>) -> Vec<usize> {
    let all = got.iter().zip(want).enumerate().filter(|(_, (got, want))| got != want);
    let Some(elem) = near else { return all.map(|(at, _)| at).collect() };
    // What the last place of an element comes to at most, as a part of it.
    let step = match elem {
        Elem::F32 => 0.0,
        Elem::F16 => 1.0 / 1024.0,
        Elem::Bf16 => 1.0 / 128.0,
    };
    let numbers = |word: u32| match elem {
        Elem::F32 => [f32::from_bits(word); 2],
        Elem::F16 => [word, word >> 16].map(|bits| half::f16::from_bits(bits as u16).to_f32()),
        Elem::Bf16 => [word, word >> 16].map(|bits| half::bf16::from_bits(bits as u16).to_f32()),
    };
    let finite = want.iter().flat_map(|word| numbers(*word)).filter(|v| v.is_finite());
    let largest = finite.fold(0.0, |largest: f32, v| largest.max(v.abs()));
    let is_near =
        |(got, want): (f32, f32)| got == want || (got - want).abs() <= step * want.abs() + FAR * largest;
    let far = |got: u32, want: u32| !numbers(got).into_iter().zip(numbers(want)).all(is_near);
    all.filter(|(_, (got, want))| far(**got, **want)).map(|(at, _)| at).collect()
}

/// Words of every buffer after a dispatch of the second pipeline; the first one notes marks.
pub(crate) fn run(
    gpu: &Gpu,
    carrier: Carrier,
    [mark, pipeline]: [&Pipeline; 2],
    trial: &Trial,
) -> Result<Vec<Vec<u32>>> {
    ran(gpu, carrier, &[(pipeline, trial), (mark, &noting())], trial)
}

/// What notes the mark where the number before it stands.
fn noting() -> Trial {
    Trial { buffers: vec![vec![MARK - 1, 0]], words: vec![MARK, 0], grid: [1, 1, 1] }
}

/// Words of every buffer of `trial` and the mark behind them, after dispatches in one pass.
fn ran(
    gpu: &Gpu,
    carrier: Carrier,
    dispatches: &[(&Pipeline, &Trial)],
    trial: &Trial,
) -> Result<Vec<Vec<u32>>> {
    let fill = |words: &[u32]| gpu.alloc_filled("a trial", bytemuck::cast_slice(words), &gpu.queue);
    let filled = |trial: &Trial| trial.buffers.iter().map(|words| fill(words)).collect::<Result<Vec<_>>>();
    let (buffers, noted) = (filled(trial)?, filled(&noting())?);
    let whole: usize = trial.buffers.iter().map(Vec::len).sum();
    let read = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("a trial's results"),
        size: 4 * (whole as u64 + 1),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        for ((pipeline, trial), buffers) in dispatches.iter().zip([&buffers, &noted]) {
            encode(gpu, carrier, (pipeline, trial), buffers, &mut pass)?;
        }
    }
    let mut at = 0;
    let lengths = trial.buffers.iter().map(Vec::len).chain([1]);
    for (buffer, words) in buffers.iter().chain(&noted).zip(lengths) {
        let bytes = 4 * words as u64;
        encoder.copy_buffer_to_buffer(buffer.buffer(), 0, &read, at, bytes);
        at += bytes;
    }
    let submission = gpu.submit([encoder.finish()]);
    let all = words_of(gpu, &read, submission)?;
    has_ended(&gpu.faults, &all)?;
    let mut rest = &all[..];
    let mut each = |words: &Vec<u32>| {
        let (own, behind) = rest.split_at(words.len());
        rest = behind;
        own.to_vec()
    };
    Ok(trial.buffers.iter().map(&mut each).collect())
}

/// Whether the command buffer that these words come from ran to its end. Else the device is lost, and stays
/// so for later calls.
fn has_ended(faults: &Faults, all: &[u32]) -> Result<()> {
    if all.last() == Some(&MARK) {
        return Ok(());
    }
    faults.set(Fault::Lost("a command buffer with a trial did not run to its end".into()));
    faults.check()
}

/// Encodes the dispatch.
fn encode(
    gpu: &Gpu,
    carrier: Carrier,
    (pipeline, trial): (&Pipeline, &Trial),
    buffers: &[WgpuMem],
    pass: &mut wgpu::ComputePass<'_>,
) -> Result<()> {
    let words: Vec<u32> = [0].into_iter().chain(trial.words.iter().copied()).collect();
    if words.len() != pipeline.words || buffers.len() != pipeline.bindings.len() {
        return Err(Error::internal(format!("the trial of {} does not fit", pipeline.kernel.label())));
    }
    let entries: Vec<_> = buffers
        .iter()
        .enumerate()
        .map(|(i, mem)| wgpu::BindGroupEntry {
            binding: i as u32,
            resource: mem.buffer().as_entire_binding(),
        })
        .collect();
    let (label, layout) = (None, &pipeline.layout);
    let descriptor = wgpu::BindGroupDescriptor { label, layout, entries: &entries };
    let bound = gpu.device.create_bind_group(&descriptor);
    pass.set_pipeline(&pipeline.compiled);
    pass.set_bind_group(0, &bound, &[]);
    match carrier {
        Carrier::Immediate => pass.set_immediates(0, bytemuck::cast_slice(&words)),
        Carrier::Uniform => {
            let uniform = gpu.uniform(&words);
            let entries = [wgpu::BindGroupEntry { binding: 0, resource: uniform.as_entire_binding() }];
            let layout = &arena_layout(&gpu.device);
            let descriptor = wgpu::BindGroupDescriptor { label: None, layout, entries: &entries };
            pass.set_bind_group(1, &gpu.device.create_bind_group(&descriptor), &[0]);
        }
    }
    let [x, y, z] = trial.grid;
    pass.dispatch_workgroups(x, y, z);
    Ok(())
}

/// Waits and reads a buffer.
fn words_of(gpu: &Gpu, buffer: &wgpu::Buffer, submission: wgpu::SubmissionIndex) -> Result<Vec<u32>> {
    let (mapped, outcome) = mpsc::channel();
    buffer.map_async(wgpu::MapMode::Read, .., move |result| {
        // Whoever waited may have gone with an error of its own.
        let _ = mapped.send(result);
    });
    gpu.poll_until(Some(submission))?;
    gpu.faults.check()?;
    let lost = |what: String| Error::DeviceLost { what: format!("reading back a trial: {what}") };
    outcome.recv().map_err(|e| lost(e.to_string()))?.map_err(|e| lost(e.to_string()))?;
    let all = buffer.get_mapped_range(..).map_err(|e| Error::internal(e.to_string()))?;
    Ok(bytemuck::pod_collect_to_vec(&all[..]))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::{MARK, compare, has_ended, others, ran, run};
    use crate::faults::Faults;
    use crate::tests::opened;
    use crate::trial::Trial;
    use engraft_core::Error;
    use engraft_shaders::Access::{Read, Write};
    use engraft_shaders::{Elem, Kernel, Norm, Reduce};

    #[test]
    fn a_trial_that_was_given_up_loses_the_device_for_good() {
        let faults = Faults::default();
        assert!(has_ended(&faults, &[7, MARK]).is_ok() && faults.check().is_ok());
        for ended in [has_ended(&faults, &[7, 0]), faults.check(), faults.check()] {
            assert!(matches!(&ended, Err(Error::DeviceLost { what }) if what.contains("trial")), "{ended:?}");
        }
        assert!(has_ended(&Faults::default(), &[]).is_err());
    }

    #[test]
    fn one_other_word_and_outputs_that_were_not_written_are_seen() {
        let trial = Trial { buffers: vec![vec![1, 2], vec![3, 4]], words: Vec::new(), grid: [1, 1, 1] };
        let access = [Read, Write];
        let left = |words: [u32; 2]| vec![vec![1, 2], words.to_vec()];
        let of = |got, want| compare(&trial, &access, [&left(got), &left(want)], None);
        assert_eq!(of([7, 8], [7, 8]), None);
        let why = of([7, 9], [7, 8]).unwrap_or_default();
        assert!(why.contains("1 of 2 words") && why.contains("word 1 of binding 1"), "{why}");
        assert!(of([3, 4], [3, 4]).is_some());
    }

    /// Of elements of every type: other sums of the same terms are near, other terms and no numbers are far.
    #[test]
    fn numbers_are_near_as_far_as_an_order_of_sums_explains() {
        let of_f32 = |got: [f32; 2]| {
            let [got, want] = [got, [2.0, -0.25]].map(|all| all.map(f32::to_bits));
            others(&got, &want, Some(Elem::F32)).len()
        };
        assert_eq!([[2.0, -0.25], [2.000_01, -0.25], [2.001, -0.251]].map(of_f32), [0; 3]);
        assert_eq!(
            [[2.01, -0.25], [2.0, -0.26], [2.0, f32::NAN], [f32::INFINITY, 0.0]].map(of_f32),
            [1, 1, 1, 2]
        );
        let halves = |all: [f32; 2]| all.map(half::f16::from_f32).map(|v| u32::from(v.to_bits()));
        let of_f16 = |got: [f32; 2]| {
            let [got, want] = [got, [2.0, -0.25]].map(|all| {
                let [a, b] = halves(all);
                a | b << 16
            });
            others(&[got], &[want], Some(Elem::F16)).len()
        };
        // The next half, and one four further.
        assert_eq!([[2.002, -0.25], [2.01, -0.25], [2.0, -0.26]].map(of_f16), [0, 1, 1]);
        let bf16 = |got: u32| others(&[got], &[0x3f80_3f80], Some(Elem::Bf16)).len();
        assert_eq!([0x3f81_3f80, 0x3f80_3f81, 0x3f83_3f80, 0x3f80_3f83].map(bf16), [0, 0, 1, 1]);
    }

    /// A pass that a watchdog ended: the host has written no mark for it.
    #[test]
    #[ignore = "needs a wgpu adapter"]
    fn a_trial_whose_pass_did_not_run_is_a_lost_device() {
        let gpu = opened();
        let carrier = gpu.pipelines.dialect.carrier;
        let kernel = Kernel::Norm(Norm::Alone, Elem::F32, Reduce::Shared);
        let [mark, norm] = [Kernel::Mark, kernel].map(|kernel| gpu.pipelines.get(&gpu.gpu, kernel).unwrap());
        let trial = Trial::of(&kernel).unwrap();
        let whole = run(&gpu.gpu, carrier, [&mark, &norm], &trial).unwrap();
        assert!(whole.len() == trial.buffers.len() && whole != trial.buffers);
        for _ in 0..2 {
            let ended = ran(&gpu.gpu, carrier, &[], &trial);
            assert!(matches!(ended, Err(Error::DeviceLost { .. })), "{ended:?}");
            assert!(gpu.gpu.faults.check().is_err());
        }
    }
}
