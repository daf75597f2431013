//! A request taken out of an engine as bytes, and continued by another one.
//!
//! The bytes are a header of JSON and the keys and values of every position, in one layout for every backend:
//! layer by layer, keys then values, `[position][head][column]` in the element type of the cache, codes
//! behind the scale of their head; what filters keep behind those of their layer. Between the two is the
//! sound that an encoder reads, as f32: its positions are the first, as those of a text are. A restored
//! request waits as a preempted one does, and its whole pages are in the prefix cache: it goes on with a hit,
//! and computes the positions behind it. Where there is no room, for the pages or for what they go to the
//! device in, or no prefix cache, it computes all of them, with the same bits.
//!
//! Only an engine that gives the same bits takes a request: the same description of the model, the same
//! weights (known by a checksum of every tensor), element types, version (no patch changes a bit)
//! and model of device, whichever of several; another device only where both follow the reference order with
//! the same multiply-add. In `Fast`, which promises no bits, the request goes on with those of whoever
//! continues it.
//!
//! The checksum at the end tells what is damaged, not what is forged. Keys and values that come in so are
//! therefore read by the restored request alone, and never taken for a prefix of others.

use super::api::Engine;
use super::cached::{Kept as Slab, without_padding};
use super::coordinator::Live;
use super::kept::Kept;
use super::request::{Request, Want};
use crate::backend::{Backend, Stream};
use crate::kv::{CachedPrefix, PrefixKey};
use crate::mem::{Float, KvFormat, KvLayout};
use crate::numerics::Mode;
use crate::policy::Family;
use crate::sample::{Rules, SamplingParams};
use crate::schedule::{Sequence, Standing};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// What the bytes begin with.
const MAGIC: &[u8; 8] = b"engraft\x06";
/// In errors.
const NAME: &str = "a saved request";

/// What a request's bits depend on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Origin {
    arch: String,
    /// Checksum of the model's description: what its configuration says.
    model: u32,
    weights: u32,
    dtype: Float,
    kv_dtype: KvFormat,
    /// Of the numerics: major and minor.
    version: String,
    /// The kind of backend, and its device's name.
    device: String,
    mode: String,
    madd: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    origin: Origin,
    tokens: Vec<u32>,
    prompt: usize,
    limit: usize,
    /// Tokens in front that an encoder reads, and positions that they take.
    source: [usize; 2],
    /// Values of the sound that it reads, which follow.
    features: usize,
    /// Positions whose keys and values follow.
    positions: usize,
    sampling: SamplingParams,
    rules: Option<Rules>,
    /// Of every token sampled so far, where they are kept.
    logprobs: Option<Vec<f32>>,
    subsequence: u32,
    stop_ids: Vec<u32>,
    cache_salt: String,
    skip_prefix_cache: bool,
    priority: i32,
    /// The number that a tenant's name stands for.
    owner: u64,
}

impl<B: Backend> Engine<B> {
    /// A request as it stands, to be continued by [`Engine::restore`], here or elsewhere: tokens, sampling,
    /// priority and tenant, and the keys and values of every position computed. It goes on here all the same.
    /// When it had to be begun (`start_within`) does not go with it.
    ///
    /// # Errors
    /// `Request` for one that is not there, or that keeps logits or hidden states (probabilities of tokens go
    /// with it); `Unsupported` on a rank of
    /// several, and for a model whose weights are not known by a checksum.
    pub fn save(&mut self, id: u64) -> Result<Vec<u8>> {
        self.has_whole_rows("saving a request")?;
        self.settle_copies()?;
        let scheduler = &self.coordinator.scheduler;
        let siblings = self.coordinator.siblings.values().flatten();
        let mut all = scheduler.running().chain(scheduler.waiting()).chain(siblings);
        let sequence = all.find(|seq| seq.id == id);
        let no = |what: &str| Error::Request { id, what: what.into() };
        let seq = sequence.ok_or_else(|| no("neither running nor waiting: it cannot be saved"))?;
        let live = &seq.data;
        let tokens_alone = Want { logprobs: false, ..live.want } == Want::default();
        let keeps = live.keeps && !live.want.logprobs;
        if keeps || !tokens_alone || !seq.asked.is_empty() || !live.values.is_empty() {
            return Err(no("it keeps logits or hidden states, or is a text of a call: it cannot be saved"));
        }
        let header = Header {
            origin: self.origin()?,
            tokens: seq.tokens.clone(),
            prompt: seq.prompt,
            limit: seq.limit,
            source: [seq.source, seq.source_positions],
            features: self.coordinator.spec.stem().map_or(0, |_| live.source.len()),
            positions: seq.done,
            sampling: live.sampling,
            rules: live.rules.as_deref().cloned(),
            logprobs: live.want.logprobs.then(|| live.kept.logprobs.clone()),
            subsequence: live.subsequence,
            stop_ids: live.stop_ids.clone(),
            cache_salt: live.cache_salt.clone(),
            skip_prefix_cache: live.skip_prefix_cache,
            priority: seq.standing.priority,
            owner: seq.standing.owner,
        };
        let pages = match seq.row {
            u32::MAX => Vec::new(),
            row => self.coordinator.kv.tables.pages(row).to_vec(),
        };
        let json = serde_json::to_vec(&header).map_err(|error| Error::internal(error.to_string()))?;
        let mut bytes = [&MAGIC[..], &(json.len() as u32).to_le_bytes(), &json].concat();
        let sound = live.source.iter().take(header.features);
        bytes.extend(sound.flat_map(|bits| bits.to_le_bytes()));
        let slabs: Vec<(Slab, KvLayout)> = self.runner.slabs().collect();
        if header.positions > 0 {
            let runner = &mut self.runner;
            let mut staging = runner.staging(pages.len() * runner.page_size)?;
            for slab in slabs {
                let read = runner.fetch(&mut staging, slab, &pages, header.positions)?;
                for (fetch, width) in read.into_iter().zip(slab.1.row_bytes()) {
                    let mut rows = runner.fetched(fetch)?;
                    without_padding(&mut rows, header.source, width);
                    bytes.extend(rows);
                }
            }
        }
        let sum = crc32fast::hash(&bytes);
        bytes.extend(sum.to_le_bytes());
        Ok(bytes)
    }

    /// Continues a request that [`Engine::save`] wrote; its number here. Its tokens are those that it would
    /// have had, in modes that promise results independent of chunks.
    ///
    /// Priority and tenant are those of the bytes: whoever takes bytes from strangers decides whether to
    /// believe them. Keys and values of the bytes change no other request's results, whatever they are.
    ///
    /// # Errors
    /// `Format` for bytes that are damaged or of another version; `Config` naming what differs for one of
    /// other weights, element types or numerics; as [`Engine::put`] for one that this engine could never
    /// hold. Nothing has changed then.
    pub fn restore(&mut self, bytes: &[u8]) -> Result<u64> {
        self.has_whole_rows("restoring a request")?;
        let (header, sound, rows) = parse(bytes)?;
        header.origin.check(&self.origin()?)?;
        let layouts: Vec<(Slab, KvLayout)> = self.runner.slabs().collect();
        let width = |(_, layout): &(Slab, KvLayout)| layout.row_bytes().iter().sum::<usize>();
        let wanted = layouts.iter().map(width).sum::<usize>().checked_mul(header.positions);
        if wanted != Some(rows.len()) {
            let what = format!("{} bytes of keys and values, {wanted:?} expected", rows.len());
            return Err(Error::format(NAME, what));
        }
        let header = self.in_pages(header, &sound)?;
        let sequence = self.sequence(&header, &sound)?;
        if let Some(prefix) = sequence.prefix.as_ref().filter(|_| header.positions > 0) {
            // The source of a copy may be free already, and is not to be filled before.
            self.settle_copies()?;
            let (key, tokens) = (prefix.key.clone(), header.tokens[..header.positions].to_vec());
            match self.import(&key, &tokens, &layouts, rows) {
                // Nothing of it is in the prefix cache: the request finds no page and computes all of them.
                Err(error @ Error::OutOfMemory { .. }) => {
                    tracing::warn!("a restored request is computed anew: {error}");
                }
                imported => imported?,
            }
        }
        let coordinator = &mut self.coordinator;
        let id = sequence.id;
        coordinator.scheduler.submit(sequence, &coordinator.kv)?;
        coordinator.next_id += 1;
        Ok(id)
    }

    fn origin(&self) -> Result<Origin> {
        let (model, config, numerics) = (self.model(), self.config(), self.backend().numerics());
        let no = |op: &str, reason: &str| Error::Unsupported {
            op: op.into(),
            backend: self.backend().name().into(),
            reason: reason.into(),
        };
        let Some(weights) = model.fingerprint else {
            return Err(no(
                "saved requests",
                "the model's weights have no checksum: it has blocks of its own",
            ));
        };
        if model.spec.family != Family::Decoder {
            return Err(no("saved requests", "an encoder has no requests that go on"));
        }
        Ok(Origin {
            arch: model.spec.arch.clone(),
            model: crc32fast::hash(format!("{:?}", model.spec).as_bytes()),
            weights,
            dtype: config.dtype,
            kv_dtype: config.kv_dtype,
            version: concat!(env!("CARGO_PKG_VERSION_MAJOR"), ".", env!("CARGO_PKG_VERSION_MINOR")).into(),
            device: device(self.backend().name(), &self.backend().caps().device),
            mode: format!("{:?}", numerics.mode).to_lowercase(),
            madd: format!("{:?}", numerics.madd).to_lowercase(),
        })
    }

    /// The same with what an encoder reads in whole pages of this engine. Where those are of another size,
    /// all positions are computed anew.
    ///
    /// # Errors
    /// `Format` for what no engine writes, `Request` for more than the encoder reads in a step.
    fn in_pages(&self, mut header: Header, sound: &[u32]) -> Result<Header> {
        let (coordinator, [source, positions]) = (&self.coordinator, header.source);
        let encodes = coordinator.spec.encoder.is_some();
        let some = [source, positions].map(|count| (count > 0) == encodes);
        if some != [true; 2] || source > positions || (encodes && positions >= header.prompt) {
            let what = format!("{source} tokens of an encoder at {positions} of {} positions", header.prompt);
            return Err(Error::format(NAME, what));
        }
        self.check_sound(&header, sound)?;
        let no = |what: String| Err(Error::Request { id: coordinator.next_id, what });
        let most = coordinator.config.max_step_tokens;
        if source > most {
            return no(format!("its encoder reads {source} tokens; a step holds {most}, `max_step_tokens`"));
        }
        if let Some(encoder) = &coordinator.spec.encoder {
            let (own, reads) = (coordinator.spec.max_positions, encoder.stack.max_positions);
            if source > reads || header.limit - positions > own {
                let decodes = header.limit - positions;
                return no(format!(
                    "its encoder reads {source} tokens of at most {reads}, its decoder {decodes} of at most {own}"
                ));
            }
        }
        let wanted = source.next_multiple_of(coordinator.config.page_size);
        if wanted == positions {
            return Ok(header);
        }
        let own = header.tokens.split_off(positions);
        header.tokens.truncate(source);
        header.tokens.resize(wanted, 0);
        header.tokens.extend(own);
        let moved = |position: usize| (position - positions).saturating_add(wanted);
        (header.prompt, header.limit) = (moved(header.prompt), moved(header.limit));
        (header.source, header.positions) = ([source, wanted], 0);
        Ok(header)
    }

    /// Refuses a sound that the model's encoder does not read, or that makes other rows than the header says.
    ///
    /// # Errors
    /// `Format`, `Request`.
    fn check_sound(&self, header: &Header, sound: &[u32]) -> Result<()> {
        let spec = &self.coordinator.spec;
        let Some(stem) = spec.encoder.as_ref().and_then(|encoder| encoder.stem()) else {
            return match sound.len() {
                0 => Ok(()),
                some => Err(Error::format(NAME, format!("{some} features; the model reads no sound"))),
            };
        };
        let features = sound.iter().map(|bits| f32::from_bits(*bits)).collect();
        let request = Request { features, ..Request::default() };
        request.check_features(self.coordinator.next_id, stem, usize::MAX)?;
        let (rows, said) = (stem.tokens_of(stem.frames_of(sound.len())), header.source[0]);
        match rows == said {
            true => Ok(()),
            false => Err(Error::format(NAME, format!("a sound of {rows} rows for {said}"))),
        }
    }

    /// The request, to be queued.
    fn sequence(&self, header: &Header, sound: &[u32]) -> Result<Sequence<Live>> {
        let coordinator = &self.coordinator;
        let (id, config) = (coordinator.next_id, &coordinator.config);
        header.sampling.validate()?;
        let vocab = coordinator.spec.vocab;
        if let Some(token) = header.tokens.iter().find(|token| **token as usize >= vocab) {
            return Err(Error::format(NAME, format!("token {token} is beyond the vocabulary of {vocab}")));
        }
        if header.limit > config.max_context {
            let what =
                format!("may come to {} tokens; the context holds {}", header.limit, config.max_context);
            return Err(Error::Request { id, what });
        }
        let rules = header.rules.clone().map(Arc::new);
        if let Some(rules) = &rules {
            rules.check(vocab)?;
        }
        let source = match sound {
            [] => header.tokens[..header.source[0]].into(),
            sound => sound.into(),
        };
        let (want, by_host) =
            (Want { logprobs: header.logprobs.is_some(), ..Want::default() }, rules.is_some());
        let live = Live {
            rules,
            want,
            keeps: want.logprobs,
            kept: Kept { logprobs: header.logprobs.clone().unwrap_or_default(), ..Kept::default() },
            stop_ids: header.stop_ids.clone(),
            sampling: header.sampling,
            subsequence: header.subsequence,
            shift: coordinator.shifts.of(header.prompt),
            cache_salt: header.cache_salt.clone(),
            skip_prefix_cache: header.skip_prefix_cache,
            source,
            private: (header.positions > 0).then_some(id),
            ..Live::default()
        };
        let prefix = coordinator.cached_prefix(header.prompt, &(0..0), &live).map(|prefix| {
            // What it has computed is its own, whether or not it reads what others have.
            let most = header.positions.min(header.tokens.len() - 1);
            CachedPrefix::new(prefix.key, most).behind(prefix.least)
        });
        let sequence = Sequence::new(id, header.tokens.clone(), 0, live);
        let standing = Standing { priority: header.priority, ..Standing::of(header.owner) };
        let [source, source_positions] = header.source;
        let sequence = Sequence { source, source_positions, by_host, ..sequence };
        let sequence = Sequence { prompt: header.prompt, limit: header.limit, prefix, standing, ..sequence };
        let (wanted, total) = (coordinator.kv.tables.pages_for(sequence.limit), coordinator.kv.pool.total());
        if wanted > total {
            return Err(Error::KvFull { wanted, free: coordinator.kv.pool.available(), total });
        }
        Ok(sequence)
    }

    /// Leaves the whole pages of saved positions in the prefix cache.
    fn import(
        &mut self,
        key: &PrefixKey,
        tokens: &[u32],
        layouts: &[(Slab, KvLayout)],
        bytes: &[u8],
    ) -> Result<()> {
        let (runner, size) = (&mut self.runner, self.coordinator.config.page_size);
        self.coordinator.kv.import(key, tokens, |kv, first, pages| {
            // Pages that made room go out before they are filled.
            runner.move_out(kv)?;
            let (mut rest, mut staging) = (bytes, runner.staging(pages.len() * size)?);
            let written = layouts.iter().try_for_each(|slab| {
                let mut part = |width: usize| {
                    let (own, behind) = rest.split_at(tokens.len() * width);
                    rest = behind;
                    let from = first * size * width;
                    &own[from..from + pages.len() * size * width]
                };
                let rows = slab.1.row_bytes().map(&mut part);
                runner.write_rows(&mut staging, *slab, pages, rows)
            });
            // Its memory goes with this call.
            runner.stream.sync().and(written)
        })
    }
}

impl Origin {
    /// Refuses a request of an engine that gives other bits than `here`.
    fn check(&self, here: &Origin) -> Result<()> {
        let reference = format!("{:?}", Mode::Reference).to_lowercase();
        let same_order = self.mode == reference && here.mode == reference && self.madd == here.madd;
        let hex = |sum: u32| format!("{sum:08x}");
        let fields = [
            ("version", self.version.clone(), here.version.clone()),
            ("architecture", self.arch.clone(), here.arch.clone()),
            ("configuration", hex(self.model), hex(here.model)),
            ("weights", hex(self.weights), hex(here.weights)),
            ("dtype", self.dtype.to_string(), here.dtype.to_string()),
            ("kv_dtype", self.kv_dtype.to_string(), here.kv_dtype.to_string()),
            ("mode", self.mode.clone(), here.mode.clone()),
            ("multiply-add", self.madd.clone(), here.madd.clone()),
        ];
        if let Some((name, saved, here)) = fields.into_iter().find(|(_, saved, here)| saved != here) {
            return Err(Error::config(format!("{name} of a saved request"), saved, here));
        }
        if self.device != here.device && !same_order {
            let allowed = format!("{}, or the mode {reference} on both", here.device);
            return Err(Error::config("device of a saved request", &self.device, allowed));
        }
        Ok(())
    }
}

/// The header, and the keys and values.
/// The header, the bits of the sound, keys and values.
fn parse(bytes: &[u8]) -> Result<(Header, Vec<u32>, &[u8])> {
    let no = |what: String| Error::format(NAME, what);
    let rest =
        bytes.strip_prefix(MAGIC).ok_or_else(|| no("does not begin as one of this version does".into()))?;
    let Some((body, sum)) = bytes.split_last_chunk::<4>().filter(|_| rest.len() >= 8) else {
        return Err(no(format!("{} bytes are too few", bytes.len())));
    };
    let (sum, found) = (u32::from_le_bytes(*sum), crc32fast::hash(body));
    if sum != found {
        return Err(no(format!("the checksum is {found:08x}, {sum:08x} expected: it is damaged")));
    }
    let rest = &body[MAGIC.len()..];
    let parts = rest
        .split_first_chunk::<4>()
        .and_then(|(len, rest)| rest.split_at_checked(u32::from_le_bytes(*len) as usize));
    let (json, rows) = parts.ok_or_else(|| no("the header is longer than the whole".into()))?;
    let header: Header = serde_json::from_slice(json).map_err(|error| no(format!("header: {error}")))?;
    let sound = header.features.checked_mul(4).and_then(|len| rows.split_at_checked(len));
    let (sound, rows) = sound.ok_or_else(|| no(format!("{} features are not all there", header.features)))?;
    let sound: Vec<u32> = sound.as_chunks::<4>().0.iter().copied().map(u32::from_le_bytes).collect();
    let sampled = header.tokens.len().saturating_sub(header.prompt);
    if let Some(kept) = header.logprobs.as_ref().filter(|kept| kept.len() != sampled) {
        return Err(no(format!("{} probabilities of {sampled} tokens", kept.len())));
    }
    let Header { tokens, prompt, limit, positions, .. } = &header;
    let len = tokens.len();
    if *prompt == 0 || *prompt > len || len > *limit || *positions > len {
        let what = format!("{prompt} tokens of prompt, {len} in all, at most {limit}, {positions} computed");
        return Err(no(what));
    }
    if len == *limit && len > *prompt {
        return Err(no(format!("it has ended: {len} tokens of at most {limit}")));
    }
    Ok((header, sound, rows))
}

/// What a backend of this name runs on: two devices of one model give the same bits.
fn device(backend: &str, model: &str) -> String {
    let kind = backend.split(':').next().unwrap_or(backend);
    format!("{kind}: {model}")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn origin(backend: &str, model: &str, mode: &str) -> Origin {
        Origin {
            arch: "llama".into(),
            model: 5,
            weights: 7,
            dtype: Float::F16,
            kv_dtype: Float::F16.into(),
            version: "1.2".into(),
            device: device(backend, model),
            mode: mode.into(),
            madd: "fused".into(),
        }
    }

    #[test]
    fn what_differs_is_named() {
        let here = origin("cpu", "x", "reference");
        let said = |there: Origin| there.check(&here).unwrap_err().to_string();
        assert!(origin("cpu", "x", "reference").check(&here).is_ok());
        let weights = said(Origin { weights: 8, ..origin("cpu", "x", "reference") });
        assert!(weights.contains("weights") && weights.contains("00000008"), "{weights}");
        let model = said(Origin { model: 8, ..origin("cpu", "x", "reference") });
        assert!(model.contains("configuration"), "{model}");
    }

    #[test]
    fn a_request_that_has_ended_is_refused() {
        let header = |limit| Header {
            origin: origin("cuda:0", "NVIDIA H200", "invariant"),
            tokens: vec![1; 33],
            prompt: 1,
            limit,
            source: [0, 0],
            features: 0,
            positions: 33,
            sampling: SamplingParams::default(),
            rules: None,
            logprobs: None,
            subsequence: 0,
            stop_ids: Vec::new(),
            cache_salt: String::new(),
            skip_prefix_cache: false,
            priority: 0,
            owner: 0,
        };
        let bytes = |limit| {
            let json = serde_json::to_vec(&header(limit)).unwrap();
            let bytes = [&MAGIC[..], &(json.len() as u32).to_le_bytes(), &json].concat();
            let sum = crc32fast::hash(&bytes);
            [bytes, sum.to_le_bytes().to_vec()].concat()
        };
        assert!(parse(&bytes(34)).is_ok());
        let said = parse(&bytes(33)).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("ended") && said.contains("33"), "{said}");
    }

    #[test]
    fn a_request_moves_between_devices_of_one_model_and_to_others_in_the_reference_order() {
        let saved = origin("cuda:0", "NVIDIA H200", "invariant");
        saved.check(&origin("cuda:1", "NVIDIA H200", "invariant")).unwrap();
        for (backend, model) in [("cuda:1", "NVIDIA H100"), ("wgpu:0", "NVIDIA H200")] {
            let said = saved.check(&origin(backend, model, "invariant")).unwrap_err().to_string();
            assert!(
                said.contains("NVIDIA H200") && said.contains(model) && said.contains("reference"),
                "{said}"
            );
            origin("cuda:0", "NVIDIA H200", "reference").check(&origin(backend, model, "reference")).unwrap();
        }
        let newer = Origin { version: "1.3".into(), ..saved.clone() };
        let said = newer.check(&saved).unwrap_err().to_string();
        assert!(said.contains("version") && said.contains("1.3") && said.contains("1.2"), "{said}");
    }
}
