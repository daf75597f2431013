//! The table of all names that DeepSpeed's inference configurations have, v1 and v2, and those of MII, which
//! stands around them; and what becomes of each.

/// What becomes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Becomes {
    /// A value of its own.
    Value,
    /// Keys inside.
    Section,
    /// Another place, under which it is found from now on; the old name warns.
    Moved(&'static str),
    /// What another place means, by MII's name.
    Also(&'static str),
    /// Keys inside, which stand where it does.
    Inlined,
    /// Nothing, for this reason; it warns.
    Ignored(&'static str),
    /// An object of the running Python program: only null can come from a file.
    Object,
}

/// A key by its section (`""` for the top), its name and its other names.
#[derive(Debug, Clone, Copy)]
pub(super) struct Field {
    pub section: &'static str,
    pub name: &'static str,
    pub aliases: &'static [&'static str],
    pub becomes: Becomes,
}

const fn value(section: &'static str, name: &'static str, aliases: &'static [&'static str]) -> Field {
    Field { section, name, aliases, becomes: Becomes::Value }
}

const fn section(at: &'static str, name: &'static str, aliases: &'static [&'static str]) -> Field {
    Field { section: at, name, aliases, becomes: Becomes::Section }
}

const fn moved(section: &'static str, name: &'static str, to: &'static str) -> Field {
    Field { section, name, aliases: &[], becomes: Becomes::Moved(to) }
}

const fn ignored(name: &'static str, aliases: &'static [&'static str], why: &'static str) -> Field {
    Field { section: "", name, aliases, becomes: Becomes::Ignored(why) }
}

const fn also(name: &'static str, of: &'static str) -> Field {
    Field { section: "", name, aliases: &[], becomes: Becomes::Also(of) }
}

const fn inlined(name: &'static str) -> Field {
    Field { section: "", name, aliases: &[], becomes: Becomes::Inlined }
}

const fn object(section: &'static str, name: &'static str, aliases: &'static [&'static str]) -> Field {
    Field { section, name, aliases, becomes: Becomes::Object }
}

const TRAINING: &str = "belongs to DeepSpeed's training engines and has no effect on inference";
const PYTHON: &str = "is about how Python modules are swapped, which does not happen here";
const SERVER: &str = "is about MII's server; a process here runs one model on its own";
const KERNELS: &str = "chooses among DeepSpeed's kernels; `engraft plan` shows which kernels run here";

/// Every key.
pub(super) const FIELDS: &[Field] = &[
    value("", "replace_with_kernel_inject", &["kernel_inject"]),
    value("", "dtype", &[]),
    section("", "tensor_parallel", &["tp"]),
    value("tensor_parallel", "enabled", &[]),
    value("tensor_parallel", "tp_size", &[]),
    value("tensor_parallel", "tp_grain_size", &[]),
    object("tensor_parallel", "mpu", &[]),
    object("tensor_parallel", "tp_group", &[]),
    value("", "enable_cuda_graph", &[]),
    ignored("use_triton", &[], KERNELS),
    ignored("triton_autotune", &[], KERNELS),
    ignored("zero", &[], TRAINING),
    ignored("triangular_masking", &["tm"], "each architecture's own mask is used"),
    section("", "moe", &[]),
    value("moe", "enabled", &[]),
    value("moe", "ep_size", &[]),
    value("moe", "moe_experts", &["num_experts"]),
    value("moe", "type", &[]),
    object("moe", "ep_mp_group", &[]),
    object("moe", "ep_group", &["expert_group"]),
    ignored(
        "keep_module_on_host",
        &[],
        "weights are read from the mapped file straight to the backend; no copy stays on the host",
    ),
    section("", "quant", &[]),
    value("quant", "enabled", &[]),
    section("quant", "activation", &[]),
    value("quant.activation", "enabled", &[]),
    value("quant.activation", "num_bits", &[]),
    value("quant.activation", "q_type", &[]),
    value("quant.activation", "q_groups", &[]),
    section("quant", "weight", &[]),
    value("quant.weight", "enabled", &[]),
    value("quant.weight", "num_bits", &[]),
    value("quant.weight", "q_type", &[]),
    value("quant.weight", "q_groups", &[]),
    value("quant.weight", "group_size", &[]),
    value("quant.weight", "quantized_initialization", &[]),
    value("quant.weight", "post_init_quant", &[]),
    section("quant", "qkv", &[]),
    value("quant.qkv", "enabled", &[]),
    value("", "checkpoint", &[]),
    value("", "base_dir", &[]),
    ignored("set_empty_params", &[], PYTHON),
    value("", "save_mp_checkpoint_path", &[]),
    section("", "checkpoint_config", &["ckpt_config"]),
    moved("checkpoint_config", "checkpoint_dir", "checkpoint"),
    moved("checkpoint_config", "save_mp_checkpoint_path", "save_mp_checkpoint_path"),
    moved("checkpoint_config", "base_dir", "base_dir"),
    ignored("return_tuple", &[], PYTHON),
    value("", "training_mp_size", &[]),
    ignored("replace_method", &[], "was dropped by DeepSpeed, too"),
    value("", "injection_policy", &["injection_dict"]),
    object("", "injection_policy_tuple", &[]),
    value("", "config", &["args"]),
    value("", "max_out_tokens", &["max_tokens"]),
    value("", "min_out_tokens", &["min_tokens"]),
    ignored("transposed_mode", &[], PYTHON),
    moved("", "mp_size", "tensor_parallel.tp_size"),
    moved("", "mpu", "tensor_parallel.mpu"),
    moved("", "ep_size", "moe.ep_size"),
    moved("", "ep_group", "moe.ep_group"),
    moved("", "expert_group", "moe.ep_group"),
    moved("", "ep_mp_group", "moe.ep_mp_group"),
    moved("", "expert_mp_group", "moe.ep_mp_group"),
    moved("", "moe_experts", "moe.moe_experts"),
    moved("", "moe_type", "moe.type"),
    section("", "state_manager", &["manager"]),
    value("state_manager", "max_tracked_sequences", &[]),
    value("state_manager", "max_ragged_batch_size", &[]),
    value("state_manager", "max_ragged_sequence_count", &[]),
    value("state_manager", "max_context", &[]),
    section("state_manager", "memory_config", &[]),
    value("state_manager.memory_config", "mode", &[]),
    value("state_manager.memory_config", "size", &[]),
    value("state_manager", "offload", &[]),
    section("", "quantization", &[]),
    value("quantization", "quantization_mode", &[]),
    // MII's.
    inlined("model_config"),
    inlined("inference_engine_config"),
    also("quantization_mode", "quantization.quantization_mode"),
    also("max_length", "max_out_tokens"),
    ignored("model_name_or_path", &[], "names the model for MII; here `--model` does, or a `ModelSource`"),
    ignored("tokenizer", &[], "is MII's; the checkpoint's own tokenizer is used"),
    ignored("task", &[], "is MII's; the command says what is done, or the function that is called"),
    ignored("profile_model_time", &[], "is MII's; `EngineHandle::set_profiling` takes times"),
    ignored("sync_debug", &[], "is MII's; `--blocking` waits for every kernel"),
    ignored("device_map", &[], "is MII's; `--backend cuda:1` names a device"),
    ignored("replica_num", &["replica_configs"], SERVER),
    ignored("torch_dist_port", &["zmq_port_number", "port_number"], SERVER),
    ignored("deployment_name", &["deployment_type", "hostfile", "version", "instance_type"], SERVER),
    ignored("enable_restful_api", &["restful_api_host", "restful_api_port", "restful_processes"], SERVER),
];

/// The key of a section by any of its names.
pub(super) fn find(section: &str, key: &str) -> Option<&'static Field> {
    FIELDS.iter().find(|f| f.section == section && (f.name == key || f.aliases.contains(&key)))
}

/// The known key of a section that is nearest to a misspelled one, and whether it is near.
pub(super) fn nearest(section: &str, key: &str) -> Option<&'static str> {
    let names = FIELDS.iter().filter(|f| f.section == section);
    let all = names.flat_map(|f| std::iter::once(f.name).chain(f.aliases.iter().copied()));
    let near = all.map(|name| (distance(key, name), name)).min()?;
    // A third of the letters may be wrong; beyond that a suggestion would only mislead.
    (near.0 <= key.chars().count().min(64) / 3 + 1).then_some(near.1)
}

/// Insertions, deletions and exchanges between two words (of which at most 64 letters count).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let exchanged = before + usize::from(*x != y);
            before = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row.last().copied().unwrap_or(0)
}
