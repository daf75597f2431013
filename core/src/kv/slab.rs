//! The slabs: one pair of allocations per layer.

use crate::mem::{KvMut, KvRef, Slab};

/// Keys and values of all layers, and what blocks with a filter or an index keep of every position next to
/// them.
#[derive(Debug)]
pub struct PagedKv<M> {
    layers: Vec<Option<Slab<M>>>,
    next_to: Vec<Option<Slab<M>>>,
}

impl<M> PagedKv<M> {
    /// Takes the slab of every layer, none for one whose heads are all on other ranks; no layers for
    /// encoders.
    pub fn new(layers: Vec<Option<Slab<M>>>) -> Self {
        Self { layers, next_to: Vec::new() }
    }

    /// The same with what layers keep next to them, in as many page slots as the keys and values have.
    pub fn with(self, next_to: Vec<Option<Slab<M>>>) -> Self {
        Self { next_to, ..self }
    }

    /// Layers.
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Whether there is no layer (encoders).
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty()
    }

    /// One layer's slab, to read.
    pub fn layer(&self, layer: usize) -> Option<KvRef<'_, M>> {
        self.layers.get(layer)?.as_ref().map(Slab::view)
    }

    /// One layer's slab, to write.
    pub fn layer_mut(&mut self, layer: usize) -> Option<KvMut<'_, M>> {
        self.layers.get_mut(layer)?.as_mut().map(Slab::view_mut)
    }

    /// What one layer keeps next to keys and values, to read: a filter its input as keys and what its first
    /// matmul gave as values, an index both halves of its keys.
    pub fn next_to(&self, layer: usize) -> Option<KvRef<'_, M>> {
        self.next_to.get(layer)?.as_ref().map(Slab::view)
    }

    /// The same, to write.
    pub fn next_to_mut(&mut self, layer: usize) -> Option<KvMut<'_, M>> {
        self.next_to.get_mut(layer)?.as_mut().map(Slab::view_mut)
    }
}
