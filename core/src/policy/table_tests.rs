//! Policies that are read from tables, and the automatic one, against the headers of real files.

use super::families::FAMILIES;
use super::tests::Case;
use super::*;
use serde_json::{Value, json};

/// The table of `docs/add_a_policy.md`, as it stands there.
fn acme_table() -> &'static str {
    let page = include_str!("../../../docs/add_a_policy.md");
    let table = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    assert!(table.lines().count() <= 60, "a table is short");
    table
}

fn acme_name(n: &str) -> String {
    let pairs = [
        ("model.embed_tokens", "acme.tokens"),
        ("model.layers.", "acme.stack."),
        ("input_layernorm", "n1"),
        ("post_attention_layernorm", "n2"),
        ("self_attn.q_proj", "att.q"),
        ("self_attn.k_proj", "att.k"),
        ("self_attn.v_proj", "att.v"),
        ("self_attn.o_proj", "att.o"),
        ("mlp.gate_proj", "ff.g"),
        ("mlp.up_proj", "ff.u"),
        ("mlp.down_proj", "ff.d"),
        ("model.norm", "acme.n"),
        ("lm_head", "out"),
    ];
    pairs.iter().fold(n.to_string(), |n, (from, to)| n.replace(from, to))
}

fn acme() -> Case {
    let mut case = Case::load("llama_gqa_llama3").renamed(acme_name).set("model_type", json!("acme"));
    let take = |config: &mut Value, field: &str| config.as_object_mut().unwrap().remove(field).unwrap();
    let (width, heads) =
        (take(&mut case.config, "hidden_size"), take(&mut case.config, "num_attention_heads"));
    let kv = take(&mut case.config, "num_key_value_heads");
    case.set("width", width).set("attn", json!({"heads": heads, "kv": kv})).add("acme.cache.k", &[4])
}

fn resolved(policy: &dyn InjectionPolicy, case: &mut Case) -> Result<ModelSpec> {
    case.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let config = ModelConfig::new(case.config.clone())?;
    let catalog = Catalog::new(&case.tensors);
    let spec = policy.spec(&config, catalog)?;
    let found = resolve(policy, &spec, &config, catalog)?;
    assert_eq!(found.len(), spec.roles().len());
    Ok(spec)
}

#[test]
fn a_table_teaches_an_architecture() {
    let policy = TablePolicy::from_json(acme_table()).unwrap();
    let spec = resolved(&policy, &mut acme()).unwrap();
    let want = Case::load("llama_gqa_llama3").spec().unwrap();
    assert_eq!(ModelSpec { arch: "llama".into(), ..spec }, want);
    let mut registry = Registry::default();
    registry.register(std::sync::Arc::new(policy));
    let mut case = acme();
    case.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let config = ModelConfig::new(case.config.clone()).unwrap();
    assert_eq!(registry.choose(&config, Catalog::new(&case.tensors)).unwrap().name(), "acme");
}

/// DeepSpeed's `load_module_strict=False`, by name; what is missing is missing all the same.
#[test]
fn tensors_that_nothing_takes_are_ignored_where_the_user_names_them() {
    let chosen = |case: &Case, patterns: &[&str]| {
        let mut registry = Registry::default();
        registry.ignore_tensors(patterns.iter().map(|p| p.to_string()));
        registry.choose(&ModelConfig::new(case.config.clone())?, Catalog::new(&case.tensors))
    };
    let mut case = Case::load("llama").add("model.extra.weight", &[3]).add("value_head.bias", &[1]);
    case.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let refused = |case: &mut Case, patterns: &[&str]| {
        let policy = chosen(case, patterns).unwrap();
        resolved(policy.as_ref(), case).unwrap_err().to_string()
    };
    assert!(refused(&mut case, &[]).contains("left over: model.extra.weight, value_head.bias"));
    let said = refused(&mut case, &["value_head.*"]);
    assert!(said.contains("left over: model.extra.weight") && !said.contains("value_head"), "{said}");
    for patterns in [&["*"][..], &["model.extra.*", "value_head.bias"]] {
        let policy = chosen(&case, patterns).unwrap();
        let spec = resolved(policy.as_ref(), &mut case).unwrap();
        let listed = spec.assumed.iter().any(|said| said.contains("ignored") && said.contains(patterns[0]));
        assert!(listed && policy.name() == "llama", "{:?}", spec.assumed);
    }
    let vain = chosen(&case, &["*", "no.such.*"]).err().unwrap().to_string();
    assert!(vain.contains("`ignore_tensors` is \"no.such.*\""), "{vain}");
    case.tensors.retain(|t| t.name != "model.norm.weight");
    assert!(refused(&mut case, &["*"]).contains("missing"));
}

#[test]
fn the_page_lists_every_slot() {
    let page = include_str!("../../../docs/add_a_policy.md");
    let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| `")).collect();
    let listed = |slot: &Slot| rows.iter().any(|row| row.contains(&format!("`{}`", slot.name())));
    let missing: Vec<&str> = Slot::ALL.iter().filter(|slot| !listed(slot)).map(|slot| slot.name()).collect();
    assert!(missing.is_empty(), "docs/add_a_policy.md has no {}", missing.join(", "));
}

#[test]
fn the_same_table_in_toml() {
    let text = r#"
        name = "acme"
        model_types = ["acme"]
        like = "llama"
        prefixes = ["acme."]
        block = "stack.{}."
        ignored = ["acme.cache.*"]
        rename = { hidden_size = "width", num_attention_heads = "attn.heads", num_key_value_heads = "attn.kv" }
        set = { rope_theta = 10000.0 }
        partition = [{ pattern = '.*att\.o\.weight', style = "row" }]

        [names]
        token_embed = "tokens"
        attn_norm = "n1"
        qkv = "att.q + att.k + att.v"
        attn_out = "att.o"
        mlp_norm = "n2"
        up = "ff.g + ff.u"
        down = "ff.d"
        final_norm = "n"
        head = "/out"
    "#;
    let spec = resolved(&TablePolicy::from_toml(text).unwrap(), &mut acme()).unwrap();
    assert_eq!(spec, resolved(&TablePolicy::from_json(acme_table()).unwrap(), &mut acme()).unwrap());
    assert!(TablePolicy::from_toml("name = ").is_err());
}

#[test]
fn tables_are_refused_by_name() {
    let with = |field: &str, value: Value| {
        let mut table: Value = serde_json::from_str(acme_table()).unwrap();
        table[field] = value;
        match TablePolicy::new(table) {
            Err(e) => e.to_string(),
            Ok(policy) => resolved(&policy, &mut acme()).unwrap_err().to_string(),
        }
    };
    assert!(with("like", json!("lama")).contains("`like` is \"lama\"; allowed: llama, mistral"));
    let slot = with("names", json!({"attention": "x"}));
    assert!(slot.contains("`names.attention` is no slot; allowed: token_embed"), "{slot}");
    assert!(with("colour", json!(1)).contains("unknown field `colour`"));
    assert!(with("partition", json!([{"pattern": "(", "style": "row"}])).contains("partition.pattern"));
    let long = with("partition", json!([{"pattern": "(".repeat(2000), "style": "row"}]));
    assert!(long.contains("partition.pattern") && long.contains("at most 1024 bytes; it has 2000"), "{long}");
    assert!(with("partition", json!([{"pattern": ".*", "style": "diagonal"}])).contains("partition.style"));
    let e = with("partition", json!([{"pattern": ".*att\\.q.*", "style": "rowwise"}]));
    assert!(e.contains("`partition.style` is \"rowwise\"; allowed: outputs for layer 0 qkv.weight"), "{e}");
    assert!(with("ignored", json!([])).contains("left over: acme.cache.k"));
    assert!(TablePolicy::from_json("{").is_err());
    let twice = acme_table().replacen("\"up\":", "\"down\": \"x\",\n\"up\":", 1);
    assert!(TablePolicy::from_json(&twice).unwrap_err().to_string().contains("`down` stands twice"));
}

/// A table is asked for the same care as the automatic policy: a field that its family does not read refuses
/// the model by name, wherever it stands, until a user accepts it.
#[test]
fn fields_that_a_tables_family_does_not_read_refuse_the_model() {
    let table = TablePolicy::from_json(acme_table()).unwrap();
    for (field, value, neutral) in [
        ("no_rope_layers", json!([1, 0]), json!([])),
        ("attn.scale", json!(3.0), Value::Null),
        ("attn.window.left", json!(3), Value::Null),
        ("rope_scaling.beta_of_tomorrow", json!(0.3), json!(null)),
        ("final_logit_softcapping", json!(30.0), json!(0)),
        ("alibi", json!(true), json!(false)),
    ] {
        let with = |value: &Value| {
            let mut case = acme().set("rope_scaling", acme().config["rope_parameters"].clone());
            *field.split('.').fold(&mut case.config, |at, name| &mut at[name]) = value.clone();
            case
        };
        let refused = resolved(&table, &mut with(&value)).unwrap_err().to_string();
        assert!(refused.contains(&format!("`{field}` is ")) && refused.contains("acme's table"), "{refused}");
        resolved(&table, &mut with(&neutral)).unwrap();
        let accepting = table.with_accepted(&[field.to_string()]).unwrap();
        let assumed = resolved(&*accepting, &mut with(&value)).unwrap().assumed.join("; ");
        assert!(assumed.contains(&format!("`{field}` ({value}) is accepted")), "{assumed}");
        let outer = [field.split('.').next().unwrap().to_string()];
        resolved(&*table.with_accepted(&outer).unwrap(), &mut with(&value)).unwrap();
        let vain = resolved(&*accepting, &mut with(&neutral)).unwrap_err().to_string();
        assert!(vain.contains("`accept_unknown` is") && vain.contains(field), "{vain}");
    }
}

/// What a family reads is found out, not listed: a table that is like the model's own family refuses nothing.
#[test]
fn a_table_like_the_models_own_family_reads_all_that_the_family_reads() {
    let (mut seen, mut refused) = (0, Vec::new());
    for (name, case) in Case::all() {
        let kind = case.config["model_type"].as_str().unwrap().to_string();
        let Some(like) = FAMILIES.iter().find(|family| family.types.contains(&kind.as_str())) else {
            continue;
        };
        let mut case = case.set("model_type", json!(like.name));
        let table = json!({"name": "own", "model_types": [like.types[0]], "like": like.name});
        // Where there are slopes, MPT's code has no learned positions, whatever this says.
        let accepted: Vec<String> =
            (like.name == "mpt").then(|| "learned_pos_emb".into()).into_iter().collect();
        let policy = TablePolicy::new(table).unwrap().with_accepted(&accepted).unwrap();
        refused.extend(resolved(&*policy, &mut case).err().map(|e| format!("{name}: {e}")));
        seen += 1;
    }
    assert!(seen > 40, "{seen}");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn renamed_and_set_fields_that_the_family_does_not_read_are_refused() {
    let with = |key: &str, field: &str, value: Value| {
        let mut table: Value = serde_json::from_str(acme_table()).unwrap();
        table[key][field] = value;
        resolved(&TablePolicy::new(table).unwrap(), &mut acme().set("base", json!(3.0)))
            .unwrap_err()
            .to_string()
    };
    let renamed = with("rename", "rope_tetha", json!("base"));
    assert!(renamed.contains("`rename` is \"rope_tetha\"; allowed: a field that llama reads"), "{renamed}");
    let set = with("set", "softcap", json!(3.0));
    assert!(set.contains("`set` is \"softcap\"; allowed: a field that llama reads"), "{set}");
    // A size that is nowhere: the table is where it may be named.
    let mut table: Value = serde_json::from_str(acme_table()).unwrap();
    table["rename"] = json!({"hiden_size": "width"});
    let missing = resolved(&TablePolicy::new(table).unwrap(), &mut acme()).unwrap_err().to_string();
    assert!(missing.contains("hidden_size") && missing.contains("`rename` of acme's table"), "{missing}");
}

#[test]
fn defaults_yield_to_renamed_fields_and_reach_into_objects() {
    let with = |rename: Value, set: Value| {
        let mut table: Value = serde_json::from_str(acme_table()).unwrap();
        for (field, more) in [("rename", rename), ("set", set)] {
            for (key, value) in more.as_object().unwrap() {
                table[field][key] = value.clone();
            }
        }
        TablePolicy::new(table).unwrap()
    };
    let old = Case::load("llama_gqa_llama3").spec().unwrap().ropes[0].clone();
    let plain = || acme().set("rope_scaling", Value::Null).set("rope_parameters", Value::Null);
    let nameless = || {
        let mut case = plain();
        case.config.as_object_mut().unwrap().remove("rope_theta");
        case
    };
    let own = with(json!({"rope_theta": "base"}), json!({"rope_theta": 10000.0}));
    let renamed = resolved(&own, &mut nameless().set("base", json!(500.0))).unwrap();
    let default = resolved(&own, &mut nameless()).unwrap();
    assert_ne!(renamed.ropes[0], default.ropes[0]);
    assert_ne!(renamed.ropes[0], old);
    let mut dotted = with(json!({}), json!({"rope_parameters.rope_theta": 500.0}));
    assert_eq!(resolved(&dotted, &mut nameless()).unwrap().ropes, renamed.ropes);
    dotted = with(json!({}), json!({"width.inner": 3}));
    let text = resolved(&dotted, &mut acme()).unwrap_err().to_string();
    assert!(text.contains("`set`") && text.contains("width.inner"), "{text}");
}

#[test]
fn a_tp_plan_is_taken_as_hugging_face_writes_it() {
    let plan = |entries: Value| {
        let table = json!({"name": "own", "model_types": ["llama"], "like": "llama", "tp_plan": entries});
        let policy = TablePolicy::new(table)?;
        resolved(&policy, &mut Case::load("llama"))
    };
    // As LLaMA's configuration class has it, with what newer releases and `lm_head` add.
    let whole = json!({
        "layers.*.self_attn.q_proj": "colwise",
        "layers.*.self_attn.k_proj": "colwise",
        "layers.*.self_attn.v_proj": "packed_colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
        "layers.*.mlp.gate_proj": "colwise",
        "layers.*.mlp.up_proj": "colwise",
        "layers.*.mlp.down_proj": "rowwise_rep",
        "layers.*.mlp": "gather",
        "layers.*.input_layernorm": "sequence_parallel",
        "embed_tokens": "rowwise",
        "norm": "replicated_with_grad_allreduce",
        "lm_head": "colwise_rep",
    });
    assert_eq!(plan(whole).unwrap().arch, "own");
    // Every pattern reaches its tensors: the other word is refused with the field, the word and the operand.
    for (pattern, word, allowed) in [
        ("layers.*.self_attn.q_proj", "rowwise", "outputs for layer 0 qkv.weight"),
        ("model.layers.*.mlp.down_proj", "colwise", "inputs for layer 0 down.weight"),
        ("layers.1.mlp.down_proj", "colwise", "inputs for layer 1 down.weight"),
        ("layers.*.mlp.*", "colwise", "inputs for layer 0 down.weight"),
        ("embed_tokens", "replicate", "outputs for token_embed.weight"),
        ("layers.*.self_attn.v_proj", "row", "outputs for layer 0 qkv.weight"),
        ("lm_head", "packed_rowwise", "outputs for head.weight"),
    ] {
        let e = plan(json!({pattern: word})).unwrap_err().to_string();
        assert!(e.contains(&format!("`tp_plan` is \"{word}\"; allowed: {allowed} (`{pattern}`)")), "{e}");
    }
    // A star is one part of a name, and a dot is a dot.
    for pattern in
        ["*.down_proj", "layers.*.down_proj", "layers.*.mlp.down_proj.weight", "layers.*.mlp_down_proj"]
    {
        plan(json!({pattern: "colwise"})).unwrap();
    }
    let e = plan(json!({"layers.*.mlp.up_proj": "diagonal"})).unwrap_err().to_string();
    assert!(e.contains("`tp_plan` is \"diagonal\"; allowed: column, colwise"), "{e}");
    let many: serde_json::Map<String, Value> = (0..65).map(|i| (format!("m{i}"), json!("colwise"))).collect();
    assert!(plan(Value::Object(many)).unwrap_err().to_string().contains("`tp_plan` is 65 rules"));
}

/// Under an unknown type, the automatic policy must come to what the family's own policy says.
#[test]
fn the_automatic_policy_reads_what_families_say() {
    for name in
        ["llama", "llama_gqa_llama3", "internlm_like", "qwen2", "qwen3", "starcoder2", "stablelm", "phi3"]
    {
        let mut case = Case::load(name).set("model_type", json!("unheard of"));
        for field in ["sliding_window", "layer_types"] {
            case = case.set(field, Value::Null);
        }
        let mut known = Case::load(name).set("sliding_window", Value::Null);
        let want = known.spec().unwrap();
        let fused = if name == "phi3" { &["self_attn.qkv_proj"][..] } else { &[] };
        let got = resolved(&accepting(fused), &mut case).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!got.assumed.is_empty(), "{name}: something is always assumed");
        assert_eq!(ModelSpec { arch: want.arch.clone(), assumed: Vec::new(), ..got }, want, "{name}");
    }
}

/// The automatic policy where a user accepts these.
fn accepting(names: &[&str]) -> Automatic {
    Automatic::default().accepting(names.iter().map(ToString::to_string))
}

/// What the automatic policy assumes of a case.
fn assumptions(policy: &Automatic, case: &mut Case) -> Result<String> {
    case.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    let config = ModelConfig::new(case.config.clone()).unwrap();
    Ok(policy.assumptions(&config, Catalog::new(&case.tensors))?.join("\n"))
}

#[test]
fn the_automatic_policy_says_what_it_assumes_and_refuses_what_it_cannot_place() {
    let mut case = Case::load("gpt_neox").set("model_type", json!("unheard of"));
    case = case.set("use_parallel_residual", json!(false));
    let said = assumptions(&accepting(&["attention.query_key_value"]), &mut case).unwrap();
    assert!(
        said.contains("norms are LayerNorm,") && said.contains("its queries, its key, its value"),
        "{said}"
    );
    assert!(
        said.contains("no token attends to a later one") && said.contains("as they are stored"),
        "{said}"
    );
    assert!(said.contains("halves of every head rotate"), "{said}");
    let fit = |case: &mut Case| {
        case.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let config = ModelConfig::new(case.config.clone()).unwrap();
        Automatic::default().fit(&config, Catalog::new(&case.tensors))
    };
    let mut odd = Case::load("llama").add("model.layers.0.mlp.adapter.weight", &[3, 3]);
    assert!(
        matches!(fit(&mut odd), Fit::No(why) if why.contains("no rule places") && why.contains("mlp.adapter"))
    );
    let mut experts = Case::load("mixtral");
    assert!(matches!(fit(&mut experts), Fit::No(_)));
    for (field, value, neutral) in [
        ("embedding_multiplier", json!(12.0), json!(1.0)),
        ("scale_depth", json!(1.4), Value::Null),
        ("alibi", json!(true), json!(false)),
        ("final_logit_softcapping", json!(30.0), json!(0)),
        ("sliding_window", json!(4096), Value::Null),
        ("no_rope_layers", json!([1, 0]), json!([])),
        (
            "layer_types",
            json!(["full_attention", "linear_attention"]),
            json!(["full_attention", "full_attention"]),
        ),
        ("use_parallel_residual", json!(true), json!(false)),
        ("quantization_config", json!({"bits": 4}), json!({})),
        ("rope_parameters", json!({"llama_4_scaling_beta": 0.3}), json!({"rope_type": "default"})),
        ("model_type", json!("helium"), json!("unheard of")),
        ("a_field_of_tomorrow", json!("on"), json!("")),
        // Near to names that mean nothing.
        ("summary_tokens", json!(4), Value::Null),
        ("classifier_layer", json!(1), Value::Null),
        ("enable_router_fp32_clamp", json!(true), json!(false)),
        ("codevector_heads", json!(2), json!([])),
        ("memory_token_index", json!(7), Value::Null),
        ("expert_dropout_scale", json!(2.0), json!({})),
    ] {
        let mut case = Case::load("llama").set(field, value);
        assert!(matches!(fit(&mut case), Fit::No(why) if why.contains(field)), "{field}");
        assert!(matches!(fit(&mut case.set(field, neutral)), Fit::Yes { .. }), "{field}");
    }
    // What a user accepts is let through and listed; what is not there cannot be accepted.
    let mut case =
        Case::load("llama").set("no_rope_layers", json!([1, 0])).set("model_type", json!("helium"));
    let spec = resolved(&accepting(&["model_type", "no_rope_layers"]), &mut case).unwrap();
    assert!(spec.assumed.iter().any(|said| said.contains("no_rope_layers` ([1,0])")), "{:?}", spec.assumed);
    assert!(
        resolved(&accepting(&["model_type"]), &mut case).unwrap_err().to_string().contains("no_rope_layers")
    );
    let absent = resolved(&accepting(&["hidden_size"]), &mut Case::load("llama")).unwrap_err().to_string();
    assert!(absent.contains("`accept_unknown` is \"hidden_size\""), "{absent}");
    // A known type is never left to it.
    let mut known = Case::load("llama");
    assert_eq!(known.spec().unwrap().arch, "llama");
}

/// Refused by the name of what is open; accepted by this name, it is listed.
fn open(name: &str, mut case: Case, also: &[&str]) {
    let refused = assumptions(&Automatic::default(), &mut case).unwrap_err().to_string();
    assert!(refused.starts_with(&format!("`{name}` is ")) && refused.contains("accept_unknown"), "{refused}");
    let said = assumptions(&accepting(&[&[name], also].concat()), &mut case).unwrap();
    assert!(said.contains(&format!("`{name}` (")) && said.contains("is accepted"), "{said}");
}

/// The files of a model of an unknown type leave open what families differ in: how a fused q, k, v lies,
/// how positions count, which tokens are seen, what a known class computes.
#[test]
fn the_automatic_policy_refuses_what_the_files_leave_open() {
    let unheard = |name: &str| Case::load(name).set("model_type", json!("unheard of"));
    let other_class = |name: &str| unheard(name).set("architectures", json!(["UnheardOfForCausalLM"]));
    // By groups in truth; a concatenation has the same shape.
    let wqkv = || other_class("internlm2").set("rope_scaling", Value::Null);
    open("attention.wqkv", wqkv(), &[]);
    open("attention.wqkv", wqkv().set("num_key_value_heads", json!(4)), &[]);
    open("self_attn.qkv_proj", other_class("phi3").set("sliding_window", Value::Null), &[]);
    open("rope_theta", other_class("bloom"), &["self_attention.query_key_value"]);
    open("rope_theta", other_class("llama").set("rope_theta", Value::Null), &[]);
    open("use_rope", other_class("llama").set("use_rope", json!(false)), &[]);
    open("is_causal", other_class("llama").set("is_causal", json!(false)), &[]);
    open("architectures", other_class("llama").set("architectures", json!(["UnheardOfForMaskedLM"])), &[]);
    // Classes of families that compute something else than what is assumed.
    for name in ["glm", "ernie4_5", "gemma", "nemotron", "eurobert"] {
        open("architectures", unheard(name), &[]);
    }
    // Nothing is open about the others, switches that agree with what is assumed included.
    for name in ["glm", "ernie4_5", "gemma", "nemotron"] {
        let said = assumptions(&Automatic::default(), &mut other_class(name)).unwrap();
        assert!(said.contains("neighbouring columns") && said.contains("nothing else is scaled"), "{said}");
    }
    let buffer = other_class("llama").set("rope_theta", Value::Null).set("is_causal", json!(true));
    let mut buffer = buffer.add("model.layers.0.self_attn.rotary_emb.inv_freq", &[8]);
    assumptions(&Automatic::default(), &mut buffer).unwrap();
    let dynamic = json!({"type": "dynamic", "factor": 2.0});
    let mut stretched = other_class("llama").set("rope_scaling", dynamic);
    let refused = assumptions(&Automatic::default(), &mut stretched).unwrap_err().to_string();
    assert!(refused.contains("`rope_type` is \"dynamic\""), "{refused}");
}

#[test]
fn deepspeeds_dictionary_names_the_matmuls_that_are_summed() {
    let dictionary = json!({"UnheardOfLayer": ["self_attn.o_proj", ".mlp.down_proj"]});
    let policy = Automatic::from_injection_policy(&dictionary).unwrap();
    let mut case = Case::load("llama").set("model_type", json!("unheard of"));
    resolved(&policy, &mut case).unwrap();
    // What a short name ends is told by the module that has it.
    let short = Automatic::from_injection_policy(&json!({"L": ["mix_out", "shrink"]})).unwrap();
    let rename = |n: &str| n.replace("o_proj", "mix_out").replace("down_proj", "shrink");
    let mut renamed = Case::load("llama").set("model_type", json!("unheard of")).renamed(rename);
    assert_eq!(resolved(&short, &mut renamed).unwrap(), resolved(&policy, &mut case).unwrap());
    let wrong = Automatic::from_injection_policy(&json!({"L": "self_attn.nothing"})).unwrap();
    assert!(resolved(&wrong, &mut case).is_err());
    for bad in [json!([]), json!({}), json!({"L": 3}), json!({"L": [3]})] {
        assert!(Automatic::from_injection_policy(&bad).unwrap_err().to_string().contains("injection_policy"));
    }
}
