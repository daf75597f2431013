//! StableLM's largest variant, whose query and key heads have norms with values of their own and whose parts
//! stand side by side, has no golden: random weights against its published description in f64.

use crate::described::{Matrix, Tensors, attend, close, layer_norm, matvec, rotated, widened, write};
use crate::whole;
use conformance::dice::Dice;
use engraft_core::checkpoint::{Access, copy_companions, open};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Batch, ForwardWant, Pick};
use engraft_core::policy::Registry;
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft_cpu::{Cpu, CpuConfig};
use serde_json::json;

const HIDDEN: usize = 32;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const WIDTH: usize = HIDDEN / HEADS;
const ROTATED: usize = WIDTH / 4;
const INNER: usize = 40;
const LAYERS: usize = 2;
const VOCAB: usize = 37;
const EPS: f64 = 1e-3;

fn tensors() -> Tensors {
    let mut dice = Dice::new(5);
    let mut all = Tensors::new();
    let mut add = |name: String, shape: &[usize], middle: f32, scale: f32| {
        let values = (0..shape.iter().product()).map(|_| middle + scale * dice.unit()).collect();
        all.insert(name, (shape.to_vec(), values));
    };
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], 0.0, 1.0);
    for layer in 0..LAYERS {
        let mut of = |name: &str, shape: &[usize], middle: f32, scale: f32| {
            add(format!("model.layers.{layer}.{name}"), shape, middle, scale);
        };
        of("input_layernorm.weight", &[HIDDEN], 1.0, 0.2);
        of("input_layernorm.bias", &[HIDDEN], 0.0, 0.2);
        for (part, heads) in [("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)] {
            of(&format!("self_attn.{part}_proj.weight"), &[heads * WIDTH, HIDDEN], 0.0, 0.3);
            for head in (0..heads).filter(|_| part != "v") {
                of(&format!("self_attn.{part}_layernorm.norms.{head}.weight"), &[WIDTH], 1.0, 0.9);
            }
        }
        of("self_attn.o_proj.weight", &[HIDDEN, HIDDEN], 0.0, 0.3);
        of("mlp.up_proj.weight", &[INNER, HIDDEN], 0.0, 0.3);
        of("mlp.gate_proj.weight", &[INNER, HIDDEN], 0.0, 0.3);
        of("mlp.down_proj.weight", &[HIDDEN, INNER], 0.0, 0.3);
    }
    add("model.norm.weight".into(), &[HIDDEN], 1.0, 0.2);
    add("model.norm.bias".into(), &[HIDDEN], 0.0, 0.2);
    add("lm_head.weight".into(), &[VOCAB, HIDDEN], 0.0, 0.3);
    all
}

/// Logits of every token.
fn logits(all: &Tensors, ids: &[u32]) -> Matrix {
    let whole = |name: &str| &all[name].1[..];
    let table = whole("model.embed_tokens.weight");
    let mut x: Matrix = ids.iter().map(|i| widened(&table[*i as usize * HIDDEN..][..HIDDEN])).collect();
    for layer in 0..LAYERS {
        let get = |name: &str| whole(&format!("model.layers.{layer}.{name}"));
        let norm = (get("input_layernorm.weight"), get("input_layernorm.bias"));
        let n: Matrix = x.iter().map(|x| layer_norm(norm.0, Some(norm.1), EPS, x)).collect();
        let head = |part: &str, head: usize| -> Matrix {
            let weight = get(&format!("self_attn.{part}_proj.weight"));
            let rows = &weight[head * WIDTH * HIDDEN..(head + 1) * WIDTH * HIDDEN];
            let one = |(t, n): (usize, &Vec<f64>)| match part {
                "v" => matvec(rows, n),
                _ => {
                    let own = get(&format!("self_attn.{part}_layernorm.norms.{head}.weight"));
                    rotated(&layer_norm(own, None, EPS, &matvec(rows, n)), t, ROTATED)
                }
            };
            n.iter().enumerate().map(one).collect()
        };
        let mut attended = vec![Vec::new(); ids.len()];
        for h in 0..HEADS {
            let kv = h / (HEADS / KV_HEADS);
            let (q, k, v) = (head("q", h), head("k", kv), head("v", kv));
            attended.iter_mut().enumerate().for_each(|(t, a)| a.extend(attend(&q, &k, &v, t)));
        }
        for ((x, a), n) in x.iter_mut().zip(&attended).zip(&n) {
            let out = matvec(get("self_attn.o_proj.weight"), a);
            let (up, gate) = (matvec(get("mlp.up_proj.weight"), n), matvec(get("mlp.gate_proj.weight"), n));
            let inner: Vec<f64> = gate.iter().zip(up).map(|(g, u)| u * g / (1.0 + (-g).exp())).collect();
            let down = matvec(get("mlp.down_proj.weight"), &inner);
            x.iter_mut().zip(out.iter().zip(down)).for_each(|(x, (o, d))| *x += o + d);
        }
    }
    let norm = (whole("model.norm.weight"), whole("model.norm.bias"));
    let last = |x: &Vec<f64>| layer_norm(norm.0, Some(norm.1), EPS, x);
    x.iter().map(|x| matvec(whole("lm_head.weight"), &last(x))).collect()
}

#[test]
fn norms_of_every_head() {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({
        "model_type": "stablelm", "hidden_size": HIDDEN, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS, "intermediate_size": INNER,
        "vocab_size": VOCAB, "layer_norm_eps": EPS, "max_position_embeddings": 64, "hidden_act": "silu",
        "tie_word_embeddings": false, "qk_layernorm": true, "use_parallel_residual": true,
        "use_qkv_bias": false, "partial_rotary_factor": 0.25,
    });
    write(dir.path(), &config, &tensors());
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let usual = EngineConfig { max_context: 32, logit_rows: Some(usize::MAX), ..EngineConfig::default() };
    let mut engine = whole::open(&cpu, dir.path(), usual.clone());
    let prompts: Vec<Vec<u32>> = vec![vec![3], (0..11).map(|i| (i * 7 + 2) % VOCAB as u32).collect()];
    let want = ForwardWant { logits: Pick::All, hidden: Pick::None };
    let got = engine.forward(Batch::Ragged(&prompts), &want).unwrap();
    for (prompt, got) in prompts.iter().zip(&got) {
        close(&format!("{} tokens", prompt.len()), &got.logits, &logits(&tensors(), prompt).concat());
    }
    // A converted model has the norms of all heads in one vector, for whatever degree.
    for world in [1, 2, 4] {
        let (folder, files) = (tempfile::tempdir().unwrap(), open(dir.path(), Access::Map).unwrap());
        copy_companions(&files, folder.path()).unwrap();
        let options = ConvertOptions { world, quantize: None, quantize_embeddings: false };
        convert_model(&files, &Registry::default(), folder.path(), options, &mut |_, _| {}).unwrap();
        let mut engine = whole::open(&cpu, folder.path(), usual.clone());
        let converted = engine.forward(Batch::Ragged(&prompts), &want).unwrap();
        for (got, converted) in got.iter().zip(&converted) {
            assert_eq!(got.logits, converted.logits, "for {world} ranks");
        }
    }
}
