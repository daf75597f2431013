//! GGUF files of every family that llama.cpp's converters write and that has a golden here: the golden is
//! rewritten as those converters do (names, row orders, norms plus one, experts stacked, metadata) and must
//! give its own numbers.

use crate::rewritten::{Named, Tensor, Tensors, below, golden, run, run_loaded, same};
use conformance::golden::Case;
use engraft_core::checkpoint::gguf::{Value as Meta, write::Writer};
use engraft_core::checkpoint::{Access, ModelFiles, open, open_gguf_bytes};
use engraft_core::inject::{InjectionPlan, inject};
use engraft_core::mem::{Block, Float, Stored, Weight, WeightFormat};
use engraft_core::model::Fused;
use engraft_core::policy::Registry;
use engraft_core::quant::{decode_rows, encode_rows};
use engraft_core::weights::LoadOptions;
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft_cpu::{Cpu, CpuConfig};
use serde_json::Value;

/// Names inside blocks and outside, old and new; the first that is found in a name is replaced.
const NAMES: [(&str, &str); 41] = [
    ("model.layers.", "blk."),
    ("transformer.h.", "blk."),
    ("gpt_neox.layers.", "blk."),
    ("model.embed_tokens.", "token_embd."),
    ("transformer.word_embeddings.", "token_embd."),
    ("gpt_neox.embed_in.", "token_embd."),
    ("gpt_neox.final_layer_norm.", "output_norm."),
    ("model.final_layernorm.", "output_norm."),
    ("transformer.ln_f.", "output_norm."),
    ("model.norm.", "output_norm."),
    ("lm_head.", "output."),
    ("embed_out.", "output."),
    ("block_sparse_moe.gate.", "ffn_gate_inp."),
    ("mlp.shared_expert_gate.", "ffn_gate_inp_shexp."),
    ("mlp.shared_expert.gate_proj.", "ffn_gate_shexp."),
    ("mlp.shared_expert.up_proj.", "ffn_up_shexp."),
    ("mlp.shared_expert.down_proj.", "ffn_down_shexp."),
    ("mlp.gate_up_proj.", "ffn_up."),
    ("mlp.gate_proj.", "ffn_gate."),
    ("mlp.gate.", "ffn_gate_inp."),
    ("mlp.up_proj.", "ffn_up."),
    ("mlp.down_proj.", "ffn_down."),
    ("mlp.c_fc.", "ffn_up."),
    ("mlp.c_proj.", "ffn_down."),
    ("mlp.fc1.", "ffn_up."),
    ("mlp.fc2.", "ffn_down."),
    ("mlp.dense_h_to_4h.", "ffn_up."),
    ("mlp.dense_4h_to_h.", "ffn_down."),
    ("self_attn.q_norm.", "attn_q_norm."),
    ("self_attn.k_norm.", "attn_k_norm."),
    ("self_attn.qkv_proj.", "attn_qkv."),
    ("self_attn.q_proj.", "attn_q."),
    ("self_attn.k_proj.", "attn_k."),
    ("self_attn.v_proj.", "attn_v."),
    ("self_attn.o_proj.", "attn_output."),
    ("self_attn.dense.", "attn_output."),
    ("self_attention.query_key_value.", "attn_qkv."),
    ("self_attention.dense.", "attn_output."),
    ("attention.query_key_value.", "attn_qkv."),
    ("attention.dense.", "attn_output."),
    ("input_layernorm.", "attn_norm."),
];

fn renamed(name: &str) -> String {
    NAMES.iter().fold(name.to_string(), |name, (old, new)| name.replace(old, new))
}

fn size(config: &Value, names: &[&str]) -> usize {
    names.iter().find_map(|n| config[*n].as_u64()).unwrap_or_else(|| panic!("none of {names:?}")) as usize
}

/// One file to be written.
struct Format {
    arch: &'static str,
    config: Value,
    tensors: Tensors,
    pairs: Vec<(&'static str, Meta)>,
    /// Blocks that tensors are stored in whose names have this part; others are in f32.
    blocks: Vec<(&'static str, Block)>,
}

impl Format {
    fn heads(&self) -> (usize, usize) {
        let heads = size(&self.config, &["num_attention_heads", "n_head"]);
        let kv = ["num_key_value_heads", "num_kv_heads"].iter().find_map(|n| self.config[*n].as_u64());
        (heads, kv.map_or(heads, |n| n as usize))
    }

    fn with(mut self, key: &'static str, value: Meta) -> Self {
        self.pairs.push((key, value));
        self
    }

    /// Other names, for those that mean different things in different families.
    fn also(mut self, pairs: &[(&str, &str)]) -> Self {
        let rename = |name: &str| pairs.iter().fold(name.to_string(), |n, (old, new)| n.replace(old, new));
        self.tensors = self.tensors.into_iter().map(|(n, t)| (rename(&n), t)).collect();
        self
    }

    /// Changes every tensor whose name has `part`.
    fn change(mut self, part: &str, change: impl Fn(&mut Tensor)) -> Self {
        self.tensors.iter_mut().filter(|(n, _)| n.contains(part)).for_each(|(_, t)| change(t));
        self
    }

    /// A fused q|k|v whose groups of query heads have their key and value behind them, as all q, all k, all
    /// v.
    fn ungrouped(self, groups: usize) -> Self {
        let (heads, _) = self.heads();
        let per = heads / groups;
        self.change("attn_qkv", |t| {
            let width = t.shape[0] / (groups * (per + 2));
            let row = |g: usize, piece: usize, r: usize| (g * (per + 2) + piece) * width + r;
            let all = |from: usize, to: usize| {
                let pieces = (0..groups).flat_map(move |g| (from..to).map(move |p| (g, p)));
                pieces.flat_map(move |(g, p)| (0..width).map(move |r| row(g, p, r))).collect::<Vec<_>>()
            };
            *t = t.ordered(&[all(0, per), all(per, per + 1), all(per + 1, per + 2)].concat());
        })
    }

    /// Experts in one tensor each.
    fn stacked(mut self, expert: &str, parts: [(&str, &str); 3]) -> Self {
        let layers = size(&self.config, &["num_hidden_layers"]);
        for layer in 0..layers {
            for (old, new) in parts {
                let name = |e: usize| format!("blk.{layer}.{}", expert.replace("{}", &e.to_string()) + old);
                let all: Vec<Tensor> = (0..).map_while(|e| self.tensors.remove(&name(e))).collect();
                if all.is_empty() {
                    continue;
                }
                let mut stacked = below(&all.iter().collect::<Vec<_>>());
                stacked.shape = vec![all.len(), all[0].shape[0], all[0].shape[1]];
                self.tensors.insert(format!("blk.{layer}.{new}.weight"), stacked);
            }
        }
        self
    }

    fn file(&self) -> Vec<u8> {
        let (heads, kv) = self.heads();
        let hidden = size(&self.config, &["hidden_size"]);
        let width = self.config["head_dim"].as_u64().map_or(hidden / heads, |n| n as usize);
        let positions = self.config["max_position_embeddings"].as_u64().unwrap_or(64) as usize;
        let inner = ["intermediate_size", "ffn_hidden_size"].iter().find_map(|n| self.config[*n].as_u64());
        let mut file = Writer::new().text("general.architecture", self.arch);
        let count = |n: usize| Meta::U32(n as u32);
        let pairs = [
            ("block_count", count(size(&self.config, &["num_hidden_layers", "n_layer"]))),
            ("embedding_length", count(hidden)),
            ("feed_forward_length", count(inner.unwrap_or(4 * hidden as u64) as usize)),
            ("attention.head_count", count(heads)),
            ("attention.head_count_kv", count(kv)),
            ("attention.key_length", count(width)),
            ("attention.value_length", count(width)),
            ("context_length", count(positions)),
        ];
        for (key, value) in pairs.iter().chain(&self.pairs) {
            file = file.pair(&format!("{}.{key}", self.arch), value);
        }
        for (key, names) in [
            ("attention.layer_norm_rms_epsilon", &["rms_norm_eps"][..]),
            ("attention.layer_norm_epsilon", &["layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"][..]),
            ("rope.freq_base", &["rope_theta", "rotary_emb_base"][..]),
        ] {
            if let Some(n) = names.iter().find_map(|n| self.config[*n].as_f64()) {
                file = file.pair(&format!("{}.{key}", self.arch), &Meta::F32(n as f32));
            }
        }
        let part = ["partial_rotary_factor", "rotary_pct"].iter().find_map(|n| self.config[*n].as_f64());
        if let Some(part) = part {
            let rotated = (part * width as f64) as usize;
            file = file.pair(&format!("{}.rope.dimension_count", self.arch), &count(rotated));
        }
        if let Some(window) = self.config["sliding_window"].as_u64().filter(|w| *w > 0) {
            file = file.pair(&format!("{}.attention.sliding_window", self.arch), &count(window as usize));
        }
        for (name, tensor) in &self.tensors {
            let block = self.blocks.iter().find(|(part, _)| name.contains(part)).map(|(_, block)| *block);
            let (stored, bytes) = match block {
                Some(block) => (Stored::Block(block), encoded(block, tensor)),
                None => (Stored::F32, tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect()),
            };
            file = file.tensor(name, &tensor.shape, stored, &bytes).unwrap();
        }
        file.finish()
    }

    fn check(self, case: &Named) {
        let files = open_gguf_bytes("m.gguf", self.file().into()).unwrap();
        same(&format!("{} in GGUF", case.name), &case.case, &run(&case.case, &files), None);
    }
}

/// A matrix in blocks.
fn encoded(block: Block, tensor: &Tensor) -> Vec<u8> {
    let format = WeightFormat::Block(block);
    let mut bytes = vec![0; format.bytes(tensor.shape[0], tensor.cols())];
    encode_rows(format, tensor.cols(), &tensor.values, &mut bytes);
    bytes
}

/// A golden in GGUF's names.
fn format(name: &'static str, arch: &'static str) -> (Named, Format) {
    let (case, config, tensors) = golden(name);
    let tensors = tensors.into_iter().map(|(n, t)| (renamed(&n), t)).collect();
    (Named { name, case }, Format { arch, config, tensors, pairs: Vec::new(), blocks: Vec::new() })
}

const AFTER: [(&str, &str); 1] = [("post_attention_layernorm.", "ffn_norm.")];

/// Four norms a block (Gemma 2 and 3).
const FOUR: [(&str, &str); 3] = [
    ("post_attention_layernorm.", "post_attention_norm."),
    ("pre_feedforward_layernorm.", "ffn_norm."),
    ("post_feedforward_layernorm.", "post_ffw_norm."),
];

/// Rotary pairs side by side, as the converter of LLaMA's architecture leaves them.
fn paired(format: Format) -> Format {
    let (heads, kv) = format.heads();
    let pairs = |heads: usize| {
        move |t: &mut Tensor| {
            let width = t.shape[0] / heads;
            let row = |r: usize| r / width * width + r % width / 2 + r % 2 * width / 2;
            *t = t.ordered(&(0..t.shape[0]).map(row).collect::<Vec<_>>());
        }
    };
    format.change("attn_q.", pairs(heads)).change("attn_k.", pairs(kv))
}

#[test]
fn llama_and_families_like_it() {
    let (case, llama) = format("llama", "llama");
    paired(llama.also(&AFTER)).check(&case);
    for (name, arch) in [("qwen2", "qwen2"), ("qwen3", "qwen3"), ("phi3", "phi3")] {
        let (case, format) = format(name, arch);
        format.also(&AFTER).check(&case);
    }
    let (case, format) = format("olmo2", "olmo2");
    format.also(&[FOUR[0], FOUR[2]]).check(&case);
}

/// Files like `Q4_K_M` store v in another format than q and k: each keeps its own, and the numbers are those
/// of its values.
#[test]
fn fused_parts_of_unlike_formats_keep_them() {
    let blocks = [
        ("attn_q.w", Block::Q4_0),
        ("attn_k.w", Block::Q4_0),
        ("attn_v.w", Block::Q8_0),
        ("ffn_up", Block::Q5_1),
    ];
    for (name, arch, pairs) in [("llama", "llama", true), ("qwen2", "qwen2", false)] {
        let (case, format) = format(name, arch);
        let format = format.also(&AFTER);
        let mut stored = if pairs { paired(format) } else { format };
        stored.blocks = blocks.to_vec();
        let files = open_gguf_bytes("m.gguf", stored.file().into()).unwrap();

        // The same values in f32.
        for (name, tensor) in &mut stored.tensors {
            let Some((_, block)) = blocks.iter().find(|(part, _)| name.contains(part)) else { continue };
            let bytes = encoded(*block, tensor);
            decode_rows(WeightFormat::Block(*block), tensor.cols(), &bytes, &mut tensor.values).unwrap();
        }
        stored.blocks.clear();
        let widened = open_gguf_bytes("m.gguf", stored.file().into()).unwrap();
        let (got, want) = (run(&case.case, &files), run(&case.case, &widened));
        let largest = want.iter().flatten().fold(0f32, |m, v| m.max(v.abs()));
        for (i, (got, want)) in got.iter().flatten().zip(want.iter().flatten()).enumerate() {
            assert!((got - want).abs() <= 1e-5 * largest, "{name}: logit {i} is {got}, {want} in f32");
        }

        let backend = Cpu::new(CpuConfig::default()).unwrap();
        let load = LoadOptions::default();
        let model = inject(&backend, &files, &Registry::default(), 64, load, &mut |_, _| {}).unwrap();
        let plan = InjectionPlan::new(backend.as_ref(), &model, Float::F32, Float::F32).unwrap();
        for (block, layer) in model.blocks.iter().zip(0..) {
            let up = &block.mlp.as_ref().unwrap().up;
            let formats = |fused: &Fused<Cpu>| -> Vec<&str> {
                fused.parts().iter().map(|part| part.weight.info().format.name()).collect()
            };
            assert_eq!((formats(&block.qkv), formats(up)), (vec!["Q4_0", "Q8_0"], vec!["f32", "Q5_1"]));
            let rows = plan.rows.iter().filter(|row| row.layer == Some(layer) && row.slot.contains(".."));
            let shown: Vec<Option<&str>> = rows.map(|row| row.format.as_deref()).collect();
            assert_eq!(shown, [Some("Q4_0"), Some("Q8_0"), Some("f32"), Some("Q5_1")]);
        }
        converted_alike(&case.case, &files, &plan);
    }
}

/// A converted model keeps each format, and says what its original says: as it is, and quantized.
fn converted_alike(case: &Case, files: &ModelFiles, original: &InjectionPlan) {
    let backend = Cpu::new(CpuConfig::default()).unwrap();
    for world in [1, 2] {
        let folder = tempfile::tempdir().unwrap();
        let options = ConvertOptions { world, quantize: None, quantize_embeddings: false };
        convert_model(files, &Registry::default(), folder.path(), options, &mut |_, _| {}).unwrap();
        std::fs::write(folder.path().join("config.json"), files.config.to_string()).unwrap();
        let converted = open(folder.path(), Access::Map).unwrap();
        for quantize in [None, Some("int8:32".parse().unwrap())] {
            let load = LoadOptions { quantize, ..LoadOptions::default() };
            let [got, want] = [&converted, files].map(|files| run_loaded(case, files, load));
            assert_eq!(got, want, "{quantize:?} for {world} ranks");
        }
        let load = LoadOptions::default();
        let model = inject(&backend, &converted, &Registry::default(), 64, load, &mut |_, _| {}).unwrap();
        let plan = InjectionPlan::new(backend.as_ref(), &model, Float::F32, Float::F32).unwrap();
        assert_eq!(plan.rows, original.rows, "for {world} ranks");
    }
}

#[test]
fn experts_in_one_tensor() {
    let (case, mixtral) = format("mixtral", "llama");
    let used = Meta::U32(size(&mixtral.config, &["num_experts_per_tok"]) as u32);
    let parts =
        [("w1.weight", "ffn_gate_exps"), ("w3.weight", "ffn_up_exps"), ("w2.weight", "ffn_down_exps")];
    let mixtral = mixtral.also(&AFTER).stacked("block_sparse_moe.experts.{}.", parts);
    let mixtral = mixtral.with("expert_count", Meta::U32(4)).with("expert_used_count", used);
    paired(mixtral).check(&case);
    for (name, arch, count) in [("qwen2_moe", "qwen2moe", 6), ("qwen3_moe", "qwen3moe", 6)] {
        let (case, qwen) = format(name, arch);
        let n = |field: &str| Meta::U32(size(&qwen.config, &[field]) as u32);
        let (used, inner) = (n("num_experts_per_tok"), n("moe_intermediate_size"));
        let shared = qwen.config["shared_expert_intermediate_size"].as_u64().unwrap_or(0);
        let parts = [
            ("gate_proj.weight", "ffn_gate_exps"),
            ("up_proj.weight", "ffn_up_exps"),
            ("down_proj.weight", "ffn_down_exps"),
        ];
        let mut qwen = qwen.also(&AFTER).stacked("mlp.experts.{}.", parts);
        qwen = qwen.with("expert_count", Meta::U32(count)).with("expert_used_count", used);
        qwen = qwen.with("expert_feed_forward_length", inner).with("expert_weights_norm", Meta::Bool(true));
        if shared > 0 {
            qwen = qwen.with("expert_shared_feed_forward_length", Meta::U32(shared as u32));
        }
        // The gate of the shared expert is a vector there.
        qwen.change("ffn_gate_inp_shexp", |t| t.shape = vec![t.values.len()]).check(&case);
    }
}

#[test]
fn gemma_with_the_one_in_its_norms() {
    let one = |t: &mut Tensor| t.values.iter_mut().for_each(|v| *v += 1.0);
    let (case, gemma) = format("gemma", "gemma");
    gemma.also(&AFTER).change("norm", one).check(&case);
    let (case, gemma) = format("gemma2", "gemma2");
    let number = |name: &str| gemma.config[name].as_f64().unwrap();
    let caps = ["attn_logit_softcapping", "final_logit_softcapping"].map(number);
    // GGUF has no field for the scale of scores, which is that of the heads' width: the queries take the
    // difference.
    let factor = (number("head_dim") / number("query_pre_attn_scalar")).sqrt() as f32;
    let gemma = gemma.also(&FOUR).change("norm", one);
    let gemma = gemma.change("attn_q.", |t| t.values.iter_mut().for_each(|v| *v *= factor));
    let gemma = gemma.with("attn_logit_softcapping", Meta::F32(caps[0] as f32));
    gemma.with("final_logit_softcapping", Meta::F32(caps[1] as f32)).check(&case);
    let (case, mut gemma) = format("gemma3", "gemma3");
    gemma.config["rope_theta"] = 1e6.into();
    let gemma = gemma.also(&FOUR).change("norm", one);
    gemma.with("attention.sliding_window_pattern", Meta::U32(3)).check(&case);
}

#[test]
fn fused_and_parallel_blocks() {
    let (case, phi) = format("phi", "phi2");
    phi.check(&case);
    for (name, arch) in [("starcoder2", "starcoder2"), ("stablelm", "stablelm")] {
        let (case, format) = format(name, arch);
        format.also(&AFTER).check(&case);
    }
    let (case, mut falcon) = format("falcon_7b", "falcon");
    falcon.config["num_kv_heads"] = 1.into();
    falcon.check(&case);
    let (case, falcon) = format("falcon_new", "falcon");
    let norms = [("ln_attn.", "attn_norm_2."), ("ln_mlp.", "attn_norm.")];
    falcon.also(&norms).ungrouped(2).check(&case);
    let (case, neox) = format("gpt_neox_sequential", "gptneox");
    let heads = neox.heads().0;
    neox.also(&AFTER).ungrouped(heads).with("use_parallel_residual", Meta::Bool(false)).check(&case);
    let (case, bloom) = format("bloom", "bloom");
    let heads = bloom.heads().0;
    let names = [
        ("h.0.", "blk.0."),
        ("h.1.", "blk.1."),
        ("ln_f.", "output_norm."),
        ("word_embeddings_layernorm.", "token_embd_norm."),
        ("word_embeddings.", "token_embd."),
    ];
    bloom.also(&AFTER).also(&names).ungrouped(heads).check(&case);
}
