//! The slabs: one pair of allocations per layer.

use super::{KvLayout, KvView};

/// Keys and values of all layers.
#[derive(Debug)]
pub struct PagedKv<M> {
    layers: Vec<(M, M, KvLayout)>,
}

impl<M> PagedKv<M> {
    /// Takes a `(k, v, layout)` per layer.
    pub fn new(layers: Vec<(M, M, KvLayout)>) -> Self {
        Self { layers }
    }

    /// Layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there is no layer (encoders).
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// One layer's slab.
    pub fn layer(&self, layer: usize) -> Option<KvView<'_, M>> {
        self.layers.get(layer).map(|(k, v, layout)| KvView { k, v, layout: *layout })
    }
}
