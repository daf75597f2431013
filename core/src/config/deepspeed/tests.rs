//! Every name, every refusal, and what DeepSpeed gets wrong.

use super::fields::{Becomes, FIELDS};
use super::*;
use crate::mem::{Block, Float, GroupBits, Groups, WeightFormat};
use serde_json::{Map, Value, json};

fn check(value: Value) -> crate::Result<(DeepSpeedConfig, Vec<Warning>)> {
    DeepSpeedConfigBuilder::new().dictionary(&value)?.check()
}

fn accepted(value: Value) -> DeepSpeedConfig {
    let (config, warnings) = check(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    assert!(warnings.is_empty(), "{value}: {warnings:?}");
    config
}

fn refused(value: Value, words: &[&str]) {
    let text = check(value.clone()).map(|_| ()).unwrap_err().to_string();
    words.iter().for_each(|w| assert!(text.contains(w), "{value}: \"{text}\" does not say \"{w}\""));
}

fn warned(value: Value, words: &[&str]) -> DeepSpeedConfig {
    let (config, warnings) = check(value.clone()).unwrap_or_else(|e| panic!("{value}: {e}"));
    let text = warnings.iter().map(Warning::to_string).collect::<Vec<_>>().join("\n");
    words.iter().for_each(|w| assert!(text.contains(w), "{value}: \"{text}\" does not say \"{w}\""));
    config
}

/// A value that the field takes.
fn sample(section: &str, name: &str) -> Value {
    match (section, name) {
        (_, "dtype") => json!("fp32"),
        (_, "enabled" | "replace_with_kernel_inject" | "enable_cuda_graph") => json!(true),
        (_, "offload") => json!(false),
        (_, "type" | "moe_type") => json!("residual"),
        (_, "q_type") => json!("asymmetric"),
        (_, "num_bits") => json!(8),
        (_, "q_groups") => json!(1),
        (_, "group_size") => json!(64),
        (_, "quantized_initialization" | "post_init_quant" | "config") => json!({}),
        (_, "checkpoint" | "checkpoint_dir") => json!("model.json"),
        (_, "base_dir" | "save_mp_checkpoint_path") => json!("x"),
        (_, "injection_policy") => json!({"Block": ["out"]}),
        (_, "mode") => json!("reserve"),
        (_, "quantization_mode") => json!("int8:64"),
        (_, "moe_experts") => json!([8]),
        _ => json!(4),
    }
}

#[test]
fn every_name_of_every_field_is_accepted_or_warns_or_is_an_object_of_python() {
    let mut seen = 0;
    for field in FIELDS {
        for name in std::iter::once(&field.name).chain(field.aliases) {
            let mut value = json!({*name: sample(field.section, field.name)});
            for section in field.section.rsplit('.').filter(|s| !s.is_empty()) {
                value = json!({section: value});
            }
            seen += 1;
            let result = check(value.clone());
            let object = |path: &str| {
                FIELDS
                    .iter()
                    .any(|f| format!("{}.{}", f.section, f.name) == path && f.becomes == Becomes::Object)
            };
            match field.becomes {
                Becomes::Section | Becomes::Inlined => {}
                Becomes::Also(of) => {
                    let (section, name) = of.rsplit_once('.').unwrap_or(("", of));
                    let of = match section {
                        "" => json!({name: sample(section, name)}),
                        _ => json!({section: {name: sample(section, name)}}),
                    };
                    let value = json!({field.name: sample(section, name)});
                    assert_eq!(accepted(value), accepted(of), "{}", field.name);
                }
                // Alone it means nothing that can be done: weights must be quantized, too.
                Becomes::Value if (field.section, field.name) == ("quant.activation", "enabled") => {
                    refused(value, &["quant.activation.enabled", "quant.enabled"]);
                }
                Becomes::Value if (field.section, field.name) == ("quant.activation", "q_type") => {
                    refused(value, &["quant.activation.q_type", "symmetric"]);
                }
                Becomes::Value => drop(result.unwrap_or_else(|e| panic!("{value}: {e}"))),
                Becomes::Object => refused(value, &[name, "null"]),
                Becomes::Moved(to) if object(to) => refused(value, &[name, "null"]),
                Becomes::Moved(to) => drop(warned(value, &[name, "deprecated", to])),
                Becomes::Ignored(_) => drop(warned(value, &[name, "ignored"])),
            }
        }
    }
    assert!(seen >= 75, "{seen}");
}

/// What a user of MII has: the model's configuration with the engine's inside.
#[test]
fn miis_configurations_are_read() {
    let mii = json!({"model_config": {
        "tensor_parallel": 2, "max_length": 512, "inference_engine_config": {"state_manager": {"max_context": 512}},
    }});
    let c = accepted(mii);
    assert_eq!((c.tp_size, c.max_out_tokens), (2, 512));
    let server = json!({"model_config": {"model_name_or_path": "org/name", "replica_num": 2}, "enable_restful_api": true});
    warned(
        server,
        &["model_config.model_name_or_path", "--model", "replica_num", "enable_restful_api", "MII's server"],
    );
    refused(json!({"tensor_parallel": 2, "tp": {"tp_size": 4}}), &["tensor_parallel", "tp"]);
    refused(json!({"model_config": 3}), &["model_config", "an object"]);
    refused(json!({"inference_engine_config": {"tensor_parallel": {"tp_siez": 2}}}), &["tp_siez", "tp_size"]);
}

#[test]
fn defaults_are_deepspeeds() {
    let c = accepted(json!({}));
    assert_eq!(c, DeepSpeedConfig::default());
    assert_eq!(
        (c.dtype, c.max_out_tokens, c.min_out_tokens, c.tp_size, c.tp_grain),
        (DataType::F16, 1024, 1, 1, 64)
    );
    assert!(!c.kernel_inject && !c.graphs && c.quantize.is_none() && c.moe.experts == [1]);
    let engine = c.engine();
    assert_eq!((engine.dtype, engine.max_context, engine.graphs), (Float::F16, 1024, false));
}

#[test]
fn every_spelling_of_an_element_type() {
    for (dtype, names) in [
        (DataType::F16, &["torch.float16", "fp16", "float16", "half", "torch.half", "f16"][..]),
        (DataType::F32, &["torch.float32", "fp32", "float32", "float", "torch.float"]),
        (DataType::Bf16, &["torch.bfloat16", "bf16", "bfloat16", "bfloat"]),
        (DataType::Int8, &["torch.int8", "int8"]),
    ] {
        for name in names {
            assert_eq!(accepted(json!({"dtype": name})).dtype, dtype, "{name}");
        }
        assert_eq!(dtype.name().parse::<DataType>().unwrap(), dtype);
    }
    refused(json!({"dtype": "fp12"}), &["dtype", "fp12", "bfloat16"]);
    refused(json!({"dtype": 16}), &["dtype", "a number"]);
    // DeepSpeed accepts int8 in its configuration and refuses it on every device (defect 1).
    let c = accepted(json!({"dtype": "int8"}));
    let bytes = Groups { bits: GroupBits::Eight, size: 0, asymmetric: false };
    assert_eq!((c.engine().dtype, c.quantize), (Float::F16, Some(WeightFormat::Group(bytes))));
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    refused(json!({"kernel_injekt": true}), &["kernel_injekt", "`kernel_inject`"]);
    refused(json!({"tp": {"tpsize": 2}}), &["tp.tpsize", "`tp_size`"]);
    refused(json!({"quantization_setting": 1}), &["quantization_setting", "unknown"]);
    refused(
        json!({"state_manager": {"memory_config": {"mod": "reserve"}}}),
        &["state_manager.memory_config.mod", "`mode`"],
    );
    let far = check(json!({"zzzzzzzzzz": 1})).unwrap_err().to_string();
    assert!(!far.contains("nearest") && far.contains("zzzzzzzzzz"), "{far}");
    let long = "x".repeat(100_000);
    assert!(check(json!({&long: 1})).is_err());
    refused(json!({"state_manager": 2}), &["`state_manager`", "a number", "an object"]);
}

#[test]
fn auto_and_null_leave_the_default() {
    let c = accepted(
        json!({"dtype": "auto", "tp": {"tp_size": "auto"}, "max_out_tokens": null, "moe": "auto", "mpu": null}),
    );
    assert_eq!(c, DeepSpeedConfig::default());
    // It is its default: not dropped, ignored like every value of this field.
    assert_eq!(accepted(json!({"replace_method": "auto"})), DeepSpeedConfig::default());
}

#[test]
fn four_ways_of_configuring() {
    let options = |v: Value| -> Map<String, Value> { v.as_object().cloned().unwrap() };
    let call =
        |config: Value, kwargs: Value| DeepSpeedConfigBuilder::from_call(&config, &options(kwargs))?.check();
    assert_eq!(call(json!(null), json!({})).unwrap().0, DeepSpeedConfig::default());
    assert_eq!(call(json!({"dtype": "bf16"}), json!({})).unwrap().0.dtype, DataType::Bf16);
    assert_eq!(call(json!(null), json!({"dtype": "bf16"})).unwrap().0.dtype, DataType::Bf16);
    let both =
        call(json!({"dtype": "half", "tp": {"tp_size": 2}}), json!({"dtype": "fp16", "max_tokens": 7}))
            .unwrap()
            .0;
    assert_eq!((both.dtype, both.tp_size, both.max_out_tokens), (DataType::F16, 2, 7));
    for odd in [json!(3), json!([1]), json!(true)] {
        let text = call(odd, json!({})).map(|_| ()).unwrap_err().to_string();
        assert!(text.contains("config") && text.contains("path of a file"), "{text}");
    }
    let file = std::env::temp_dir().join(format!("engraft-config-{}.json", std::process::id()));
    std::fs::write(&file, r#"{"dtype": "fp32"}"#).unwrap();
    let path = json!(file.display().to_string());
    assert_eq!(call(path.clone(), json!({})).unwrap().0.dtype, DataType::F32);
    std::fs::write(&file, "{").unwrap();
    let text = call(path.clone(), json!({})).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("engraft-config-") && text.contains("JSON"), "{text}");
    std::fs::remove_file(&file).unwrap();
    assert!(call(path, json!({})).is_err());
    let toml = DeepSpeedConfigBuilder::new()
        .toml("c.toml", "dtype = 'bf16'\n[tp]\ntp_size = 4\n")
        .unwrap()
        .check()
        .unwrap()
        .0;
    assert_eq!((toml.dtype, toml.tp_size), (DataType::Bf16, 4));
    assert!(
        DeepSpeedConfigBuilder::new().toml("c.toml", "dtype =").unwrap_err().to_string().contains("c.toml")
    );
}

#[test]
fn conflicts_are_found_on_canonical_names() {
    // Between sources (defect 6: DeepSpeed compares literal keys).
    let conflict = |a: Value, b: Value| {
        let before = a.clone();
        let raw =
            DeepSpeedConfigBuilder::new().dictionary(&a).unwrap().options(b.as_object().unwrap()).unwrap();
        assert_eq!(a, before, "the caller's dictionary is left alone");
        raw.check().map(|_| ()).unwrap_err().to_string()
    };
    for (a, b, words) in [
        (json!({"dtype": "fp16"}), json!({"dtype": "bf16"}), ["dtype", "bf16"]),
        (
            json!({"tp": {"tp_size": 2}}),
            json!({"tensor_parallel": {"tp_size": 4}}),
            ["tp.tp_size", "tensor_parallel.tp_size"],
        ),
        (json!({"mp_size": 2}), json!({"tp": {"tp_size": 4}}), ["mp_size", "tp.tp_size"]),
        (
            json!({"kernel_inject": true}),
            json!({"replace_with_kernel_inject": false}),
            ["kernel_inject", "true and false"],
        ),
        (
            json!({"checkpoint": "a"}),
            json!({"ckpt_config": {"checkpoint_dir": "b"}}),
            ["checkpoint", "ckpt_config.checkpoint_dir"],
        ),
        (json!({"moe": true}), json!({"moe": {"enabled": false}}), ["moe", "moe.enabled"]),
    ] {
        let text = conflict(a, b);
        words.iter().for_each(|w| assert!(text.contains(w), "\"{text}\" does not say \"{w}\""));
    }
    // Two names of one setting in one place, even with the same value.
    refused(json!({"tp": {"tp_size": 2}, "tensor_parallel": {"tp_size": 2}}), &["tp.tp_size", "given twice"]);
    refused(json!({"mp_size": 2, "tensor_parallel": {"tp_size": 2}}), &["mp_size", "given twice"]);
    refused(json!({"max_tokens": 2, "max_out_tokens": 2}), &["max_tokens", "max_out_tokens"]);
    let text = check(json!({"mp_size": 2, "tp": {"tp_size": 2}})).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("`mp_size` and `tp.tp_size` are given twice"), "{text}");
    // Setters are one more source.
    let text = DeepSpeedConfig::builder()
        .tp_size(2)
        .set("mp_size", 4)
        .unwrap()
        .check()
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(text.contains("tensor_parallel.tp_size") && text.contains("mp_size"), "{text}");
    let c = DeepSpeedConfig::builder()
        .dtype(Float::Bf16)
        .tp_size(2)
        .kernel_inject(true)
        .graphs(true)
        .max_out_tokens(9);
    let (c, _) = c.set("tp.tp_size", 2).unwrap().check().unwrap();
    assert_eq!((c.dtype, c.tp_size, c.max_out_tokens), (DataType::Bf16, 2, 9));
}

#[test]
fn unknown_keys_are_named_together() {
    let mistyped = json!({"dtyp": "half", "tp": {"tp_sise": 2}, "zzzzzzzz": 1});
    refused(
        mistyped,
        &["`dtyp`, `tp.tp_sise`, `zzzzzzzz` are unknown keys", "`dtype` for `dtyp`", "`tp_size` for"],
    );
    let training = json!({
        "train_batch_size": 8, "optimizer": {"type": "AdamW"}, "fp16": {"enabled": true},
        "zero_optimization": {"stage": 2},
    });
    refused(training, &["train_batch_size", "zero_optimization", "fp16", "a configuration of training"]);
}

#[test]
fn a_key_of_a_file_stands_once() {
    for text in [r#"{"dtype": "half", "dtype": "fp32"}"#, r#"{"tp": {"tp_size": 1, "tp_size": 2}}"#] {
        let error = DeepSpeedConfigBuilder::new().json("ds.json", text).map(drop).unwrap_err().to_string();
        assert!(error.contains("ds.json") && error.contains("stands twice"), "{error}");
    }
}

#[test]
fn values_out_of_range_name_the_field_as_spelled() {
    refused(json!({"tp": {"tp_size": 3}}), &["tp.tp_size", "3", "1, 2, 4 or 8"]);
    refused(json!({"mp_size": 0}), &["mp_size", "0"]);
    refused(json!({"max_tokens": -5}), &["max_tokens", "-5"]);
    refused(json!({"max_tokens": 1e300}), &["max_tokens"]);
    refused(json!({"max_tokens": 2.5}), &["max_tokens", "2.5"]);
    refused(json!({"kernel_inject": "yes"}), &["kernel_inject", "true or false"]);
    refused(json!({"checkpoint": 5}), &["checkpoint", "a number"]);
    refused(json!({"checkpoint": ""}), &["checkpoint"]);
    refused(json!({"injection_dict": {"Block": 5}}), &["injection_dict"]);
    refused(json!({"injection_dict": {"Block": []}}), &["injection_dict"]);
    refused(json!({"moe": {"type": "other"}}), &["moe.type", "other", "residual"]);
    refused(json!({"moe": {"num_experts": []}}), &["moe.num_experts"]);
    refused(json!({"args": 5}), &["args", "a number"]);
    refused(json!({"quant": {"weight": {"num_bits": 6}}}), &["quant.weight.num_bits", "6", "8 or 4"]);
    refused(json!({"quant": {"weight": {"group_size": 40}}}), &["group_size", "40", "32"]);
    refused(json!({"quant": {"weight": {"q_groups": 4}}}), &["q_groups", "4", "group_size"]);
    refused(json!({"quant": {"weight": {"post_init_quant": {"fc": {}}}}}), &["post_init_quant"]);
    refused(
        json!({"quantization": {"quantization_mode": "wf5"}}),
        &["quantization_mode", "wf5", "int8", "fp6"],
    );
    refused(json!({"state_manager": {"offload": true}}), &["state_manager.offload"]);
    assert_eq!(accepted(json!({"max_tokens": 8.0})).max_out_tokens, 8);
}

#[test]
fn combinations_that_cannot_work_name_both_sides() {
    refused(
        json!({"injection_dict": {"B": "o"}, "kernel_inject": true}),
        &["injection_dict", "kernel_inject"],
    );
    refused(json!({"min_tokens": 9, "max_tokens": 8}), &["min_tokens", "max_tokens", "9 with 8"]);
    refused(json!({"tp": {"enabled": false, "tp_size": 2}}), &["tp.enabled", "tp.tp_size"]);
    refused(json!({"moe": {"enabled": false, "ep_size": 2}}), &["moe.ep_size", "moe.enabled"]);
    refused(
        json!({"moe": {"ep_size": 3, "num_experts": [8]}}),
        &["moe.num_experts", "moe.ep_size", "8 with 3"],
    );
    refused(json!({"moe": false, "moe_type": "residual"}), &["moe_type", "moe"]);
    refused(
        json!({"dtype": "int8", "quant": {"weight": {"num_bits": 4}}}),
        &["quant.weight.num_bits", "dtype"],
    );
    refused(
        json!({"quant": {"enabled": true, "qkv": {"enabled": false}}}),
        &["quant.qkv.enabled", "quant.enabled"],
    );
    refused(
        json!({"quant": {"enabled": true}, "quantization": {"quantization_mode": "int4"}}),
        &["quant.enabled", "quantization.quantization_mode"],
    );
    let room = accepted(json!({"min_tokens": 300})).engine();
    assert!(room.clone().check(300).is_ok());
    let text = room.check(299).unwrap_err().to_string();
    assert!(text.contains("`min_context` is 300; allowed: at most 299"), "{text}");
    refused(
        json!({"manager": {"max_ragged_sequence_count": 9, "max_tracked_sequences": 8}}),
        &["manager.max_ragged_sequence_count", "manager.max_tracked_sequences"],
    );
    refused(
        json!({"manager": {"max_ragged_sequence_count": 9, "max_ragged_batch_size": 8}}),
        &["manager.max_ragged_batch_size", "9 with 8"],
    );
    refused(json!({"max_tokens": 8, "manager": {"max_context": 9}}), &["max_tokens", "manager.max_context"]);
    refused(json!({"manager": {"memory_config": {"mode": "allocate"}}}), &["memory_config.size", "allocate"]);
    refused(
        json!({"min_tokens": 300, "manager": {"memory_config": {"mode": "allocate", "size": 2}}}),
        &["min_tokens", "manager.memory_config.size", "300 with room for 256"],
    );
    refused(
        json!({"training_mp_size": 4, "checkpoint": {"checkpoints": [], "tp_size": 2}}),
        &["training_mp_size", "checkpoint.tp_size", "4 with 2"],
    );
    // What DeepSpeed refuses at the end of loading works here (defect 3).
    let c = accepted(json!({"enable_cuda_graph": true, "tp": {"tp_size": 2}}));
    assert!(c.graphs && c.tp_size == 2);
}

/// FP6 is a format of the engine: no other package, any architecture, any size.
#[test]
fn six_bits_by_deepspeeds_name_and_small_floats_by_ours() {
    for (mode, name) in [("wf6af16", "fp6"), ("fp6", "fp6"), ("fp8", "fp8"), ("mxfp4", "mxfp4")] {
        let c = accepted(json!({"quantization": {"quantization_mode": mode}}));
        assert_eq!(c.quantize.unwrap().to_string(), name);
    }
}

#[test]
fn four_bits_have_fine_groups_and_coarser_ones_warn() {
    for fine in [
        json!({"quant": {"weight": {"num_bits": 4}}}),
        json!({"quantization": {"quantization_mode": "int4"}}),
        json!({"quantization": {"quantization_mode": "int4a"}}),
    ] {
        assert_eq!(accepted(fine).quantize, Some(WeightFormat::Group(Groups::FINE)));
    }
    let c = accepted(json!({"quant": {"weight": {"num_bits": 4, "q_type": "symmetric"}}}));
    assert_eq!(c.quantize.unwrap().to_string(), "int4:32");
    for (coarse, field, name) in [
        (
            json!({"quant": {"weight": {"num_bits": 4, "group_size": 64}}}),
            "quant.weight.group_size",
            "int4:64",
        ),
        (json!({"quant": {"weight": {"num_bits": 4, "group_size": 0}}}), "quant.weight.group_size", "int4"),
        (json!({"quant": {"weight": {"num_bits": 4, "q_groups": 1}}}), "quant.weight.group_size", "int4"),
        (json!({"quantization": {"quantization_mode": "int4a:128"}}), "quantization_mode", "int4a:128"),
    ] {
        warned(coarse, &[field, &format!("{name} is coarse"), "int4a:32"]);
    }
    assert_eq!(accepted(json!({"quant": {"enabled": true}})).quantize.unwrap().to_string(), "int8");
}

#[test]
fn what_deepspeed_ignores_works_or_warns() {
    // Defect 2: dead settings. These live:
    let c =
        accepted(json!({"quant": {"weight": {"num_bits": 8, "q_type": "asymmetric", "group_size": 128}}}));
    let bytes = Groups { bits: GroupBits::Eight, size: 128, asymmetric: true };
    assert_eq!(c.quantize, Some(WeightFormat::Group(bytes)));
    assert_eq!(accepted(json!({"quant": {"enabled": false, "weight": {"num_bits": 4}}})).quantize, None);
    assert_eq!(
        accepted(json!({"quantization": {"quantization_mode": "q4_0"}})).quantize,
        Some(WeightFormat::Block(Block::Q4_0))
    );
    let c = warned(
        json!({"ckpt_config": {"checkpoint_dir": "a", "base_dir": "b"}}),
        &["checkpoint_dir", "`checkpoint`"],
    );
    assert_eq!((c.checkpoint, c.base_dir.as_str()), (Some(CheckpointRef::Path("a".into())), "b"));
    // These say that they do not:
    for name in [
        "zero",
        "triangular_masking",
        "tm",
        "use_triton",
        "triton_autotune",
        "return_tuple",
        "set_empty_params",
    ] {
        warned(json!({name: true}), &[name, "ignored"]);
    }
    for (name, value) in
        [("base_dir", json!("x")), ("training_mp_size", json!(2)), ("config", json!({"hidden_size": 9}))]
    {
        warned(json!({name: value.clone()}), &[&format!("`{name}`: has no effect without `checkpoint`")]);
        accepted(json!({name: value, "checkpoint": "model"}));
    }
    warned(json!({"moe": {"num_experts": 8}}), &["moe.num_experts", "no effect"]);
    warned(json!({"tp": {"tp_grain_size": 32}}), &["tp.tp_grain_size", "no effect"]);
    warned(json!({"moe": true}), &["moe", "no effect", "checkpoint"]);
    let tracked = json!({"manager": {"max_tracked_sequences": 4096}});
    warned(tracked, &["manager.max_tracked_sequences", "without a limit"]);
    // Whatever it is, DeepSpeed's own number too.
    let tracked = json!({"manager": {"max_tracked_sequences": 2048, "max_ragged_sequence_count": 8}});
    warned(tracked, &["manager.max_tracked_sequences", "next to `max_ragged_sequence_count`"]);
    let c = warned(
        json!({"mp_size": 2, "ep_size": 2, "moe_experts": [4], "moe_type": "residual"}),
        &["mp_size", "moe.ep_size"],
    );
    assert_eq!((c.tp_size, c.moe.ep_size, c.moe.kind), (2, 2, MoeKind::Residual));
    assert!(!accepted(json!({"moe": false})).moe.enabled);
}

#[test]
fn a_section_whose_weights_are_switched_off_says_so() {
    let off = |mut value: Value| {
        value["quant"] = json!({"enabled": true, "weight": {"enabled": false}});
        value
    };
    let c = warned(off(json!({})), &["`quant.enabled`: has no effect", "`quant.weight.enabled` is false"]);
    assert_eq!(c.quantize, None);
    for (value, by) in [
        (json!({"dtype": "int8"}), "dtype"),
        (json!({"quantization": {"quantization_mode": "int8"}}), "quantization.quantization_mode"),
    ] {
        let said = format!("`quant.weight.enabled`: has no effect: `{by}` makes the weights int8");
        assert!(warned(off(value), &[&said]).quantize.is_some());
    }
    // Off as a whole.
    for weight in [json!({"enabled": false}), json!({"num_bits": 4})] {
        assert_eq!(accepted(json!({"quant": {"enabled": false, "weight": weight}})).quantize, None);
    }
    assert_eq!(accepted(json!({"quant": {"weight": {"enabled": false}}})).quantize, None);
}

#[test]
fn quantized_activations_go_with_weights_of_eight_bits() {
    let on = json!({"enabled": true, "num_bits": 8, "q_type": "symmetric", "q_groups": 1});
    for value in [
        json!({"quant": {"enabled": true, "activation": on}}),
        json!({"quant": {"activation": {"enabled": true}, "weight": {"num_bits": 8, "group_size": 32}}}),
        json!({"dtype": "int8", "quant": {"activation": on}}),
        json!({"quant": {"activation": on}, "quantization": {"quantization_mode": "w8a8"}}),
    ] {
        assert_eq!(accepted(value).quantize, Some(WeightFormat::W8A8));
    }
    let refuse = |activation: Value, weight: Value, words: &[&str]| {
        refused(json!({"quant": {"activation": activation, "weight": weight}}), words);
    };
    refuse(json!({"enabled": true, "num_bits": 4}), json!({}), &["quant.activation.num_bits", "4"]);
    refuse(json!({"q_groups": 2}), json!({}), &["quant.activation.q_groups", "2"]);
    let both = "quant.activation.enabled` and `quant.weight.";
    // Four bits are asymmetric unless the file says otherwise.
    let four = json!({"num_bits": 4, "q_type": "symmetric"});
    refuse(json!({"enabled": true}), four, &[both, "num_bits", "int4"]);
    refuse(json!({"enabled": true}), json!({"num_bits": 4}), &[both, "symmetric"]);
    refuse(json!({"enabled": true}), json!({"q_type": "asymmetric"}), &[both, "q_type"]);
    refuse(json!({"enabled": true}), json!({"group_size": 64}), &[both, "group_size", "64"]);
    refused(
        json!({"quant": {"enabled": true, "activation": on}, "quantization": {"quantization_mode": "int8"}}),
        &["quantization_mode", "w8a8 with int8"],
    );
    warned(json!({"quant": {"activation": {"num_bits": 8}}}), &["quant.activation.num_bits", "no effect"]);
}

#[test]
fn sizes_of_the_ragged_engine() {
    let c = accepted(
        json!({"manager": {"max_ragged_batch_size": 256, "memory_config": {"mode": "allocate", "size": 10}}}),
    );
    let engine = c.engine();
    assert_eq!((engine.max_step_tokens, engine.max_seqs, engine.max_context), (256, 256, 8192));
    assert_eq!((engine.kv_pages, engine.kv_reserve), (Some(10 * 128 / engine.page_size), None));
    for (memory, bytes) in [
        (json!({}), 1_000_000_000),
        (json!({"memory_config": {"mode": "reserve"}}), 1_000_000_000),
        (json!({"memory_config": {"mode": "reserve", "size": 5000}}), 5000),
        (json!({"memory_config": {"size": 0}}), 0),
        (json!({"memory_config": {"size": 1e9}}), 1_000_000_000),
        (json!({"memory_config": {"size": 2.5e11}}), 250_000_000_000),
    ] {
        let mut state = memory.clone();
        state["max_context"] = json!(4096);
        let engine = accepted(json!({"state_manager": state})).engine();
        assert_eq!((engine.kv_pages, engine.kv_reserve), (None, Some(bytes)), "{memory}");
    }
    let blocks = json!({"state_manager": {"memory_config": {"mode": "allocate", "size": 10.0}}});
    assert_eq!(accepted(blocks).engine().kv_pages, engine.kv_pages);
    for wrong in [json!("much"), json!(-1e9), json!(0.5), json!(1e300)] {
        let all = json!({"state_manager": {"memory_config": {"mode": "reserve", "size": wrong.clone()}}});
        let text = wrong.as_str().map_or(wrong.to_string(), str::to_string);
        refused(all, &["state_manager.memory_config.size", &text, "bytes"]);
    }
}

#[test]
fn the_page_for_users_of_deepspeed_names_every_setting() {
    let page = include_str!("../../../../docs/from_deepspeed.md");
    for field in FIELDS {
        for name in std::iter::once(&field.name).chain(field.aliases) {
            let found = page.contains(&format!("`{name}`")) || page.contains(&format!("\"{name}\""));
            assert!(found, "docs/from_deepspeed.md does not name `{name}`");
        }
    }
}
