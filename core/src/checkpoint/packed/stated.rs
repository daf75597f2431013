//! What matrices become of which only the configuration is there: it says how they are packed.

use super::method::{self, Method};
use super::{block_of, native};
use crate::mem::{Block, GroupBits, Stored};
use crate::{Error, Result};
use serde_json::Value;

/// Where a configuration lists modules whose matrices are stored as they are.
const APART: [&str; 2] = ["modules_to_not_convert", "ignored_layers"];

/// How the matrices of a model are packed, as its configuration says.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct StatedPacking {
    method: Method,
    /// Columns that share a factor; none where a whole row does.
    run: Option<usize>,
    apart: Vec<String>,
    /// What else is asked for and not done; one sentence each.
    pub(in crate::checkpoint) notes: Vec<String>,
}

impl StatedPacking {
    /// Reads it and takes it out of the configuration; none where nothing is said.
    ///
    /// # Errors
    /// `Config` for a method whose formats only headers of tensors say, and what [`method::read`] refuses.
    pub(in crate::checkpoint) fn take(config: &mut Value) -> Result<Option<Self>> {
        let Some(said) = method::read(config)? else { return Ok(None) };
        let method = said.method;
        if !matches!(method, Method::Fp8 | Method::Mxfp4) {
            let allowed =
                "fp8, mxfp4, or none: what else becomes of a matrix its tensors say; give the folder";
            return Err(Error::config("quantization_config.quant_method", method.name(), allowed));
        }
        let field = |name: &str| method::FIELDS.iter().find_map(|place| method::at(config, place)?.get(name));
        let blocks = field("weight_block_size").is_some_and(|size| !size.is_null());
        let run = if blocks { Some(block_of(config)?[1]) } else { None };
        let listed = APART.iter().filter_map(|name| field(name)?.as_array()).flatten();
        let apart = listed.filter_map(|name| name.as_str().map(str::to_owned)).collect();
        method::forget(config);
        Ok(Some(Self { method, run, apart, notes: said.not_done }))
    }

    /// The name of the method.
    pub(in crate::checkpoint) fn name(&self) -> &'static str {
        self.method.name()
    }

    /// The type that a matrix inside a block becomes, with rows of `cols` values; none where it is stored as
    /// it is. `experts`: it holds the matrices of experts.
    pub(in crate::checkpoint) fn stored(&self, name: &str, cols: usize, experts: bool) -> Option<Stored> {
        if self.apart.iter().any(|module| is_in(module, name)) {
            return None;
        }
        match self.method {
            Method::Mxfp4 => experts.then_some(Stored::Block(Block::Q5_0)),
            _ => native::target(GroupBits::E4m3, cols, self.run.unwrap_or(cols), &[]),
        }
    }
}

/// Whether the parts of a module's name, of which `*` is any, stand one after the other in a tensor's name.
fn is_in(module: &str, name: &str) -> bool {
    let (module, name): (Vec<&str>, Vec<&str>) = (module.split('.').collect(), name.split('.').collect());
    name.windows(module.len()).any(|at| at.iter().zip(&module).all(|(a, b)| *b == "*" || a == b))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::mem::Groups;
    use serde_json::json;

    fn of(said: Value) -> StatedPacking {
        StatedPacking::take(&mut json!({"quantization_config": said})).unwrap().unwrap()
    }

    #[test]
    fn a_configuration_says_what_matrices_become() {
        let fp8 = of(json!({"quant_method": "fp8", "weight_block_size": [128, 64], "modules_to_not_convert":
            ["gate", "model.layers.*.self_attn.o_proj"]}));
        let groups = |size| Some(Stored::Group(Groups::floats(GroupBits::E4m3, size), 256));
        assert_eq!(fp8.stored("model.layers.3.mlp.up_proj.weight", 256, false), groups(64));
        assert_eq!(fp8.stored("model.layers.3.mlp.gate.weight", 256, false), None);
        assert_eq!(fp8.stored("model.layers.3.mlp.gate_proj.weight", 256, false), groups(64));
        assert_eq!(fp8.stored("model.layers.30.self_attn.o_proj.weight", 256, false), None);
        // Without blocks a row has one factor.
        assert_eq!(of(json!({"quant_method": "fp8"})).stored("a.weight", 256, false), groups(0));
        let mxfp4 = of(json!({"quant_method": "mxfp4"}));
        assert_eq!(mxfp4.stored("a.experts.down_proj", 256, true), Some(Stored::Block(Block::Q5_0)));
        assert_eq!(mxfp4.stored("a.q_proj.weight", 256, false), None);
    }

    #[test]
    fn it_is_taken_out_of_the_configuration_or_refused() {
        let mut config = json!({"model_type": "x", "quantization_config": {"quant_method": "fp8"}});
        assert!(StatedPacking::take(&mut config).unwrap().is_some());
        assert_eq!(config, json!({"model_type": "x"}));
        assert!(StatedPacking::take(&mut config).unwrap().is_none());
        let mut gptq = json!({"quantization_config": {"quant_method": "gptq", "bits": 4}});
        let text = StatedPacking::take(&mut gptq).map(drop).unwrap_err().to_string();
        assert!(text.contains("quant_method") && text.contains("gptq") && text.contains("folder"), "{text}");
    }
}
