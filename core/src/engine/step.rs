//! One step: plan, fill, upload, run or replay, draw, read back.

use super::capture::read_f32;
use super::*;
use crate::backend::{Exec, PrimitiveOps, SampleCall, Table, block_on};
use crate::mem::{Float, Mat, MatRef, StepFill, StepShape, StepView};
use crate::model::StepInputs;
use crate::policy::Family;

impl<B: Backend> Engine<B> {
    /// Runs one step and replaces `out` by what it did; waits for the device.
    pub fn step(&mut self, out: &mut Vec<Output>) -> Result<()> {
        block_on(self.step_async(out))
    }

    /// Runs one step; reading the tokens back is awaited (the browser cannot block).
    pub async fn step_async(&mut self, out: &mut Vec<Output>) -> Result<()> {
        out.clear();
        let HostState { scheduler, tables, pool, batch, .. } = &mut self.host;
        scheduler.next(tables, pool, batch)?;
        if self.host.batch.tokens == 0 {
            return Ok(());
        }
        self.admit()?;
        let shape = self.shape();
        if !(self.replayable(&shape) && self.run_bucket(shape)?) {
            self.run_eager(shape)?;
        }
        self.host.tables.settle();
        let ticket = self.stream.download(self.device.tokens.view().slice(0..shape.rows)?)?;
        self.stream.submit()?;
        self.stream.collect(ticket, &mut self.host.tokens[..shape.rows]).await?;
        self.apply(out)
    }

    /// Tells the device how to sample for sequences that just entered.
    fn admit(&mut self) -> Result<()> {
        for at in &self.host.batch.admitted {
            let seq = self.host.scheduler.running().get(*at).ok_or_else(|| lost("an admitted sequence"))?;
            let live = self.requests.get(&seq.id).ok_or_else(|| lost("an admitted request"))?;
            let row = seq.row as usize;
            let penalised = live.sampling.repetition_penalty != 1.0;
            let sample = live.sampling.row(live.stream, 0, 0, if penalised { row as i32 } else { -1 });
            self.stream.upload(&[sample], self.device.sample_table.view_mut().slice(row..row + 1)?)?;
            if penalised {
                self.stream.upload(&seq.tokens, self.device.prompt.view_mut())?;
                let ids = self.device.prompt.view().slice(0..seq.tokens.len())?;
                let (words, seen) = (self.device.seen_words, self.device.seen.view_mut());
                self.stream.mark_seen(ids, row, words, seen)?;
            }
        }
        Ok(())
    }

    fn shape(&self) -> StepShape {
        let batch = &self.host.batch;
        let rows = batch.slices.iter().map(|s| self.rows_of(s)).sum();
        StepShape {
            tokens: batch.tokens,
            seqs: batch.slices.len(),
            rows,
            patches: self.host.tables.changes().len(),
            max_query: batch.slices.iter().map(|s| s.len).max().unwrap_or(0),
            max_keys: batch.slices.iter().map(|s| s.start + s.len).max().unwrap_or(0),
        }
    }

    fn want(&self, id: u64) -> Want {
        self.requests.get(&id).map(|l| l.want).unwrap_or_default()
    }

    /// Rows of logits that a slice asks for.
    fn rows_of(&self, slice: &crate::schedule::Slice) -> usize {
        let id = self.host.scheduler.running()[slice.index].id;
        if self.want(id).logits { slice.len } else { usize::from(slice.draws) }
    }

    /// Whether a captured step can stand for this one.
    fn replayable(&self, shape: &StepShape) -> bool {
        let plain = |s: &crate::schedule::Slice| {
            s.len == 1 && s.draws && self.want(self.host.scheduler.running()[s.index].id) == Want::default()
        };
        self.config.graphs
            && self.backend.caps().graphs
            && self.profile.is_none()
            && shape.patches <= shape.seqs
            && self.host.batch.slices.iter().all(plain)
    }

    /// Runs a step by its bucket; false, with nothing run, where that could not be captured.
    fn run_bucket(&mut self, shape: StepShape) -> Result<bool> {
        let keys = self.config.max_context;
        let Self { graphs, backend, host, requests, device, stream, comm, model, .. } = self;
        let Some(bucket) = graphs.bucket(backend, shape.seqs, keys)? else {
            return Err(lost("a bucket for this batch"));
        };
        if bucket.refused.is_some() {
            return Ok(false);
        }
        fill(&mut bucket.step.begin(bucket.shape)?, host, requests, model)?;
        let (words, to) = bucket.step.upload_parts();
        stream.upload(words, to)?;
        stream.plan_attention(bucket.shape, &mut bucket.plan)?;
        if bucket.graph.is_none() {
            let (view, plan) = (bucket.step.view(), &bucket.plan);
            let stride = host.tables.stride();
            let captured = stream.capture(|s| {
                let mut x = Exec::new(s, comm);
                forward(&mut x, model, device, view, plan, stride, None)
            });
            if !bucket.keep(captured)? {
                return Ok(false);
            }
        }
        // SAFETY: the engine owns everything the bucket was captured with; see the head of `graph`.
        unsafe { bucket.replay(stream) }
    }

    fn run_eager(&mut self, shape: StepShape) -> Result<()> {
        let mut probe = self.new_probe();
        let wants_hidden = self.requests.values().any(|l| l.want.hidden != Layers::None);
        if wants_hidden {
            self.make_wide()?;
        }
        let Self { host, requests, device, eager, stream, comm, model, captured, .. } = self;
        let (Eager { step, plan, wide }, last) = (eager, model.blocks.len());
        fill(&mut step.begin(shape)?, host, requests, model)?;
        let (words, to) = step.upload_parts();
        stream.upload(words, to)?;
        stream.plan_attention(shape, plan)?;
        let mut tap = |stream: &mut B::Stream, layer: usize, rows: MatRef<'_, B::Mem>| {
            if requests.values().all(|l| l.want.hidden.place(layer, last).is_none()) {
                return Ok(());
            }
            let wide = wide.as_mut().ok_or_else(|| lost("the buffer for hidden states"))?;
            let values = read_f32::<B>(stream, wide, rows)?;
            keep_hidden(host, requests, captured, (layer, last), &values, rows.cols);
            Ok(())
        };
        let mut x = Exec { stream, comm, probe: probe.as_mut() };
        let tap: Option<crate::model::Tap<'_, B>> = if wants_hidden { Some(&mut tap) } else { None };
        forward(&mut x, model, device, step.view(), plan, host.tables.stride(), tap)?;
        self.keep_logits(shape)?;
        if let (Some(probe), Some(profile)) = (probe, &mut self.profile) {
            self.stream.sync()?;
            profile.append(probe.resolve::<B>(&mut self.stream)?);
        }
        Ok(())
    }

    /// The buffer that hidden states are read through, as f32.
    pub(super) fn make_wide(&mut self) -> Result<()> {
        if self.eager.wide.is_none() {
            let (rows, spec) = (self.config.max_step_tokens, &self.model.spec);
            let cols = spec.hidden.max(spec.out_width()).max(spec.pooled_cols());
            let mem = self.backend.alloc(rows * cols * 4)?;
            self.eager.wide = Some(Mat::new(mem, rows, cols, Float::F32)?);
        }
        Ok(())
    }

    /// Copies logits to the requests that asked for them.
    fn keep_logits(&mut self, shape: StepShape) -> Result<()> {
        let (Some(logits), true) =
            (&self.device.scratch.logits, self.requests.values().any(|l| l.want.logits))
        else {
            return Ok(());
        };
        let cols = logits.cols();
        let mut values = vec![0.0; shape.rows * cols];
        let ticket = self.stream.download(logits.view(shape.rows).as_f32()?)?;
        block_on(self.stream.collect(ticket, &mut values))?;
        let mut from = 0;
        for slice in &self.host.batch.slices {
            let id = self.host.scheduler.running()[slice.index].id;
            let wants = self.want(id).logits;
            let end = from + self.rows_of(slice) * cols;
            if let (true, Some(kept)) = (wants, self.captured.get_mut(&id)) {
                kept.logits.extend_from_slice(&values[from..end]);
            }
            from = end;
        }
        Ok(())
    }

    /// Records progress and drawn tokens; ends what is finished.
    fn apply(&mut self, out: &mut Vec<Output>) -> Result<()> {
        let mut row = 0;
        self.host.ended.clear();
        for i in 0..self.host.batch.slices.len() {
            let slice = self.host.batch.slices[i];
            row += self.rows_of(&slice);
            let seq =
                self.host.scheduler.running_mut(slice.index).ok_or_else(|| lost("a running sequence"))?;
            seq.done += slice.len;
            if !slice.draws {
                continue;
            }
            let (id, mut token) = (seq.id, None);
            if seq.tokens.len() < seq.limit {
                let drawn = self.host.tokens[row - 1];
                seq.tokens.push(drawn);
                token = Some(drawn);
            }
            let live = self.requests.get(&id).ok_or_else(|| lost("a running request"))?;
            let finish = match token {
                Some(t) if live.stop_ids.contains(&t) => Some(Finish::Stop),
                _ if seq.tokens.len() >= seq.limit => Some(Finish::Length),
                _ => None,
            };
            if finish.is_some() {
                self.host.ended.push(slice.index);
                self.requests.remove(&id);
            }
            out.push(Output { id, token, finish });
        }
        // Highest first: ending one moves the last into its place.
        self.host.ended.sort_unstable_by(|a, b| b.cmp(a));
        let HostState { scheduler, tables, pool, ended, .. } = &mut self.host;
        for index in ended.iter() {
            scheduler.finish(*index, tables, pool)?;
        }
        Ok(())
    }
}

/// Gives the rows of a hidden state, `layer` of so many blocks, to the requests that asked for them.
fn keep_hidden(
    host: &HostState,
    requests: &BTreeMap<u64, Live>,
    captured: &mut BTreeMap<u64, Captured>,
    (layer, last): (usize, usize),
    values: &[f32],
    cols: usize,
) {
    let mut from = 0;
    for slice in &host.batch.slices {
        let id = host.scheduler.running()[slice.index].id;
        let end = from + slice.len * cols;
        let place = requests.get(&id).and_then(|l| l.want.hidden.place(layer, last));
        if let (Some(place), Some(kept)) = (place, captured.get_mut(&id)) {
            kept.add_hidden(place, &values[from..end]);
        }
        from = end;
    }
}

/// Writes a batch into a step's host image.
fn fill<B: Backend>(
    fill: &mut StepFill<'_>,
    host: &HostState,
    requests: &BTreeMap<u64, Live>,
    model: &Model<B>,
) -> Result<()> {
    let (mut token, mut want) = (0, 0);
    for (s, slice) in host.batch.slices.iter().enumerate() {
        let seq = &host.scheduler.running()[slice.index];
        let all = requests.get(&seq.id).is_some_and(|l| l.want.logits);
        // Rotation is all that reads positions of a model with two lists of divisors.
        let shift = model.rope_shift(seq.prompt);
        for position in slice.start..slice.start + slice.len {
            let slot = host.tables.slot(seq.row, position);
            fill.token(token, seq.tokens[position], position as u32 + shift, slot, 0);
            if let Some(before) = position.checked_sub(1) {
                fill.before(token, host.tables.slot(seq.row, before));
            }
            let last = position + 1 == slice.start + slice.len;
            let draws = last && slice.draws && seq.tokens.len() < seq.limit;
            if all || (last && slice.draws) {
                let sample = if draws { Some((seq.row, position as u32 + 1)) } else { None };
                fill.want(want, token as u32, sample);
                want += 1;
            }
            token += 1;
        }
        fill.seq(s, token, seq.row, (slice.start + slice.len) as u32);
    }
    for (i, (index, page)) in host.tables.changes().iter().enumerate() {
        fill.patch(i, *index, *page);
    }
    Ok(())
}

/// What a step enqueues: page-table changes, the model, the draw.
fn forward<B: Backend>(
    x: &mut Exec<'_, B>,
    model: &Model<B>,
    device: &mut DeviceState<B>,
    view: StepView<'_, B::Mem>,
    plan: &B::AttnPlan,
    stride: usize,
    tap: Option<crate::model::Tap<'_, B>>,
) -> Result<()> {
    x.patch(view.patches, device.table.view_mut())?;
    let inputs =
        StepInputs { view, kv: &device.kv, table: Table { pages: device.table.view(), stride }, plan };
    model.forward(x, &inputs, &mut device.scratch, tap)?;
    let rows = view.shape.rows;
    let Some(logits) = &device.scratch.logits else { return Ok(()) };
    if rows == 0 || model.spec.family != Family::Decoder {
        return Ok(());
    }
    let call = SampleCall {
        table: device.sample_table.view(),
        slots: view.sample_slots,
        positions: view.sample_positions,
        seen: device.seen.view_mut(),
        seen_words: device.seen_words,
    };
    x.sample(logits.view(rows), call, device.tokens.view_mut().slice(0..rows)?)
}
