//! GGUF files that are written here: what is read of them is the model that they were made of, bit for bit.

use crate::rewritten::{run, run_loaded, same};
use conformance::golden::Case;
use engraft_core::checkpoint::gguf::{self, Header};
use engraft_core::checkpoint::{Access, ModelFiles, TokenizerFiles, open};
use engraft_core::mem::{Stored, WeightFormat};
use engraft_core::policy::Registry;
use engraft_core::text::Tokenizer;
use engraft_core::weights::LoadOptions;
use engraft_core::weights::gguf::{GgufOptions, plan_gguf};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn golden(name: &str) -> (Case, ModelFiles) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    (Case::read(&folder).unwrap(), open(&folder, Access::Map).unwrap())
}

fn format(name: &str) -> WeightFormat {
    name.parse().unwrap()
}

fn options(quantize: Option<&str>) -> GgufOptions {
    GgufOptions { quantize: quantize.map(|name| format(name).into()), ..GgufOptions::default() }
}

fn refused(files: &ModelFiles, options: &GgufOptions) -> String {
    plan_gguf(files, &Registry::default(), options).map(|_| ()).unwrap_err().to_string()
}

/// A file in a folder of its own.
struct Written {
    _folder: TempDir,
    path: PathBuf,
}

impl Written {
    fn new(files: &ModelFiles, options: &GgufOptions) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.gguf");
        let plan = plan_gguf(files, &Registry::default(), options).unwrap();
        let mut last = (0, 1);
        let said = plan.file_bytes();
        let done = plan.write(&path, &mut |done, total| last = (done, total)).unwrap();
        assert!(last.0 <= last.1 && last.0 > 0, "progress ends at {last:?}");
        assert_eq!([done.bytes, said], [std::fs::metadata(&path).unwrap().len(); 2]);
        Self { _folder: folder, path }
    }

    fn open(&self) -> ModelFiles {
        open(&self.path, Access::Map).unwrap()
    }

    fn header(&self) -> (Header, Vec<u8>) {
        let bytes = std::fs::read(&self.path).unwrap();
        (gguf::parse("m.gguf", &bytes).unwrap(), bytes)
    }
}

fn quantized(quantize: &str) -> LoadOptions {
    LoadOptions { quantize: Some(format(quantize)), ..LoadOptions::default() }
}

#[test]
fn the_bits_of_the_folder() {
    for name in [
        "llama",
        "internlm_like",
        "llama_linear",
        "llama_yarn",
        "llama_sharded",
        "qwen2",
        "qwen3",
        "mixtral",
        "qwen2_moe",
        "qwen3_moe",
    ] {
        let (case, files) = golden(name);
        let want = run(&case, &files);
        same(name, &case, &want, None);
        for quantize in [None, Some("f32"), Some("f16"), Some("bf16")] {
            let written = Written::new(&files, &options(quantize));
            let load = quantize.map(quantized).unwrap_or_default();
            assert_eq!(run(&case, &written.open()), run_loaded(&case, &files, load), "{name}: {quantize:?}");
        }
    }
}

/// Llama 3's stretching becomes a tensor of divisors in f32.
#[test]
fn stretched_as_llama_3_within_the_golden() {
    let (case, files) = golden("llama_gqa_llama3");
    let written = Written::new(&files, &options(Some("f32")));
    assert!(written.open().source.find("rope_freqs.weight").is_some());
    same("llama_gqa_llama3", &case, &run(&case, &written.open()), None);
}

/// Every format holds what the same format gives while loading; from packed weights as well.
#[test]
fn each_format_as_while_loading() {
    for name in ["llama_ct_fp8", "qwen3_moe"] {
        let (case, files) = golden(name);
        let mut numbers = Vec::new();
        for quantize in ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl"] {
            let written = Written::new(&files, &options(Some(quantize)));
            let want = run_loaded(&case, &files, quantized(quantize));
            assert_eq!(run(&case, &written.open()), want, "{name}: {quantize}");
            let (header, _) = written.header();
            let Some(WeightFormat::Block(block)) = Some(format(quantize)) else { panic!("{quantize}") };
            let of = |name: &str| header.tensors.iter().find(|t| t.info.name == name).unwrap().info.stored;
            assert_eq!(of("blk.0.attn_q.weight"), Stored::Block(block));
            assert_eq!(of("blk.0.attn_norm.weight"), Stored::F32);
            numbers.push(header.metadata.u64("general.file_type").unwrap().unwrap());
        }
        assert_eq!(numbers, [2, 3, 8, 9, 7, 25], "{name}");
    }
}

#[test]
fn from_gguf_to_gguf() {
    let (case, files) = golden("llama_ct_fp8");
    let plain = Written::new(&files, &options(Some("f32")));
    let direct = Written::new(&files, &options(Some("q8_0")));
    let again = Written::new(&plain.open(), &options(Some("q8_0")));
    let ([(direct, a), (again, b)], load) = ([direct.header(), again.header()], quantized("q8_0"));
    assert_eq!(direct.metadata, again.metadata);
    assert_eq!(direct.tensors.len(), again.tensors.len());
    for tensor in &direct.tensors {
        let other = again.tensors.iter().find(|t| t.info.name == tensor.info.name).unwrap();
        assert_eq!(tensor.info, other.info);
        let of = |file: &[u8], t: &gguf::Tensor| file[t.start as usize..t.end as usize].to_vec();
        assert!(of(&a, tensor) == of(&b, other), "{}", tensor.info.name);
    }
    let same = Written::new(&plain.open(), &options(None));
    assert_eq!(run(&case, &same.open()), run(&case, &plain.open()));
    // The token table has a format of its own.
    let table = GgufOptions { embeddings: Some(format("q5_0")), ..options(Some("q8_0")) };
    for from in [&files, &plain.open()] {
        let (header, _) = Written::new(from, &table).header();
        let stored = |name: &str| header.tensors.iter().find(|t| t.info.name == name).unwrap().info.stored;
        assert_eq!(stored("token_embd.weight"), "q5_0".parse().map(stored_of).unwrap());
        assert_eq!(stored("output.weight"), "q8_0".parse().map(stored_of).unwrap());
    }
    assert_eq!(run_loaded(&case, &plain.open(), load), run_loaded(&case, &files, load));
}

fn stored_of(format: WeightFormat) -> Stored {
    Stored::Block(format.block().unwrap())
}

#[test]
fn a_tokenizer_has_the_same_ids() {
    for name in ["llama", "qwen2", "llama_gqa_llama3"] {
        let (_, files) = golden(name);
        let own = Tokenizer::from_files(name, files.tokenizer.clone()).unwrap();
        let rows = files.config["vocab_size"].as_u64().unwrap() as usize;
        let lists = own.to_gguf(rows, (&files.config, &files.generation), Some("{{ messages }}")).unwrap();
        let written = Written::new(&files, &GgufOptions { tokenizer: Some(lists), ..options(None) });
        let read = written.open();
        assert!(matches!(&read.tokenizer, TokenizerFiles::Gguf(_)));
        let found = Tokenizer::from_files(name, read.tokenizer.clone()).unwrap();
        for text in
            ["The quick brown fox, 1234 times.", " a\n\nb\tc  d", "naïve 你好 🚀 <s></s><|im_end|>", "x"]
        {
            assert_eq!(found.encode(text, true).unwrap(), own.encode(text, true).unwrap(), "{name}: {text}");
        }
        assert_eq!(found.chat_template(), Some("{{ messages }}"));
        assert_eq!(found.eos_token(), own.eos_token());
        let eos = ModelFiles { path: PathBuf::new(), ..read }.config["eos_token_id"].clone();
        assert_eq!(eos, files.config["eos_token_id"], "{name}");
        // Requantized it is still there.
        let again = Written::new(&written.open(), &options(Some("f16")));
        assert_eq!(again.header().0.metadata.str("tokenizer.chat_template").unwrap(), Some("{{ messages }}"));
    }
    let (_, files) = golden("mistral");
    assert!(matches!(files.tokenizer, TokenizerFiles::HuggingFace { tokenizer_json: None, .. }));
}

#[test]
fn without_a_tokenizer() {
    let (case, files) = golden("qwen3");
    let written = Written::new(&files, &options(None));
    assert_eq!(written.header().0.metadata.str("tokenizer.ggml.model").unwrap(), Some("none"));
    let error = Tokenizer::from_files("m", written.open().tokenizer).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("no tokenizer"), "{error}");
    assert_eq!(run(&case, &written.open()).len(), case.prompts.len());
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let none = options(None);
    let (_, llama) = golden("llama");
    for quantize in ["int8:64", "w8a8", "mxfp4", "nf4", "fp8"] {
        let error = refused(&llama, &options(Some(quantize)));
        assert!(error.contains("quantize") && error.contains("f32, f16, bf16, Q4_0"), "{error}");
        assert!(error.to_lowercase().contains(quantize.split(':').next().unwrap()), "{error}");
    }
    let table = GgufOptions { embeddings: Some(format("int4")), ..none.clone() };
    assert!(refused(&llama, &table).contains("token-embedding-type"));
    let error = refused(&llama, &options(Some("q4_0")));
    assert!(error.contains("blk.0.ffn_down.weight") && error.contains("172 columns"), "{error}");
    // A window, which llama.cpp's llama has no word for.
    let error = refused(&golden("mistral").1, &none);
    assert!(
        error.contains("window: Some( 5") && error.contains("window: None") && error.contains("llama"),
        "{error}"
    );
    for (name, words) in [
        ("gpt2", &["gpt2", "qwen3moe"][..]),
        ("bloom", &["bloom", "qwen3moe"]),
        ("gemma2", &["gemma2", "qwen3moe"]),
        ("llama_head_dim", &["act: Gelu", "act: Silu", "llama"]),
        ("llama_ct_fp8", &["blk.0.attn_q.weight", "fp8", "GGUF has no type for", "Q8_0"]),
    ] {
        let error = refused(&golden(name).1, &none);
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
    }
    let lists = Tokenizer::from_files("llama", llama.tokenizer.clone()).unwrap();
    let lists = lists.to_gguf(450, (&llama.config, &llama.generation), None).unwrap();
    let error = refused(&llama, &GgufOptions { tokenizer: Some(lists), ..none });
    assert!(error.contains("450") && error.contains("442"), "{error}");
}
