//! Which values share a buffer: a buffer is free again behind the last node that reads its value.
//!
//! Constant nodes run first. What steps read of them, and inputs, keep their buffers for good: steps run many
//! times, and captured ones at fixed places.

use super::{Graph, Value};

/// The order of nodes and the buffers of values.
#[derive(Debug, Clone, Default)]
pub struct Lives {
    /// Nodes that run once.
    pub once: Vec<usize>,
    /// Nodes of every step.
    pub each: Vec<usize>,
    /// The buffer of every value; empty values have none.
    pub buffers: Vec<Option<usize>>,
    /// Elements of every buffer.
    pub sizes: Vec<usize>,
    /// By node: whether its first argument is copied before it is changed, since others read it later.
    pub copies: Vec<bool>,
}

/// Who reads a value last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    /// No node.
    Unread,
    /// The node at this place of the order.
    At(usize),
    /// It stays.
    Never,
}

impl Lives {
    /// Those of a graph.
    pub fn of(graph: &Graph) -> Self {
        let (once, each): (Vec<usize>, Vec<usize>) =
            (0..graph.nodes.len()).partition(|n| graph.size(graph.nodes[*n].out).constant);
        let order: Vec<usize> = once.iter().chain(&each).copied().collect();
        let last = last_reads(graph, &order);
        let mut lives = Self {
            once,
            each,
            buffers: vec![None; graph.values.len()],
            copies: vec![false; graph.nodes.len()],
            ..Self::default()
        };
        let mut free: Vec<usize> = Vec::new();
        for (_, input) in &graph.inputs {
            lives.buffers[input.0] = Some(lives.take(&mut Vec::new(), graph.size(*input).elements()));
        }
        for (place, n) in order.iter().enumerate() {
            let node = &graph.nodes[*n];
            let dies = |value: &Value| last[value.0] == Last::At(place);
            let given = node.args.first().filter(|_| node.step.is_in_place());
            let taken = given.filter(|value| dies(value)).and_then(|value| lives.buffers[value.0]);
            lives.copies[*n] = given.is_some() && taken.is_none();
            let elements = graph.size(node.out).elements();
            lives.buffers[node.out.0] = match taken {
                Some(buffer) => Some(buffer),
                None => (elements > 0).then(|| lives.take(&mut free, elements)),
            };
            let mut done: Vec<usize> =
                node.args.iter().filter(|v| dies(v)).filter_map(|v| lives.buffers[v.0]).collect();
            done.retain(|buffer| taken != Some(*buffer));
            done.sort_unstable();
            done.dedup();
            free.extend(done);
            // What nothing reads.
            if last[node.out.0] == Last::Unread {
                free.extend(lives.buffers[node.out.0]);
            }
        }
        lives
    }

    /// The smallest free buffer that is large enough, else the largest, which grows; else a new one.
    fn take(&mut self, free: &mut Vec<usize>, elements: usize) -> usize {
        let fits = free.iter().enumerate().filter(|(_, b)| self.sizes[**b] >= elements);
        let best = fits.min_by_key(|(_, b)| self.sizes[**b]).map(|(i, _)| i);
        let largest = || free.iter().enumerate().max_by_key(|(_, b)| self.sizes[**b]).map(|(i, _)| i);
        match best.or_else(largest) {
            Some(at) => {
                let buffer = free.swap_remove(at);
                self.sizes[buffer] = self.sizes[buffer].max(elements);
                buffer
            }
            None => {
                self.sizes.push(elements);
                self.sizes.len() - 1
            }
        }
    }
}

/// The last reader of every value, by its place in the order.
fn last_reads(graph: &Graph, order: &[usize]) -> Vec<Last> {
    let mut last = vec![Last::Unread; graph.values.len()];
    for (place, n) in order.iter().enumerate() {
        let node = &graph.nodes[*n];
        let constant = graph.size(node.out).constant;
        for arg in &node.args {
            let outlives = graph.size(*arg).constant && !constant;
            last[arg.0] = last[arg.0].max(if outlives { Last::Never } else { Last::At(place) });
        }
    }
    for value in graph.outputs.iter().chain(graph.inputs.iter().map(|(_, value)| value)) {
        last[value.0] = Last::Never;
    }
    last
}
