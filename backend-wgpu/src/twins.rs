//! Two kernels that must give the same bits, compared on random operands.
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
use engraft_shaders::{Access, Carrier};
use std::sync::mpsc;

/// Stands behind what the host reads: a command buffer that was given up leaves none.
const MARK: u32 = 0x5eed_cafe;

/// Why `kernel` cannot be used: it leaves other bits than `twin` for the same operands; none where it does
/// not.
///
/// # Errors
/// `DeviceLost`, `OutOfMemory`.
pub(crate) fn differ(
    gpu: &Gpu,
    carrier: Carrier,
    [kernel, twin]: [&Pipeline; 2],
    trial: &Trial,
) -> Result<Option<String>> {
    if IN_BROWSER {
        return Ok(Some("pages cannot wait for a comparison".into()));
    }
    let [got, want] = [run(gpu, carrier, kernel, trial)?, run(gpu, carrier, twin, &trial.by(&twin.kernel))?];
    Ok(compare(trial, &twin.bindings, &got, &want))
}

/// Compares what was written; both must have written something.
fn compare(trial: &Trial, access: &[Access], got: &[Vec<u32>], want: &[Vec<u32>]) -> Option<String> {
    let mut changed = false;
    for (i, before) in trial.buffers.iter().enumerate().filter(|(i, _)| access[*i] == Access::Write) {
        let differs = got[i].iter().zip(&want[i]).enumerate().filter(|(_, (got, want))| got != want);
        let count = differs.clone().count();
        if let Some((at, (got, want))) = differs.into_iter().next() {
            return Some(format!(
                "{count} of {} words are not those of the plainer kernel, word {at} of binding {i} is \
                 {got:#010x} for {want:#010x}",
                before.len()
            ));
        }
        changed |= want[i] != *before;
    }
    (!changed).then(|| "nothing was written".into())
}

/// Words of every buffer after a dispatch.
pub(crate) fn run(gpu: &Gpu, carrier: Carrier, pipeline: &Pipeline, trial: &Trial) -> Result<Vec<Vec<u32>>> {
    let fill = |words: &[u32]| gpu.alloc_filled("a trial", bytemuck::cast_slice(words));
    let buffers = trial.buffers.iter().map(|words| fill(words)).collect::<Result<Vec<_>>>()?;
    let mark = fill(&[MARK])?;
    let whole: usize = trial.buffers.iter().map(Vec::len).sum();
    let read = gpu.device.create_buffer(&wgpu::BufferDescriptor {
        label: Some("a trial's results"),
        size: 4 * (whole as u64 + 1),
        usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        mapped_at_creation: false,
    });
    let mut encoder = gpu.device.create_command_encoder(&Default::default());
    encode(gpu, carrier, (pipeline, trial), &buffers, &mut encoder)?;
    let mut at = 0;
    for (buffer, words) in buffers.iter().zip(&trial.buffers).chain([(&mark, &vec![MARK])]) {
        let bytes = 4 * words.len() as u64;
        encoder.copy_buffer_to_buffer(buffer.buffer(), 0, &read, at, bytes);
        at += bytes;
    }
    let submission = gpu.queue.submit([encoder.finish()]);
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
    encoder: &mut wgpu::CommandEncoder,
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
    let mut pass = encoder.begin_compute_pass(&Default::default());
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
mod tests {
    use super::{MARK, compare, has_ended};
    use crate::faults::Faults;
    use crate::trial::Trial;
    use engraft_core::Error;
    use engraft_shaders::Access::{Read, Write};

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
        assert_eq!(compare(&trial, &access, &left([7, 8]), &left([7, 8])), None);
        let why = compare(&trial, &access, &left([7, 9]), &left([7, 8])).unwrap_or_default();
        assert!(why.contains("1 of 2 words") && why.contains("word 1 of binding 1"), "{why}");
        assert!(compare(&trial, &access, &left([3, 4]), &left([3, 4])).is_some());
    }
}
