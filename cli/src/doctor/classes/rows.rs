//! Look-ups, rows and words that are moved, sampling.

use super::class::{Built, Entry, Size, Work, rows_of, send};
use super::maker::Maker;
use engraft::engraft_core::backend::Backend;
use engraft::engraft_core::mem::{NO_ROW, WeightFormat, WeightUse};
use engraft::engraft_core::ops::{
    Embed, EmbedOpKind, FeedTokens, GatherRows, MarkSeen, RowsOpKind, Sample, SampleOpKind, Scatter,
};
use engraft::{Float, Result, SamplingParams};

/// What is looked up, moved or sampled.
#[derive(Debug, Clone, Copy)]
pub enum Of {
    Embed { add: bool },
    Gather,
    Scatter,
    MarkSeen,
    Feed,
    Sample { greedy: bool },
}

pub fn all() -> Vec<Entry<Of>> {
    vec![
        Entry::new(0, "look-up of tokens", EmbedOpKind::Embed, Of::Embed { add: false }),
        Entry::new(1, "look-up that is added", EmbedOpKind::EmbedAdd, Of::Embed { add: true }),
        Entry::new(0, "sampling, greedy", SampleOpKind::Sample, Of::Sample { greedy: true }),
        Entry::new(0, "sampling, top-k and top-p", SampleOpKind::Sample, Of::Sample { greedy: false }),
        Entry::new(1, "rows gathered", RowsOpKind::GatherRows, Of::Gather),
        Entry::new(1, "words scattered", RowsOpKind::Scatter, Of::Scatter),
        Entry::new(1, "seen tokens marked", RowsOpKind::MarkSeen, Of::MarkSeen),
        Entry::new(1, "tokens fed from the step before", RowsOpKind::FeedTokens, Of::Feed),
    ]
}

pub fn build<B: Backend>(of: Of, maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    match of {
        Of::Embed { add } => embed(maker, size, add),
        Of::Gather => gather(maker, size),
        Of::Scatter => scatter(maker, size),
        Of::MarkSeen => mark_seen(maker, size),
        Of::Feed => feed(maker, size),
        Of::Sample { greedy } => sample(maker, size, greedy),
    }
}

/// So many numbers below `limit`, far from each other.
fn spread(count: usize, limit: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 7919 % limit) as u32).collect()
}

fn embed<B: Backend>(maker: &mut Maker<'_, B>, size: Size, add: bool) -> Result<Built<B>> {
    let (tokens, vocab, cols) = (size.pick([16, 64, 256]), size.pick([512, 2048, 8192]), size.width());
    let format = WeightFormat::Plain(Float::F16);
    let (table, ids) =
        (maker.weight(vocab, cols, format, WeightUse::Embedding)?, maker.words(&spread(tokens, vocab))?);
    let (mut out, mut scratch) =
        (maker.blank(tokens, cols, Float::F32)?, maker.blank(tokens, cols, Float::F32)?);
    let work = Work::moves(tokens * cols * if add { 10 } else { 6 });
    let shape = format!("{}, {cols} columns of f16, {vocab} tokens", rows_of(tokens));
    Ok(Built::new(shape, work, move |to| {
        let add = add.then(|| scratch.view_mut(tokens)).transpose()?;
        send(to, Embed { ids: ids.view(), table: &table, add, out: out.view_mut(tokens)? })
    }))
}

fn gather<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (count, all, cols) = (size.pick([16, 64, 256]), size.pick([64, 256, 1024]), size.width());
    let (x, rows) = (maker.mat(all, cols, Float::F32)?, maker.words(&spread(count, all))?);
    let mut out = maker.blank(count, cols, Float::F32)?;
    let work = Work::moves(8 * count * cols);
    Ok(Built::new(format!("{}, {cols} columns", rows_of(count)), work, move |to| {
        send(to, GatherRows { x: x.view(all)?, rows: rows.view(), out: out.view_mut(count)? })
    }))
}

fn scatter<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (pairs, words) = (size.pick([64, 256, 1024]), 1 << 16);
    let (pairs_of, mut dst) = (maker.words(&spread(2 * pairs, words))?, maker.words(&vec![0; words])?);
    Ok(Built::new(format!("{pairs} words"), Work::moves(12 * pairs), move |to| {
        send(to, Scatter { pairs: pairs_of.view(), dst: dst.view_mut() })
    }))
}

fn mark_seen<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let (count, vocab) = (size.pick([64, 256, 1024]), size.pick([2048, 32_768, 131_072]));
    let words = vocab / 32;
    let (ids, mut seen) = (maker.words(&spread(count, vocab))?, maker.words(&vec![0; words])?);
    let work = Work::moves(4 * words + 8 * count);
    Ok(Built::new(format!("{count} of {vocab} tokens"), work, move |to| {
        send(to, MarkSeen { ids: ids.view(), slot: 0, words, seen: seen.view_mut() })
    }))
}

fn feed<B: Backend>(maker: &mut Maker<'_, B>, size: Size) -> Result<Built<B>> {
    let tokens = size.pick([16, 64, 256]);
    let rows: Vec<u32> = (0..tokens as u32).map(|row| if row % 2 == 0 { row } else { NO_ROW }).collect();
    let words = |maker: &mut Maker<'_, B>| maker.words(&spread(tokens, 1 << 15));
    let (ids, feeds, last) = (words(maker)?, maker.words(&rows)?, words(maker)?);
    let mut out = maker.words(&vec![0; tokens])?;
    Ok(Built::new(format!("{tokens} tokens"), Work::moves(16 * tokens), move |to| {
        send(to, FeedTokens { ids: ids.view(), feeds: feeds.view(), last: last.view(), out: out.view_mut() })
    }))
}

fn sample<B: Backend>(maker: &mut Maker<'_, B>, size: Size, greedy: bool) -> Result<Built<B>> {
    let vocab = size.pick([2048, 32_768, 131_072]);
    let by_chance = SamplingParams {
        temperature: 0.7,
        top_k: 50,
        top_p: 0.9,
        seed: Some(1),
        ..SamplingParams::default()
    };
    let params = if greedy { SamplingParams::default() } else { by_chance };
    let (logits, table) = (maker.mat(1, vocab, Float::F32)?, maker.samples(&[params.row(0, 0, 0, -1)])?);
    let (slots, positions) = (maker.words(&[0])?, maker.words(&[1])?);
    let seen_words = vocab / 32;
    let (mut seen, mut out) = (maker.words(&vec![0; seen_words])?, maker.words(&[0])?);
    Ok(Built::new(format!("1 row of {vocab} logits"), Work::moves(4 * vocab), move |to| {
        let (table, slots, positions) = (table.view(), slots.view(), positions.view());
        let (seen, out) = (seen.view_mut(), out.view_mut());
        send(to, Sample { logits: logits.view(1)?, table, slots, positions, seen, seen_words, out })
    }))
}
