//! One step: plan, fill, upload, run or replay, sample, read back.

use super::executor::{StreamExecutor, Tap};
use super::kept::read_f32;
use super::*;
use crate::backend::block_on;
use crate::mem::{Device, Float, Mat, MatRef, StepFill, StepShape};
use crate::model::Exec;
use crate::ops::{Checked, MarkSeen, Run};

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
        let ticket = self.stream.download(self.state.tokens.view().slice(0..shape.rows)?)?;
        self.stream.submit()?;
        self.stream.collect(ticket, &mut self.host.tokens[..shape.rows]).await?;
        self.apply(out)
    }

    /// Uploads how to sample for sequences that just entered.
    fn admit(&mut self) -> Result<()> {
        for i in 0..self.host.batch.admitted.len() {
            self.upload_sampling(self.host.batch.admitted[i])?;
        }
        Ok(())
    }

    /// Uploads how to sample for the running sequence at `index`.
    pub(super) fn upload_sampling(&mut self, index: usize) -> Result<()> {
        let seq = self.host.scheduler.running().get(index).ok_or_else(|| lost("an admitted sequence"))?;
        let live = self.requests.get(&seq.id).ok_or_else(|| lost("an admitted request"))?;
        let row = seq.row as usize;
        let penalised = live.sampling.repetition_penalty != 1.0;
        let sample = live.sampling.row(live.subsequence, 0, 0, if penalised { row as i32 } else { -1 });
        self.stream.upload(&[sample], self.state.sample_table.view_mut().slice(row..row + 1)?)?;
        if penalised {
            self.stream.upload(&seq.tokens, self.state.prompt.view_mut())?;
            let ids = self.state.prompt.view().slice(0..seq.tokens.len())?;
            let (words, seen) = (self.state.seen_words, self.state.seen.view_mut());
            self.stream.run(Checked::new(MarkSeen { ids, slot: row, words, seen })?)?;
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
            table_edits: self.host.tables.changes().len(),
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
        let all = self.want(id).logits && self.model.spec.head.is_per_token();
        if all { slice.len } else { usize::from(slice.samples) }
    }

    /// Whether a captured step can stand for this one.
    fn replayable(&self, shape: &StepShape) -> bool {
        let plain = |s: &crate::schedule::Slice| {
            s.len == 1 && s.samples && self.want(self.host.scheduler.running()[s.index].id) == Want::default()
        };
        self.config.graphs
            && self.backend.caps().graphs
            && self.model.is_capturable()
            && self.profile.is_none()
            && shape.table_edits <= shape.seqs
            && self.host.batch.slices.iter().all(plain)
    }

    /// Runs a step by its bucket; false, with nothing run, where that could not be captured.
    fn run_bucket(&mut self, shape: StepShape) -> Result<bool> {
        let keys = self.config.max_context;
        let Self { graphs, backend, host, requests, state, stream, comm, model, .. } = self;
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
            let (view, plan) = (bucket.step.view()?, &bucket.plan);
            let captured = stream.capture(|stream| {
                let mut live = StreamExecutor::<B>::new(stream, comm);
                model.step(&mut Exec::new(&mut live), state, view, plan)
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
        let Self { host, requests, state, eager, stream, comm, model, kept, .. } = self;
        let (Eager { step, plan, wide }, last) = (eager, model.blocks.len());
        fill(&mut step.begin(shape)?, host, requests, model)?;
        let (words, to) = step.upload_parts();
        stream.upload(words, to)?;
        stream.plan_attention(shape, plan)?;
        let mut tap = |stream: &mut B::Stream, layer: usize, rows: MatRef<'_, Mem<B>>| {
            if requests.values().all(|l| l.want.hidden.place(layer, last).is_none()) {
                return Ok(());
            }
            let wide = wide.as_mut().ok_or_else(|| lost("the buffer for hidden states"))?;
            let values = read_f32::<B>(stream, wide, rows)?;
            keep_hidden(host, requests, kept, (layer, last), &values, rows.cols());
            Ok(())
        };
        let tap: Option<Tap<'_, B>> = if wants_hidden { Some(&mut tap) } else { None };
        let mut live = StreamExecutor::<B> { stream, comm, probe: probe.as_mut(), tap };
        model.step(&mut Exec::new(&mut live), state, step.view()?, plan)?;
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
            (&self.state.scratch.logits, self.requests.values().any(|l| l.want.logits))
        else {
            return Ok(());
        };
        let cols = logits.cols();
        let mut values = vec![0.0; shape.rows * cols];
        let ticket = self.stream.download(logits.view(shape.rows)?.as_f32()?)?;
        block_on(self.stream.collect(ticket, &mut values))?;
        let mut from = 0;
        for slice in &self.host.batch.slices {
            let id = self.host.scheduler.running()[slice.index].id;
            let wants = self.want(id).logits;
            let end = from + self.rows_of(slice) * cols;
            if let (true, Some(kept)) = (wants, self.kept.get_mut(&id)) {
                kept.logits.extend_from_slice(&values[from..end]);
            }
            from = end;
        }
        Ok(())
    }

    /// Records progress and sampled tokens; ends what is finished.
    fn apply(&mut self, out: &mut Vec<Output>) -> Result<()> {
        let mut row = 0;
        self.host.ended.clear();
        for i in 0..self.host.batch.slices.len() {
            let slice = self.host.batch.slices[i];
            row += self.rows_of(&slice);
            let seq =
                self.host.scheduler.running_mut(slice.index).ok_or_else(|| lost("a running sequence"))?;
            seq.done += slice.len;
            if !slice.samples {
                continue;
            }
            let (id, mut token) = (seq.id, None);
            if seq.tokens.len() < seq.limit {
                let sampled = self.host.tokens[row - 1];
                seq.tokens.push(sampled);
                token = Some(sampled);
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
    kept: &mut BTreeMap<u64, Kept>,
    (layer, last): (usize, usize),
    values: &[f32],
    cols: usize,
) {
    let mut from = 0;
    for slice in &host.batch.slices {
        let id = host.scheduler.running()[slice.index].id;
        let end = from + slice.len * cols;
        let place = requests.get(&id).and_then(|l| l.want.hidden.place(layer, last));
        if let (Some(place), Some(kept)) = (place, kept.get_mut(&id)) {
            kept.add_hidden(place, &values[from..end]);
        }
        from = end;
    }
}

/// Writes a batch into a step's host image.
fn fill<D: Device>(
    fill: &mut StepFill<'_>,
    host: &HostState,
    requests: &BTreeMap<u64, Live>,
    model: &Model<D>,
) -> Result<()> {
    let (mut token, mut want) = (0, 0);
    for (s, slice) in host.batch.slices.iter().enumerate() {
        let seq = &host.scheduler.running()[slice.index];
        let all = requests.get(&seq.id).is_some_and(|l| l.want.logits) && model.spec.head.is_per_token();
        // Rotation is all that reads positions of a model with two lists of divisors.
        let shift = model.rope_shift(seq.prompt);
        for position in slice.start..slice.start + slice.len {
            let slot = host.tables.slot(seq.row, position);
            fill.token(token, seq.tokens[position], position as u32 + shift, slot, 0);
            if let Some(before) = position.checked_sub(1) {
                fill.before(token, host.tables.slot(seq.row, before));
            }
            let last = position + 1 == slice.start + slice.len;
            let samples = last && slice.samples && seq.tokens.len() < seq.limit;
            if all || (last && slice.samples) {
                let sample = if samples { Some((seq.row, position as u32 + 1)) } else { None };
                fill.want(want, token as u32, sample);
                want += 1;
            }
            token += 1;
        }
        fill.seq(s, token, seq.row, (slice.start + slice.len) as u32);
    }
    for (i, (index, page)) in host.tables.changes().iter().enumerate() {
        fill.table_edit(i, *index, *page);
    }
    Ok(())
}
