//! Random weights of a named shape, written to a file, so that loading is real loading.
//!
//! Plain element types become a folder with safetensors under LLaMA's published names, block formats a GGUF
//! file. The file is written by as many threads as there are, a tensor each. Values are uniform with variance
//! 1 / inputs, so that activations stay in range. The conformance suite includes this file and the list of
//! shapes, to count what a decode step of a named shape reads.

use super::shapes::{SHAPES, Shape};
use engraft_core::mem::{Block, Stored};
use engraft_core::{Error, Result, quant};
use half::{bf16, f16};
use serde_json::json;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Positions of every shape.
const POSITIONS: usize = 131_072;

/// Parses a shape's name.
pub fn shape(text: &str) -> Result<Shape, String> {
    let found = SHAPES.iter().find(|s| s.name.eq_ignore_ascii_case(text));
    let names: Vec<&str> = SHAPES.iter().map(|s| s.name).collect();
    found.copied().ok_or_else(|| format!("unknown shape; there are {}", names.join(", ")))
}

/// Parses a format that weights can be written in.
pub fn weights(text: &str) -> Result<Stored, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "f32" => Stored::F32,
        "f16" => Stored::F16,
        "bf16" => Stored::Bf16,
        "q4_0" => Stored::Block(Block::Q4_0),
        "q4_1" => Stored::Block(Block::Q4_1),
        "q5_0" => Stored::Block(Block::Q5_0),
        "q5_1" => Stored::Block(Block::Q5_1),
        "q8_0" => Stored::Block(Block::Q8_0),
        "q2_k" => Stored::Block(Block::Q2K),
        "q3_k" => Stored::Block(Block::Q3K),
        "q4_k" => Stored::Block(Block::Q4K),
        "q5_k" => Stored::Block(Block::Q5K),
        "q6_k" => Stored::Block(Block::Q6K),
        "iq4_nl" => Stored::Block(Block::Iq4Nl),
        "iq4_xs" => Stored::Block(Block::Iq4Xs),
        _ => {
            let all =
                "f32, f16, bf16, q4_0, q4_1, q5_0, q5_1, q8_0, q2_k, q3_k, q4_k, q5_k, q6_k, iq4_nl, iq4_xs";
            return Err(format!("allowed: {all}"));
        }
    })
}

/// One tensor to write: names of both layouts, `[rows, cols]`, or a vector when `rows` is 0.
struct Tensor {
    names: [String; 2],
    rows: usize,
    cols: usize,
}

impl Tensor {
    fn shape(&self) -> Vec<usize> {
        if self.rows == 0 { vec![self.cols] } else { vec![self.rows, self.cols] }
    }

    /// Norm weights stay f32 in block files.
    fn stored(&self, weights: Stored) -> Stored {
        match (self.rows, weights) {
            (0, Stored::Block(_)) => Stored::F32,
            _ => weights,
        }
    }

    fn bytes(&self, weights: Stored) -> Result<usize> {
        let what = "columns that are no multiple of the block";
        let n = self.rows.max(1) * self.cols;
        self.stored(weights).bytes(n).ok_or_else(|| Error::tensor(&self.names[0], what))
    }
}

impl Shape {
    fn tensors(&self) -> Vec<Tensor> {
        let (h, kv) = (self.hidden, self.hidden / self.heads * self.kv_heads);
        let mut all = Vec::new();
        let mut add = |hf: String, gguf: String, rows, cols| {
            let names = [format!("{hf}.weight"), format!("{gguf}.weight")];
            all.push(Tensor { names, rows, cols });
        };
        add("model.embed_tokens".into(), "token_embd".into(), self.vocab, h);
        for l in 0..self.layers {
            for (hf, gguf, rows, cols) in [
                ("input_layernorm", "attn_norm", 0, h),
                ("self_attn.q_proj", "attn_q", h, h),
                ("self_attn.k_proj", "attn_k", kv, h),
                ("self_attn.v_proj", "attn_v", kv, h),
                ("self_attn.o_proj", "attn_output", h, h),
                ("post_attention_layernorm", "ffn_norm", 0, h),
                ("mlp.gate_proj", "ffn_gate", self.inner, h),
                ("mlp.up_proj", "ffn_up", self.inner, h),
                ("mlp.down_proj", "ffn_down", h, self.inner),
            ] {
                add(format!("model.layers.{l}.{hf}"), format!("blk.{l}.{gguf}"), rows, cols);
            }
        }
        add("model.norm".into(), "output_norm".into(), 0, h);
        if !self.tied {
            add("lm_head".into(), "output".into(), self.vocab, h);
        }
        all
    }

    /// Writes the checkpoint into the folder `out` and returns what to open.
    ///
    /// # Errors
    /// `Io` from writing; `Tensor` when the shape's columns cannot be split into blocks.
    pub fn write(&self, weights: Stored, out: &Path) -> Result<PathBuf> {
        self.write_by(std::thread::available_parallelism().map_or(1, usize::from), weights, out)
    }

    /// The same by so many threads; no byte depends on their number.
    fn write_by(&self, threads: usize, weights: Stored, out: &Path) -> Result<PathBuf> {
        std::fs::create_dir_all(out).map_err(|e| Error::io(out, e))?;
        let path = self.path(weights, out);
        let tensors = self.tensors();
        let block = matches!(weights, Stored::Block(_));
        let head =
            if block { self.gguf_head(weights, &tensors)? } else { safetensors_head(weights, &tensors)? };
        let alignment = if block { ALIGNMENT } else { 1 };
        let mut file = Parallel { path: &path, tensors: &tensors, weights, alignment, places: Vec::new() };
        let mut at = head.len() as u64;
        for t in &tensors {
            let bytes = t.bytes(weights)?.next_multiple_of(alignment) as u64;
            file.places.push((at, bytes));
            at += bytes;
        }
        file.write(threads, &head, at).map_err(|e| Error::io(&path, e))?;
        if block {
            return Ok(path);
        }
        let config = out.join("config.json");
        std::fs::write(&config, self.config().to_string()).map_err(|e| Error::io(&config, e))?;
        Ok(out.into())
    }

    /// What [`Shape::write`] returns.
    pub fn model(&self, weights: Stored, out: &Path) -> PathBuf {
        if matches!(weights, Stored::Block(_)) { self.path(weights, out) } else { out.into() }
    }

    fn path(&self, weights: Stored, out: &Path) -> PathBuf {
        let block = matches!(weights, Stored::Block(_));
        out.join(if block { "model.gguf" } else { "model.safetensors" })
    }

    fn config(&self) -> serde_json::Value {
        json!({
            "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
            "hidden_size": self.hidden, "num_hidden_layers": self.layers, "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads, "intermediate_size": self.inner, "vocab_size": self.vocab,
            "tie_word_embeddings": self.tied, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "max_position_embeddings": POSITIONS,
        })
    }

    fn gguf_head(&self, weights: Stored, tensors: &[Tensor]) -> Result<Vec<u8>> {
        let mut head = b"GGUF".to_vec();
        let (pairs, count) = self.gguf_pairs();
        head.extend(3u32.to_le_bytes());
        head.extend((tensors.len() as u64).to_le_bytes());
        head.extend((count as u64).to_le_bytes());
        head.extend(pairs);
        let mut at = 0usize;
        for t in tensors {
            put_text(&mut head, &t.names[1]);
            let shape = t.shape();
            head.extend((shape.len() as u32).to_le_bytes());
            shape.iter().rev().for_each(|d| head.extend((*d as u64).to_le_bytes()));
            head.extend(gguf_type(t.stored(weights)).to_le_bytes());
            head.extend((at as u64).to_le_bytes());
            at += t.bytes(weights)?.next_multiple_of(ALIGNMENT);
        }
        head.resize(head.len().next_multiple_of(ALIGNMENT), 0);
        Ok(head)
    }

    fn gguf_pairs(&self) -> (Vec<u8>, usize) {
        let mut out = Vec::new();
        put_text(&mut out, "general.architecture");
        out.extend(8u32.to_le_bytes());
        put_text(&mut out, "llama");
        let numbers = [
            ("block_count", self.layers),
            ("embedding_length", self.hidden),
            ("feed_forward_length", self.inner),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("context_length", POSITIONS),
        ];
        for (key, n) in numbers {
            put_text(&mut out, &format!("llama.{key}"));
            out.extend(4u32.to_le_bytes());
            out.extend((n as u32).to_le_bytes());
        }
        put_text(&mut out, "llama.attention.layer_norm_rms_epsilon");
        out.extend(6u32.to_le_bytes());
        out.extend(1e-5f32.to_le_bytes());
        (out, numbers.len() + 2)
    }
}

const ALIGNMENT: usize = 32;

fn safetensors_head(weights: Stored, tensors: &[Tensor]) -> Result<Vec<u8>> {
    let (mut header, mut at) = (serde_json::Map::new(), 0);
    for t in tensors {
        let end = at + t.bytes(weights)?;
        let dtype = weights.name().to_ascii_uppercase();
        let entry = json!({"dtype": dtype, "shape": t.shape(), "data_offsets": [at, end]});
        header.insert(t.names[0].clone(), entry);
        at = end;
    }
    let mut header = serde_json::Value::Object(header).to_string();
    while !header.len().is_multiple_of(8) {
        header.push(' ');
    }
    Ok([&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat())
}

/// A file whose tensors are written by several threads, each at its place.
struct Parallel<'a> {
    path: &'a Path,
    tensors: &'a [Tensor],
    weights: Stored,
    alignment: usize,
    /// First byte and bytes of each tensor.
    places: Vec<(u64, u64)>,
}

impl Parallel<'_> {
    fn write(&self, threads: usize, head: &[u8], bytes: u64) -> std::io::Result<()> {
        let mut file = File::create(self.path)?;
        file.write_all(head)?;
        file.set_len(bytes)?;
        // The largest first: whoever takes one last would be waited for.
        let mut order: Vec<usize> = (0..self.tensors.len()).collect();
        order.sort_by_key(|i| std::cmp::Reverse(self.places[*i].1));
        let next = AtomicUsize::new(0);
        let work = || -> std::io::Result<()> {
            while let Some(i) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.tensor(*i)?;
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            let others: Vec<_> = (1..threads.min(order.len())).map(|_| scope.spawn(work)).collect();
            let panicked = |_| Err(std::io::Error::other("a writing thread panicked"));
            let mine = work();
            others.into_iter().map(|other| other.join().unwrap_or_else(panicked)).fold(mine, Result::and)
        })
    }

    fn tensor(&self, i: usize) -> std::io::Result<()> {
        let mut file = File::options().write(true).open(self.path)?;
        file.seek(SeekFrom::Start(self.places[i].0))?;
        let mut to = BufWriter::with_capacity(1 << 20, file);
        write_values(&self.tensors[i], i, self.weights, self.alignment, &mut to)?;
        to.flush()
    }
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// The format's number in GGUF files.
fn gguf_type(stored: Stored) -> u32 {
    match stored {
        Stored::Block(Block::Q4_0) => 2,
        Stored::Block(Block::Q4_1) => 3,
        Stored::Block(Block::Q5_0) => 6,
        Stored::Block(Block::Q5_1) => 7,
        Stored::Block(Block::Q8_0) => 8,
        Stored::Block(Block::Q2K) => 10,
        Stored::Block(Block::Q3K) => 11,
        Stored::Block(Block::Q4K) => 12,
        Stored::Block(Block::Q5K) => 13,
        Stored::Block(Block::Q6K) => 14,
        Stored::Block(Block::Iq4Nl) => 20,
        Stored::Block(Block::Iq4Xs) => 23,
        _ => 0,
    }
}

/// Random values of a tensor in rows' pieces, padded to `alignment` at the end.
fn write_values(
    t: &Tensor,
    seed: usize,
    weights: Stored,
    alignment: usize,
    to: &mut impl Write,
) -> std::io::Result<()> {
    let stored = t.stored(weights);
    let scale = (3.0 / t.cols as f32).sqrt();
    let mut state = (seed as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let (mut row, mut raw, mut written) = (vec![1f32; t.cols], Vec::new(), 0);
    for _ in 0..t.rows.max(1) {
        if t.rows > 0 {
            row.iter_mut().for_each(|v| *v = uniform(&mut state) * scale);
        }
        raw.clear();
        match stored {
            Stored::F16 => row.iter().for_each(|v| raw.extend(f16::from_f32(*v).to_le_bytes())),
            Stored::Bf16 => row.iter().for_each(|v| raw.extend(bf16::from_f32(*v).to_le_bytes())),
            Stored::Block(block) if block.is_large() => {
                random_blocks(block, scale, &mut state, t.cols / Block::LARGE, &mut raw);
            }
            Stored::Block(block) => {
                raw.resize(t.cols / Block::VALUES * block.bytes(), 0);
                quant::block::encode(block, &row, &mut raw);
            }
            _ => row.iter().for_each(|v| raw.extend(v.to_le_bytes())),
        }
        to.write_all(&raw)?;
        written += raw.len();
    }
    to.write_all(&vec![0; written.next_multiple_of(alignment) - written])
}

/// Blocks of 256 values: random codes under scales that give about the wanted values. The search for the
/// scales of given values would take most of the time.
fn random_blocks(block: Block, scale: f32, state: &mut u64, count: usize, raw: &mut Vec<u8>) {
    // Where the f16 scales lie, the largest product of small scale and code, the largest small minimum.
    let (d, e, top, least) = match block {
        Block::Q2K => (80, Some(82), 45.0, 15.0),
        Block::Q3K => (108, None, 128.0, 1.0),
        Block::Q4K => (0, Some(2), 945.0, 63.0),
        Block::Q5K => (0, Some(2), 1953.0, 63.0),
        Block::Iq4Xs => (0, None, 4064.0, 1.0),
        _ => (208, None, 4096.0, 1.0),
    };
    for _ in 0..count {
        let at = raw.len();
        raw.extend((0..block.bytes()).map(|_| (uniform(state) * 128.0) as i8 as u8));
        let factor = if e.is_some() { 2.0 * scale } else { scale };
        raw[at + d..at + d + 2].copy_from_slice(&f16::from_f32(factor / top).to_le_bytes());
        if let Some(e) = e {
            raw[at + e..at + e + 2].copy_from_slice(&f16::from_f32(scale / least).to_le_bytes());
        }
    }
}

/// From -1 to 1 (xorshift64*, Vigna 2016): quality beyond "no pattern" is not needed here.
fn uniform(state: &mut u64) -> f32 {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    let bits = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 40;
    bits as f32 * (2.0 / (1 << 24) as f32) - 1.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_depends_on_the_number_of_threads() {
        let folder = std::env::temp_dir().join(format!("engraft-shape-{}", std::process::id()));
        for weights in [Stored::Bf16, Stored::Block(Block::Q4_0)] {
            let written = [1, 5].map(|threads| {
                let out = folder.join(threads.to_string());
                shape("tiny").unwrap().write_by(threads, weights, &out).unwrap();
                std::fs::read(shape("tiny").unwrap().path(weights, &out)).unwrap()
            });
            assert!(written[0] == written[1] && written[0].len() > 50_000, "{weights:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
