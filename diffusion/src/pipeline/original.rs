//! Names of a transformer's modules in the code that FLUX and Stable Diffusion 3 were published with, which
//! kohya's LoRA files spell.

/// Modules of diffusers whose outputs, one after the other, are those of one module there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Modules {
    /// With underscores for dots.
    pub names: Vec<String>,
    /// Whether the two halves of the outputs have changed places.
    pub swapped: bool,
}

impl Modules {
    fn of(prefix: &str, names: &[&str]) -> Self {
        Self { names: names.iter().map(|name| format!("{prefix}{name}")).collect(), swapped: false }
    }

    fn swapped(self) -> Self {
        Self { swapped: true, ..self }
    }
}

const OWN: [&str; 3] = ["to_q", "to_k", "to_v"];
const OF_TEXT: [&str; 3] = ["add_q_proj", "add_k_proj", "add_v_proj"];

/// The modules of diffusers for `flat` (underscores for dots), of a transformer whose last block of two
/// streams is `last`; none for other names.
pub(super) fn diffusers(flat: &str, last: Option<usize>) -> Option<Modules> {
    if let Some((number, module)) = numbered(flat, "double_blocks_") {
        return double(&format!("transformer_blocks_{number}_"), module);
    }
    if let Some((number, module)) = numbered(flat, "single_blocks_") {
        return single(&format!("single_transformer_blocks_{number}_"), module);
    }
    if let Some((number, module)) = numbered(flat, "joint_blocks_") {
        return joint(&format!("transformer_blocks_{number}_"), module, last == Some(number));
    }
    let one = |name: &str| Some(Modules::of("", &[name]));
    let embedder = |part: &str, layer: &str| one(&format!("time_text_embed_{part}_embedder_linear_{layer}"));
    match flat {
        "img_in" => one("x_embedder"),
        "txt_in" => one("context_embedder"),
        "x_embedder_proj" => one("pos_embed_proj"),
        "time_in_in_layer" | "t_embedder_mlp_0" => embedder("timestep", "1"),
        "time_in_out_layer" | "t_embedder_mlp_2" => embedder("timestep", "2"),
        "vector_in_in_layer" | "y_embedder_mlp_0" => embedder("text", "1"),
        "vector_in_out_layer" | "y_embedder_mlp_2" => embedder("text", "2"),
        "guidance_in_in_layer" => embedder("guidance", "1"),
        "guidance_in_out_layer" => embedder("guidance", "2"),
        "final_layer_linear" => one("proj_out"),
        // The shift comes first there, the scale here.
        "final_layer_adaLN_modulation_1" => one("norm_out_linear").map(Modules::swapped),
        _ => None,
    }
}

/// The number behind a beginning, and what is behind that.
fn numbered<'n>(flat: &'n str, beginning: &str) -> Option<(usize, &'n str)> {
    let (number, rest) = flat.strip_prefix(beginning)?.split_once('_')?;
    Some((number.parse().ok()?, rest))
}

/// FLUX's blocks of two streams.
fn double(p: &str, module: &str) -> Option<Modules> {
    let (stream, part) = module.split_once('_')?;
    let text = match stream {
        "img" => false,
        "txt" => true,
        _ => return None,
    };
    let feed = if text { "ff_context" } else { "ff" };
    let norm = if text { "norm1_context_linear" } else { "norm1_linear" };
    Some(match part {
        "attn_qkv" => Modules::of(&format!("{p}attn_"), if text { &OF_TEXT } else { &OWN }),
        "attn_proj" => Modules::of(&format!("{p}attn_"), &[if text { "to_add_out" } else { "to_out_0" }]),
        "mlp_0" => Modules::of(p, &[&format!("{feed}_net_0_proj")]),
        "mlp_2" => Modules::of(p, &[&format!("{feed}_net_2")]),
        "mod_lin" => Modules::of(p, &[norm]),
        _ => return None,
    })
}

/// FLUX's blocks over all rows.
fn single(p: &str, module: &str) -> Option<Modules> {
    Some(match module {
        "linear1" => Modules::of(p, &["attn_to_q", "attn_to_k", "attn_to_v", "proj_mlp"]),
        "linear2" => Modules::of(p, &["proj_out"]),
        "modulation_lin" => Modules::of(p, &["norm_linear"]),
        _ => return None,
    })
}

/// Stable Diffusion 3's blocks, of which the last has no output of the text.
fn joint(p: &str, module: &str, last: bool) -> Option<Modules> {
    let (text, part) = match (module.strip_prefix("x_block_"), module.strip_prefix("context_block_")) {
        (Some(part), _) => (false, part),
        (_, Some(part)) => (true, part),
        _ => return None,
    };
    let feed = if text { "ff_context" } else { "ff" };
    let attention = format!("{p}attn_");
    Some(match (part, text) {
        ("attn_qkv", true) => Modules::of(&attention, &OF_TEXT),
        ("attn_qkv", false) => Modules::of(&attention, &OWN),
        ("attn_proj", true) => Modules::of(&attention, &["to_add_out"]),
        ("attn_proj", false) => Modules::of(&attention, &["to_out_0"]),
        ("attn2_qkv", false) => Modules::of(&format!("{p}attn2_"), &OWN),
        ("attn2_proj", false) => Modules::of(&format!("{p}attn2_"), &["to_out_0"]),
        ("mlp_fc1", _) => Modules::of(p, &[&format!("{feed}_net_0_proj")]),
        ("mlp_fc2", _) => Modules::of(p, &[&format!("{feed}_net_2")]),
        ("adaLN_modulation_1", false) => Modules::of(p, &["norm1_linear"]),
        ("adaLN_modulation_1", true) if last => Modules::of(p, &["norm1_context_linear"]).swapped(),
        ("adaLN_modulation_1", true) => Modules::of(p, &["norm1_context_linear"]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_and_others_are_not() {
        let of = |flat: &str| diffusers(flat, Some(3)).map(|all| (all.names.join(" "), all.swapped));
        for (flat, names, swapped) in [
            ("double_blocks_7_img_attn_proj", "transformer_blocks_7_attn_to_out_0", false),
            ("double_blocks_0_txt_mlp_2", "transformer_blocks_0_ff_context_net_2", false),
            ("double_blocks_0_txt_mod_lin", "transformer_blocks_0_norm1_context_linear", false),
            (
                "single_blocks_12_linear1",
                "single_transformer_blocks_12_attn_to_q single_transformer_blocks_12_attn_to_k \
                 single_transformer_blocks_12_attn_to_v single_transformer_blocks_12_proj_mlp",
                false,
            ),
            ("guidance_in_out_layer", "time_text_embed_guidance_embedder_linear_2", false),
            ("final_layer_adaLN_modulation_1", "norm_out_linear", true),
            (
                "joint_blocks_2_context_block_attn_qkv",
                "transformer_blocks_2_attn_add_q_proj transformer_blocks_2_attn_add_k_proj \
                 transformer_blocks_2_attn_add_v_proj",
                false,
            ),
            ("joint_blocks_2_x_block_attn2_proj", "transformer_blocks_2_attn2_to_out_0", false),
            (
                "joint_blocks_2_context_block_adaLN_modulation_1",
                "transformer_blocks_2_norm1_context_linear",
                false,
            ),
            (
                "joint_blocks_3_context_block_adaLN_modulation_1",
                "transformer_blocks_3_norm1_context_linear",
                true,
            ),
            ("joint_blocks_3_x_block_adaLN_modulation_1", "transformer_blocks_3_norm1_linear", false),
            ("y_embedder_mlp_0", "time_text_embed_text_embedder_linear_1", false),
        ] {
            assert_eq!(of(flat), Some((names.to_string(), swapped)), "{flat}");
        }
        for flat in [
            "double_blocks_x_img_attn_proj",
            "double_blocks_0_sky_attn_proj",
            "joint_blocks_0_x_block_attn3_qkv",
        ] {
            assert_eq!(of(flat), None, "{flat}");
        }
    }
}
