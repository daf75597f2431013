use super::*;
use serde_json::Value as Json;

/// What `llama-quantize` gives the tensors of ten shapes of model (`core/tests/fixtures/mixes.py`): also
/// where columns are no whole blocks of 256.
#[test]
fn mixes_are_those_of_llama_cpp() -> Result<()> {
    let found: Json = serde_json::from_str(include_str!("../../../tests/fixtures/mixes.json"))
        .map_err(|e| Error::internal(e.to_string()))?;
    let cases = found["cases"].as_array().into_iter().flatten();
    let mut compared = 0;
    for case in cases {
        compared += compare(case, &found["types"])?;
    }
    assert!(compared > 15_000, "{compared} tensors");
    Ok(())
}

/// The number of tensors and mixes that were compared.
fn compare(case: &Json, types: &Json) -> Result<usize> {
    let text = |value: &Json| value.as_str().unwrap_or_default().to_owned();
    let arch = text(&case["arch"]);
    let mut metadata = Metadata::default();
    metadata.insert("general.architecture".into(), Value::String(arch.clone()));
    for (key, field) in [
        ("block_count", "block_count"),
        ("attention.head_count", "head_count"),
        ("attention.head_count_kv", "head_count_kv"),
        ("expert_count", "expert_count"),
    ] {
        let n = case[field].as_u64().and_then(|n| u32::try_from(n).ok()).unwrap_or_default();
        metadata.insert(format!("{arch}.{key}"), Value::U32(n));
    }
    let parts = || case["tensors"].as_object().into_iter().flatten();
    let name_of = |part: &str, block: usize| match part {
        "token_embd" | "output" => format!("{part}.weight"),
        _ => format!("blk.{block}.{part}.weight"),
    };
    let letters = |part: &Json, mix: Mix| text(&part[mix.name()]);
    let all: Vec<String> = parts()
        .flat_map(|(part, of)| (0..letters(of, Q4KMedium).len()).map(move |block| name_of(part, block)))
        .collect();
    let cols = case["columns"].as_u64().and_then(|n| usize::try_from(n).ok()).unwrap_or_default();
    let mut compared = 0;
    for mix in Mix::ALL {
        let mixed = Mixed::new(mix, &metadata, &all.iter().map(String::as_str).collect::<Vec<_>>())?;
        for (part, of) in parts() {
            for (block, letter) in letters(of, mix).chars().enumerate() {
                let name = name_of(part, block);
                let got = mixed.format(&name, cols).of_columns(cols);
                assert_eq!(got.to_string(), text(&types[letter.to_string()]), "{arch} {mix} {name}");
                compared += 1;
            }
        }
    }
    Ok(compared)
}

#[test]
fn names_are_read_and_others_are_refused_with_all_of_them() {
    for mix in Mix::ALL {
        assert_eq!(mix.to_string().parse().ok(), Some(mix));
        assert_eq!(mix.name().to_uppercase().parse().ok(), Some(GgufFormat::Mix(mix)));
    }
    let said = "q4_k_x".parse::<GgufFormat>().err().map(|e| e.to_string()).unwrap_or_default();
    assert!(said.contains("q4_k_m") && said.contains("Q4_K") && said.contains("q4_k_x"), "{said}");
    let plain: Option<GgufFormat> = "q4_k".parse().ok();
    assert_eq!(plain, Some(GgufFormat::All(WeightFormat::Block(Block::Q4K))));
}
