//! The slabs: one pair of allocations per layer.

use super::{KvLayout, KvView};

type Slab<M> = (M, M, KvLayout);

/// Keys and values of all layers, and what blocks with a filter keep of every position beside them.
#[derive(Debug)]
pub struct PagedKv<M> {
    layers: Vec<Slab<M>>,
    filters: Vec<Option<Slab<M>>>,
}

impl<M> PagedKv<M> {
    /// Takes a `(k, v, layout)` per layer.
    pub fn new(layers: Vec<(M, M, KvLayout)>) -> Self {
        Self { layers, filters: Vec::new() }
    }

    /// The same with what layers' filters keep, a slot for every slot of the keys and values.
    pub fn with_filters(self, filters: Vec<Option<(M, M, KvLayout)>>) -> Self {
        Self { filters, ..self }
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
        self.layers.get(layer).map(view)
    }

    /// What one layer's filter keeps: its input as keys, what its first product gave as values.
    pub fn filter(&self, layer: usize) -> Option<KvView<'_, M>> {
        self.filters.get(layer)?.as_ref().map(view)
    }
}

fn view<M>((k, v, layout): &Slab<M>) -> KvView<'_, M> {
    KvView { k, v, layout: *layout }
}
