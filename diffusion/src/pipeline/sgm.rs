//! Names of a UNet's modules as the first code of Stable Diffusion counts its blocks.

/// The name that diffusers has for `flat` (underscores for dots), of a UNet with so many resnets for each
/// block; none for other names.
///
/// `input_blocks_N_M`, `middle_block_M` and `output_blocks_N_M` count all steps of the way down and up: after
/// each block's resnets comes what changes the size, and a resnet's attention is its step's second part.
pub(super) fn diffusers(flat: &str, layers: usize) -> Option<String> {
    let mut parts = flat.splitn(3, '_');
    let (way, blocks, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let (number, rest) = match (way, blocks) {
        ("middle", "block") => (0, rest),
        ("input" | "output", "blocks") => {
            let (number, rest) = rest.split_once('_')?;
            (number.parse::<usize>().ok()?, rest)
        }
        _ => return None,
    };
    let (part, module) = rest.split_once('_')?;
    let part: usize = part.parse().ok()?;
    match way {
        "middle" => match part {
            1 => Some(format!("mid_block_attentions_0_{module}")),
            0 | 2 => Some(format!("mid_block_resnets_{}_{}", part / 2, of_resnet(module)?)),
            _ => None,
        },
        "input" => {
            let number = number.checked_sub(1)?;
            let (block, layer) = (number / (layers + 1), number % (layers + 1));
            match (layer == layers, part) {
                (true, _) => Some(format!("down_blocks_{block}_downsamplers_0_conv")),
                (false, 0) => Some(format!("down_blocks_{block}_resnets_{layer}_{}", of_resnet(module)?)),
                (false, _) => Some(format!("down_blocks_{block}_attentions_{layer}_{module}")),
            }
        }
        _ => {
            let (block, layer) = (number / (layers + 1), number % (layers + 1));
            match (part, module) {
                (0, _) => Some(format!("up_blocks_{block}_resnets_{layer}_{}", of_resnet(module)?)),
                (_, "conv") => Some(format!("up_blocks_{block}_upsamplers_0_conv")),
                _ => Some(format!("up_blocks_{block}_attentions_{layer}_{module}")),
            }
        }
    }
}

fn of_resnet(module: &str) -> Option<&'static str> {
    Some(match module {
        "in_layers_2" => "conv1",
        "out_layers_3" => "conv2",
        "emb_layers_1" => "time_emb_proj",
        "skip_connection" => "conv_shortcut",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_counted_over_all_blocks() {
        for (flat, layers, want) in [
            ("input_blocks_3_1_proj_in", 1, Some("down_blocks_1_attentions_0_proj_in")),
            ("input_blocks_4_1_proj_in", 2, Some("down_blocks_1_attentions_0_proj_in")),
            ("input_blocks_3_0_op", 2, Some("down_blocks_0_downsamplers_0_conv")),
            ("input_blocks_1_0_in_layers_2", 2, Some("down_blocks_0_resnets_0_conv1")),
            ("middle_block_1_proj_out", 2, Some("mid_block_attentions_0_proj_out")),
            ("middle_block_2_out_layers_3", 2, Some("mid_block_resnets_1_conv2")),
            ("output_blocks_2_1_proj_out", 1, Some("up_blocks_1_attentions_0_proj_out")),
            ("output_blocks_5_2_conv", 2, Some("up_blocks_1_upsamplers_0_conv")),
            ("output_blocks_2_1_conv", 2, Some("up_blocks_0_upsamplers_0_conv")),
            ("down_blocks_0_attentions_0_proj_in", 2, None),
            ("input_blocks_0_0_conv", 2, None),
            ("input_blocks_x_0_conv", 2, None),
            ("middle_block", 2, None),
        ] {
            assert_eq!(diffusers(flat, layers).as_deref(), want, "{flat}");
        }
    }
}
