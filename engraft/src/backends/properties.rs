//! What reports say of every backend in the same words.

use engraft_core::backend::Backend;
use engraft_core::numerics::Numerics;
use serde_json::{Map, Value, json};

/// What every backend says of itself.
pub fn common<B: Backend>(backend: &B) -> Map<String, Value> {
    let (caps, Numerics { mode, madd }) = (backend.caps(), backend.numerics());
    let all = [
        ("name", json!(backend.name())),
        ("device", json!(caps.device)),
        ("element_types", json!(caps.dtypes.iter().map(|dtype| dtype.name()).collect::<Vec<_>>())),
        ("key_value_types", json!(caps.kv_formats)),
        ("graphs", json!(caps.graphs)),
        ("asynchronous", json!(caps.asynchronous)),
        ("memory_known", json!(caps.memory_bytes.is_some() || backend.free_bytes().is_some())),
        ("memory_bytes", json!(caps.memory_bytes)),
        ("memory_free_bytes", json!(backend.free_bytes())),
        ("slab_bytes", json!(caps.slab_bytes)),
        ("mode", json!(format!("{mode:?}").to_lowercase())),
        ("multiply_add", json!(format!("{madd:?}").to_lowercase())),
    ];
    all.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

/// The promises of a backend whose own kernels keep all of them.
#[cfg(any(feature = "cpu", feature = "cuda"))]
pub fn kept(how: &str) -> Value {
    let kept = || json!({"kept": true, "reason": how});
    json!({"reference": kept(), "invariant": kept(), "fast": kept()})
}
