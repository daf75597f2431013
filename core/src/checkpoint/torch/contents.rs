//! The tensors of a pickle, each with the window of the file that holds it, and what stands next to them.

use super::pickle::Pickle;
use super::value::{Node, Tensor, Value};
use crate::checkpoint::TensorInfo;
use crate::checkpoint::tensors::{Placed, View};
use crate::{Error, Result};
use serde_json::{Map, Number, Value as Json};

/// Deepest nesting of dictionaries.
const MAX_DEPTH: usize = 12;
/// Most facts that are kept next to the tensors, and the longest text among them.
const MAX_FACTS: usize = 4096;
const MAX_TEXT: usize = 512;
/// Where training programs put the weights of a file that holds more than weights.
const WRAPPERS: [&str; 4] = ["module", "model", "state_dict", "model_state_dict"];

/// What one file holds.
pub(in crate::checkpoint) struct Contents {
    /// The tensors, names joined by dots.
    pub(in crate::checkpoint) tensors: Vec<Placed>,
    /// Numbers, switches and short texts next to the tensors: `checkpoint_version`, `args.hidden_size`, ...
    pub(in crate::checkpoint) facts: Map<String, Json>,
}

/// Tensors and facts of a pickle; `find` returns where a storage's bytes lie.
pub(super) fn contents(
    file: &str,
    pickle: &Pickle<'_>,
    shard: usize,
    find: &mut dyn FnMut(&str) -> Result<(u64, u64)>,
) -> Result<Contents> {
    let mut walk = Walk { pickle, found: Vec::new(), left: 4 * pickle.size() + (1 << 16) };
    let weights = weights(pickle).map_err(|what| Error::format(file, what))?;
    walk.map(&mut String::new(), weights, 0).map_err(|what| Error::format(file, what))?;
    if walk.found.is_empty() {
        return Err(Error::format(file, "holds no tensor"));
    }
    let mut tensors = Vec::with_capacity(walk.found.len());
    for (name, tensor) in walk.found {
        let place = place(&name, tensor, find(&tensor.key)?)
            .map_err(|what| Error::tensor(&name, format!("{what} (in {file})")))?;
        tensors.push(Placed { shard, ..place });
    }
    Ok(Contents { tensors, facts: facts(pickle, weights) })
}

/// The dictionary that holds the weights: what a wrapper's key leads to, else the whole.
fn weights(pickle: &Pickle<'_>) -> Result<Value, String> {
    if pickle.map(pickle.root).is_none() {
        return Err("holds no dictionary of tensors".into());
    }
    let wrapped = |key: &&str| pickle.get(pickle.root, key).filter(|v| pickle.map(*v).is_some());
    let found: Vec<&str> = WRAPPERS.into_iter().filter(|k| wrapped(k).is_some()).collect();
    match found[..] {
        [] => Ok(pickle.root),
        [one] => Ok(wrapped(&one).unwrap_or(pickle.root)),
        _ => Err(format!("has weights under several keys ({}); one is expected", found.join(", "))),
    }
}

/// Collects tensors below nested dictionaries.
struct Walk<'p, 'a> {
    pickle: &'p Pickle<'a>,
    found: Vec<(String, &'p Tensor)>,
    /// Steps and bytes of names that may still be spent: a dictionary that is referred to again and again
    /// would otherwise unfold without end.
    left: usize,
}

impl Walk<'_, '_> {
    fn map(&mut self, prefix: &mut String, map: Value, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("has dictionaries nested more than {MAX_DEPTH} deep"));
        }
        let pickle = self.pickle;
        for (key, value) in pickle.map(map).unwrap_or_default() {
            let number = if let Value::Int(n) = key { n.to_string() } else { String::new() };
            let Some(key) = pickle.text(*key).or((!number.is_empty()).then_some(number.as_str())) else {
                continue;
            };
            let cost = prefix.len() + key.len() + 2;
            self.left =
                self.left.checked_sub(cost).ok_or("its dictionaries unfold to more than the file holds")?;
            let length = prefix.len();
            if length > 0 {
                prefix.push('.');
            }
            prefix.push_str(key);
            match pickle.node(*value) {
                Some(Node::Tensor(tensor)) => self.found.push((prefix.clone(), tensor)),
                Some(Node::Map(_)) => self.map(prefix, *value, depth + 1)?,
                _ => {}
            }
            prefix.truncate(length);
        }
        Ok(())
    }
}

/// A tensor's window in bytes of the file.
fn place(name: &str, tensor: &Tensor, (start, end): (u64, u64)) -> Result<Placed, String> {
    let Tensor { stored, count, offset, shape, strides, .. } = tensor;
    let size = stored.bytes(1).unwrap_or(1) as u64;
    let room = end - start;
    if count.checked_mul(size).is_none_or(|bytes| bytes > room) {
        return Err(format!("its storage of {count} {stored} needs more than the {room} bytes it has"));
    }
    let elements = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d as u64));
    let elements = elements.ok_or_else(|| format!("shape {shape:?} overflows"))?;
    let mut last = *offset;
    for (dim, stride) in shape.iter().zip(strides) {
        let reach = (*dim as u64).saturating_sub(1).checked_mul(*stride);
        last =
            reach.and_then(|r| last.checked_add(r)).ok_or_else(|| format!("strides {strides:?} overflow"))?;
    }
    if elements > 0 && last >= *count {
        return Err(format!(
            "shape {shape:?} with strides {strides:?} from element {offset} leaves its storage of {count} elements"
        ));
    }
    if elements > *count {
        return Err(format!(
            "shape {shape:?} repeats elements of a storage of {count}; expanded tensors are not supported"
        ));
    }
    let info = TensorInfo { name: name.to_owned(), shape: shape.clone(), stored: *stored };
    let from = if elements == 0 { start } else { start + offset * size };
    let mut contiguous = elements.max(1);
    let plain = elements == 0
        || shape.iter().zip(strides).all(|(dim, stride)| {
            contiguous /= (*dim as u64).max(1);
            *dim == 1 || *stride == contiguous
        });
    if plain {
        return Ok(Placed { info, shard: 0, start: from, end: from + elements * size, view: None });
    }
    let view =
        View::Strided { size: size as usize, strides: strides.iter().map(|s| (s * size) as usize).collect() };
    Ok(Placed { info, shard: 0, start: from, end: start + (last + 1) * size, view: Some(view) })
}

/// Numbers, switches and short texts of the file's top dictionary, and one level below.
fn facts(pickle: &Pickle<'_>, weights: Value) -> Map<String, Json> {
    let mut facts = Map::new();
    if weights == pickle.root {
        return facts;
    }
    for (key, value) in pickle.map(pickle.root).unwrap_or_default() {
        let Some(key) = pickle.text(*key).filter(|k| k.len() <= MAX_TEXT) else { continue };
        if *value == weights || facts.len() >= MAX_FACTS {
            continue;
        }
        if let Some(fact) = fact(pickle, *value) {
            facts.insert(key.to_owned(), fact);
        }
        let inner = pickle.map(*value).unwrap_or_default();
        for (name, value) in inner.iter().take(MAX_FACTS - facts.len()) {
            if let (Some(name), Some(fact)) =
                (pickle.text(*name).filter(|k| k.len() <= MAX_TEXT), fact(pickle, *value))
            {
                facts.insert(format!("{key}.{name}"), fact);
            }
        }
    }
    facts
}

fn fact(pickle: &Pickle<'_>, value: Value) -> Option<Json> {
    match value {
        Value::Bool(b) => Some(Json::Bool(b)),
        Value::Int(n) => Some(Json::from(n)),
        Value::Float(f) => Number::from_f64(f).map(Json::Number),
        other => match pickle.list(other) {
            Some(list) => same_number(list),
            None => pickle.text(other).filter(|t| t.len() <= MAX_TEXT).map(Json::from),
        },
    }
}

/// The number that every element of a list is (Megatron writes `num_experts` as a list); none for any other
/// list.
fn same_number(list: &[Value]) -> Option<Json> {
    match list.split_first() {
        Some((Value::Int(first), rest))
            if rest.len() < MAX_FACTS && rest.iter().all(|v| *v == Value::Int(*first)) =>
        {
            Some(Json::from(*first))
        }
        _ => None,
    }
}
