//! Models of sizes that nothing divides, shared by ranks: heads in odd groups, columns and rows of the
//! vocabulary that no degree divides, every format that weights can be given. The bits of one rank.

use conformance::dice::Dice;
use conformance::spec::weight;
use engraft_core::checkpoint::gguf::{Value as Meta, write::Writer};
use engraft_core::checkpoint::{Access, ModelFiles, TokenizerFiles, open, open_bytes, open_gguf_bytes};
use engraft_core::config::EngineConfig;
use engraft_core::engine::{Engine, Request, Want};
use engraft_core::inject::inject;
use engraft_core::mem::{Block, Float, Stored, WeightFormat};
use engraft_core::policy::{Rank, Registry};
use engraft_core::weights::LoadOptions;
use engraft_core::weights::convert::{ConvertOptions, convert_model};
use engraft_core::{Error, Result};
use engraft_cpu::{Cpu, CpuConfig};
use safetensors::tensor::{Dtype, TensorView, serialize};
use serde_json::json;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

const DEGREES: [usize; 3] = [2, 4, 8];

/// Sizes of a LLaMA of one block.
#[derive(Debug, Clone, Copy)]
struct Shape {
    heads: usize,
    kv_heads: usize,
    width: usize,
    inner: usize,
    vocab: usize,
}

/// Published models' numbers of heads, their feed-forward sizes and vocabularies, on narrow heads.
const SHAPES: [Shape; 7] = [
    Shape { heads: 9, kv_heads: 3, width: 8, inner: 1536, vocab: 251 },
    Shape { heads: 14, kv_heads: 2, width: 8, inner: 4864, vocab: 97 },
    Shape { heads: 28, kv_heads: 4, width: 4, inner: 300, vocab: 50257 },
    Shape { heads: 40, kv_heads: 10, width: 4, inner: 65, vocab: 33 },
    Shape { heads: 71, kv_heads: 1, width: 2, inner: 100, vocab: 65 },
    Shape { heads: 8, kv_heads: 8, width: 4, inner: 11008, vocab: 64 },
    Shape { heads: 3, kv_heads: 3, width: 16, inner: 29568, vocab: 100 },
];

/// The model with random weights.
fn files(shape: Shape) -> ModelFiles {
    files_of(shape, 0)
}

/// The same with other weights for each seed.
fn files_of(shape: Shape, seed: u64) -> ModelFiles {
    let Shape { heads, kv_heads, width, inner, vocab } = shape;
    let hidden = 32;
    let layer = |name: &str| format!("model.layers.0.{name}.weight");
    let tensors = [
        ("model.embed_tokens.weight".into(), vec![vocab, hidden]),
        ("lm_head.weight".into(), vec![vocab, hidden]),
        ("model.norm.weight".into(), vec![hidden]),
        (layer("input_layernorm"), vec![hidden]),
        (layer("post_attention_layernorm"), vec![hidden]),
        (layer("self_attn.q_proj"), vec![heads * width, hidden]),
        (layer("self_attn.k_proj"), vec![kv_heads * width, hidden]),
        (layer("self_attn.v_proj"), vec![kv_heads * width, hidden]),
        (layer("self_attn.o_proj"), vec![hidden, heads * width]),
        (layer("mlp.gate_proj"), vec![inner, hidden]),
        (layer("mlp.up_proj"), vec![inner, hidden]),
        (layer("mlp.down_proj"), vec![hidden, inner]),
    ];
    let mut dice = Dice::new(seed + heads as u64 * 1000 + inner as u64);
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .into_iter()
        .map(|(name, shape)| {
            let values = dice.values(shape.iter().product(), 0.3, Float::F32);
            (name, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes.iter().map(|(n, s, b)| (n, TensorView::new(Dtype::F32, s.clone(), b).unwrap()));
    let config = json!({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": hidden,
        "num_hidden_layers": 1, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": width,
        "intermediate_size": inner, "vocab_size": vocab, "tie_word_embeddings": false, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 64,
    });
    let tokenizer = TokenizerFiles::from_bytes(None, None, None).unwrap();
    let file = Cow::Owned(serialize(views, None).unwrap());
    open_bytes(&serde_json::to_vec(&config).unwrap(), None, file, tokenizer).unwrap()
}

/// Tokens and logits of three prompts at once, as bits.
pub fn given(
    files: Arc<ModelFiles>,
    tp: usize,
    quantize: Option<WeightFormat>,
    dtype: Float,
) -> Result<Vec<u32>> {
    let load = move |Rank { index: rank, world }: Rank| {
        let options = LoadOptions { rank, world, quantize, dtype: Some(dtype), ..LoadOptions::default() };
        let backend = Cpu::new(CpuConfig { threads: 1, ..CpuConfig::default() })?;
        let model = inject(&backend, &files, &Registry::default(), 40, options, &mut |_, _| {})?;
        Ok((backend, model))
    };
    let config = EngineConfig {
        dtype,
        kv_dtype: dtype.into(),
        max_context: 40,
        max_seqs: 4,
        ..EngineConfig::default()
    };
    let config = EngineConfig { logit_rows: Some(usize::MAX), ..config };
    let mut engine: Engine<Cpu> = engraft_ranks::spawn(tp, config, Arc::new(load))?;
    let vocab = engine.model().spec.vocab;
    let want = Want { logits: true, ..Want::default() };
    let ask = |length: usize| {
        let prompt = (0..length).map(|i| ((i * 7 + length) % vocab) as u32).collect();
        Request { prompt, max_new_tokens: 3, want, ..Request::default() }
    };
    let ids = [5, 1, 11].map(|length| engine.put(ask(length)).unwrap());
    let tokens = engine.run()?;
    Ok(ids
        .iter()
        .flat_map(|id| {
            let logits = engine.take_kept(*id).unwrap().logits;
            tokens[id].iter().copied().chain(logits.iter().map(|v| v.to_bits())).collect::<Vec<u32>>()
        })
        .collect())
}

#[test]
fn sizes_that_nothing_divides_give_the_bits_of_one_rank() {
    for shape in SHAPES {
        let files = Arc::new(files(shape));
        for dtype in [Float::F32, Float::Bf16] {
            let one = given(files.clone(), 1, None, dtype).unwrap();
            for tp in DEGREES {
                let got = given(files.clone(), tp, None, dtype).unwrap();
                let what = || sample::difference(&got, &one);
                assert!(got == one, "{shape:?}, {tp} ranks, {dtype}: {}", what());
            }
        }
    }
}

/// Where leaves end inside a block or a byte the degree is refused by name; else it gives the bits of one.
#[test]
fn every_format_gives_the_bits_of_one_rank() {
    const FORMATS: [&str; 23] = [
        "int8", "int8a", "int8:32", "int8a:64", "int4", "int4a", "int4:32", "int4a:64", "int4:128", "Q4_0",
        "Q4_1", "Q5_0", "Q5_1", "Q8_0", "w8a8", "fp8", "fp8:64", "fp8-e5m2", "fp6", "fp6:32", "fp4", "mxfp4",
        "nf4",
    ];
    let shape = Shape { heads: 16, kv_heads: 8, width: 64, inner: 704, vocab: 80 };
    let tail = Shape { inner: 688, ..shape };
    for (shape, formats) in
        [(shape, &FORMATS[..]), (tail, &["int8:32", "int4a:32", "int4:64", "int8", "fp8", "fp4", "mxfp4"])]
    {
        let files = Arc::new(files(shape));
        let mut held = 0;
        for name in formats {
            let format = Some(name.parse().unwrap());
            let one = given(files.clone(), 1, format, Float::Bf16).unwrap();
            for tp in DEGREES {
                match given(files.clone(), tp, format, Float::Bf16) {
                    Ok(got) => {
                        assert!(got == one, "{name}, {tp} ranks: {}", sample::difference(&got, &one));
                        held += 1;
                    }
                    Err(Error::Tensor { what, .. }) => {
                        assert!(what.contains("would split"), "{name}: {what}")
                    }
                    Err(other) => panic!("{name}, {tp} ranks: {other}"),
                }
            }
        }
        println!("{held} of {} formats and degrees", formats.len() * 3);
        assert!(held + 2 >= formats.len() * 3, "{held}");
    }
}

/// Ranks' files give the logits of the model that they were made of at every degree.
#[test]
fn converted_models_give_the_logits_of_what_they_were_made_of() {
    let shape = Shape { heads: 8, kv_heads: 8, width: 64, inner: 512, vocab: 256 };
    let whole = Arc::new(files(shape));
    let folder = tempfile::tempdir().unwrap();
    for (stored, quantize) in [(2, None), (4, Some("int8:32")), (8, Some("int8:32"))] {
        let quantize: Option<WeightFormat> = quantize.map(|name| name.parse().unwrap());
        let want = given(whole.clone(), 1, quantize, Float::F32).unwrap();
        let out = folder.path().join(format!("{stored}"));
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("config.json"), whole.config.to_string()).unwrap();
        let options = ConvertOptions { world: stored, quantize, quantize_embeddings: false };
        convert_model(&whole, &Registry::default(), &out, options, &mut |_, _| {}).unwrap();
        for tp in [1, 2, 4, 8] {
            let files = Arc::new(open(&out, Access::default()).unwrap());
            let got = given(files, tp, None, Float::F32).unwrap();
            let what = || sample::difference(&got, &want);
            assert!(got == want, "stored for {stored}, {tp} ranks, {quantize:?}: {}", what());
        }
    }
}

/// A LLaMA of one block as a GGUF file in blocks of 256 values, its attention output in others.
fn in_k_quants(attn_output: Block) -> ModelFiles {
    const HIDDEN: usize = 512;
    let mut dice = Dice::new(7);
    let count = |n: usize| Meta::U32(n as u32);
    let pairs = [
        ("block_count", count(1)),
        ("embedding_length", count(HIDDEN)),
        ("feed_forward_length", count(2048)),
        ("attention.head_count", count(8)),
        ("attention.head_count_kv", count(4)),
        ("context_length", count(64)),
        ("attention.layer_norm_rms_epsilon", Meta::F32(1e-5)),
        ("rope.freq_base", Meta::F32(10000.0)),
    ];
    let file = Writer::new().text("general.architecture", "llama");
    let file = pairs.iter().fold(file, |file, (key, value)| file.pair(&format!("llama.{key}"), value));
    let matrices = [
        ("token_embd", 100, HIDDEN, Block::Q6K),
        ("output", 100, HIDDEN, Block::Q6K),
        ("blk.0.attn_q", HIDDEN, HIDDEN, Block::Q4K),
        ("blk.0.attn_k", HIDDEN / 2, HIDDEN, Block::Iq4Xs),
        ("blk.0.attn_v", HIDDEN / 2, HIDDEN, Block::Iq4Nl),
        ("blk.0.attn_output", HIDDEN, HIDDEN, attn_output),
        ("blk.0.ffn_gate", 2048, HIDDEN, Block::Q2K),
        ("blk.0.ffn_up", 2048, HIDDEN, Block::Q3K),
        ("blk.0.ffn_down", HIDDEN, 2048, Block::Q6K),
    ];
    let file = matrices.into_iter().fold(file, |file, (name, rows, cols, block)| {
        let bytes = weight::random(&mut dice, rows, cols, WeightFormat::Block(block), 0.05).bytes;
        file.tensor(&format!("{name}.weight"), &[rows, cols], Stored::Block(block), &bytes).unwrap()
    });
    let norms = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"];
    let file = norms.into_iter().fold(file, |file, name| {
        let bytes: Vec<u8> =
            dice.values(HIDDEN, 1.0, Float::F32).iter().flat_map(|v| v.to_le_bytes()).collect();
        file.tensor(&format!("{name}.weight"), &[HIDDEN], Stored::F32, &bytes).unwrap()
    });
    open_gguf_bytes("m.gguf", file.finish().into()).unwrap()
}

/// The feed-forward sum has leaves of one block each; those of the attention output are heads of 64 columns.
#[test]
fn k_quants_give_the_bits_of_one_rank() {
    let files = Arc::new(in_k_quants(Block::Q8_0));
    for dtype in [Float::F32, Float::Bf16] {
        let one = given(files.clone(), 1, None, dtype).unwrap();
        for tp in DEGREES {
            assert!(given(files.clone(), tp, None, dtype).unwrap() == one, "{tp} ranks, {dtype}");
        }
    }
}

/// Two ranks have whole blocks of an attention output of 512 columns, four would have half a block each.
#[test]
fn ranks_that_would_split_a_block_are_refused_by_name() {
    let files = Arc::new(in_k_quants(Block::Q5K));
    let one = given(files.clone(), 1, None, Float::F32).unwrap();
    assert_eq!(given(files.clone(), 2, None, Float::F32).unwrap(), one);
    for tp in [4, 8] {
        let error = given(files.clone(), tp, None, Float::F32).map(drop).unwrap_err().to_string();
        assert!(error.contains("blk.0.attn_output.weight"), "{error}");
        assert!(error.contains("would split Q5_K blocks of 256"), "{error}");
    }
}

/// Files of the format's first version, which sharded outputs near-evenly. The program of that time wrote
/// them from goldens: they give what these give, at every degree.
#[test]
fn files_of_the_first_version_give_what_they_were_made_of() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut seen = 0;
    for stored in std::fs::read_dir(folder.join("first_version")).unwrap() {
        let stored = stored.unwrap().path();
        let name = stored.file_name().unwrap().to_str().unwrap();
        let mut words = name.split('-');
        let (golden, _, quantize) = (words.next().unwrap(), words.next(), words.next());
        let quantize: Option<WeightFormat> = quantize.map(|format| format.parse().unwrap());
        let open = |folder: &Path| Arc::new(open(folder, Access::default()).unwrap());
        let want = given(open(&folder.join("golden").join(golden)), 1, quantize, Float::F32).unwrap();
        for tp in [1, 2, 4, 8] {
            let got = given(open(&stored), tp, None, Float::F32).unwrap();
            assert!(got == want, "{name} on {tp} ranks: {}", sample::difference(&got, &want));
        }
        seen += 1;
    }
    assert_eq!(seen, 5);
}

/// Files that are not those of the manifest are refused by name, though nothing about their shapes is wrong.
#[test]
fn swapped_and_stale_files_of_ranks_are_refused() {
    let shape = Shape { heads: 8, kv_heads: 8, width: 16, inner: 256, vocab: 128 };
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, files: &ModelFiles| {
        let out = folder.path().join(name);
        std::fs::create_dir(&out).unwrap();
        std::fs::write(out.join("config.json"), files.config.to_string()).unwrap();
        let options = ConvertOptions { world: 2, quantize: None, quantize_embeddings: false };
        convert_model(files, &Registry::default(), &out, options, &mut |_, _| {}).unwrap();
        out
    };
    let (one, two) = (write("one", &files(shape)), write("two", &files(shape)));
    let of = |folder: &std::path::Path, rank: usize| folder.join(format!("rank-{rank:02}-of-02.safetensors"));
    let bytes = [0, 1].map(|rank| std::fs::read(of(&one, rank)).unwrap());
    // The same model converted twice is the same.
    std::fs::copy(of(&two, 1), of(&one, 1)).unwrap();
    assert!(open(&one, Access::default()).is_ok());
    std::fs::write(of(&one, 0), &bytes[1]).unwrap();
    std::fs::write(of(&one, 1), &bytes[0]).unwrap();
    let error = open(&one, Access::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("rank-00-of-02") && error.contains("is not the file that"), "{error}");
    // The same shapes with other values.
    std::fs::write(of(&one, 0), &bytes[0]).unwrap();
    std::fs::write(of(&one, 1), &bytes[1]).unwrap();
    assert!(open(&one, Access::default()).is_ok());
    let tuned = write("tuned", &files_of(shape, 1));
    std::fs::copy(of(&tuned, 1), of(&one, 1)).unwrap();
    let error = open(&one, Access::default()).map(drop).unwrap_err().to_string();
    assert!(error.contains("rank-01-of-02") && error.contains("convert the model again"), "{error}");
}
