//! Pages that requests have filled, kept for those whose tokens begin alike.
//!
//! A tree whose edges are whole pages: a node is found by the identity of its parent and the tokens of its
//! page, which are compared and not only hashed, so that no two prefixes are ever taken for one another. The
//! tree is one owner of every page in it. Whoever owns the page of a node owns those of its ancestors, too:
//! pages that the tree alone owns are therefore whole subtrees, and all of them can be evicted, leaves first.
//!
//! Where there is a store for evicted pages a node stays when its page is evicted, with the number that the
//! store has it by; below such a node there are only others of its kind.

use super::PagePool;
use super::recency::Recency;
use crate::{Error, Result};
use hashbrown::HashTable;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// What keys and values depend on besides the tokens before them. Requests that differ in it share nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey {
    /// Keeps requests apart that may not learn of each other: how long a prompt takes shows what was cached.
    pub salt: String,
    /// The row of the rotary tables that position 0 reads: with LongRoPE it depends on the prompt's length.
    pub rope_shift: u32,
    /// The one request that has it, where the keys and values have come from outside: nobody else reads what
    /// this engine has not computed.
    pub private: Option<u64>,
    /// What an encoder reads: keys and values of each of its rows depend on all of it.
    pub source: Arc<[u32]>,
}

/// A node of the tree: a page behind those of its ancestors.
#[derive(Debug, Clone)]
struct Node {
    /// None for a root, which has no page.
    parent: Option<u32>,
    place: Place,
    /// Of the parent's number and the tokens of the page.
    hash: u64,
    /// Children in the pool.
    children: u32,
    /// Of a root: what leads to it.
    key: Option<Box<PrefixKey>>,
}

/// Where the page of a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// A root has none.
    Nowhere,
    /// In the pool.
    Pool(u32),
    /// In the store, or on its way there.
    Store(u64),
}

/// Pages by the tokens that lead to them.
#[derive(Debug, Clone)]
pub struct PrefixTree {
    page_size: usize,
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    roots: BTreeMap<PrefixKey, u32>,
    /// The tokens of the pages of all nodes, one after the other: nothing is allocated for a page that takes
    /// the place of another.
    tokens: Vec<u32>,
    /// All nodes but the roots, by the number of their parent and the tokens of their page.
    index: HashTable<u32>,
    hasher: RandomState,
    /// Nodes without children in the pool but the roots. A node takes the place of its last child: to use a
    /// page is to use those before it.
    leaves: Recency,
    /// Nodes by what the store has their pages by.
    stored: BTreeMap<u64, u32>,
    /// Nodes whose page is in the store, behind their parents.
    stored_below: BTreeSet<(u32, u32)>,
    /// Pages that have gone to the store so far.
    gone: u64,
    /// What the store has pages by whose nodes have one in the pool again.
    revived: Vec<u64>,
}

impl PrefixTree {
    /// An empty tree of pages of `page_size` positions.
    pub fn new(page_size: usize) -> Self {
        Self {
            page_size,
            nodes: Vec::new(),
            free: Vec::new(),
            roots: BTreeMap::new(),
            tokens: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            leaves: Recency::new(),
            stored: BTreeMap::new(),
            stored_below: BTreeSet::new(),
            gone: 0,
            revived: Vec::new(),
        }
    }

    /// Pages in the tree that are in the pool.
    pub fn len(&self) -> usize {
        self.index.len() - self.stored.len()
    }

    /// Pages in the tree that are in the store.
    pub fn stored(&self) -> usize {
        self.stored.len()
    }

    /// What the store has pages of the tree by.
    pub(super) fn stored_numbers(&self) -> impl Iterator<Item = u64> {
        self.stored.keys().copied()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The page of a node, where it is in the pool.
    pub fn page(&self, node: u32) -> Option<u32> {
        match self.place(node)? {
            Place::Pool(page) => Some(page),
            _ => None,
        }
    }

    pub(super) fn place(&self, node: u32) -> Option<Place> {
        Some(self.nodes.get(node as usize)?.as_ref()?.place)
    }

    /// The pages of all nodes.
    pub(super) fn owned(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().flatten().filter_map(|node| match node.place {
            Place::Pool(page) => Some(page),
            _ => None,
        })
    }

    /// Replaces `path` by the nodes of the longest run of whole pages, at most `most`, that `tokens` begin
    /// with, and counts them as used.
    pub fn find(&mut self, key: &PrefixKey, tokens: &[u32], most: usize, path: &mut Vec<u32>) {
        path.clear();
        let Some(mut at) = self.roots.get(key).copied() else { return };
        for page in tokens.chunks_exact(self.page_size).take(most) {
            let Some(child) = self.child(self.hash(at, page), at, page) else { break };
            self.touch(child);
            path.push(child);
            at = child;
        }
    }

    fn hash(&self, parent: u32, tokens: &[u32]) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        // Whole words at a time, and no length: all pages have one.
        hasher.write_u64(u64::from(parent));
        hasher.write(bytemuck::cast_slice(tokens));
        hasher.finish()
    }

    fn child(&self, hash: u64, parent: u32, tokens: &[u32]) -> Option<u32> {
        let is = |number: &u32| {
            let node = self.nodes.get(*number as usize).and_then(Option::as_ref);
            node.is_some_and(|node| node.parent == Some(parent)) && self.tokens_of(*number) == tokens
        };
        self.index.find(hash, is).copied()
    }

    fn tokens_of(&self, number: u32) -> &[u32] {
        let begin = number as usize * self.page_size;
        self.tokens.get(begin..begin + self.page_size).unwrap_or_default()
    }

    fn touch(&mut self, number: u32) {
        if self.leaves.remove(number) {
            self.leaves.append(number);
        }
    }

    /// The node of `tokens`, a whole page, behind node `parent` (none: the root of `key`): the one that is
    /// there, or a new one of `page`, which the tree then owns, too.
    ///
    /// # Errors
    /// `Internal` for a page without an owner, or one that is in the tree already.
    pub fn insert(
        &mut self,
        key: &PrefixKey,
        parent: Option<u32>,
        tokens: &[u32],
        page: u32,
        pool: &mut PagePool,
    ) -> Result<u32> {
        let parent = match parent.or_else(|| self.roots.get(key).copied()) {
            Some(parent) => parent,
            None => {
                pool.keep(page)?;
                let root = self.add(None, Place::Nowhere, 0);
                self.node_mut(root)?.key = Some(Box::new(key.clone()));
                self.roots.insert(key.clone(), root);
                return Ok(self.hang(self.hash(root, tokens), root, tokens, page));
            }
        };
        let hash = self.hash(parent, tokens);
        if let Some(node) = self.child(hash, parent, tokens) {
            match self.place(node) {
                Some(Place::Store(_)) => self.bring_back(node, page, pool)?,
                _ => self.touch(node),
            }
            return Ok(node);
        }
        pool.keep(page)?;
        Ok(self.hang(hash, parent, tokens, page))
    }

    /// Adds a node that is not there yet.
    fn hang(&mut self, hash: u64, parent: u32, tokens: &[u32], page: u32) -> u32 {
        let node = self.add(Some(parent), Place::Pool(page), hash);
        let begin = node as usize * self.page_size;
        self.tokens.resize(self.tokens.len().max(begin + self.page_size), 0);
        self.tokens[begin..begin + self.page_size].copy_from_slice(tokens);
        let nodes = &self.nodes;
        let hash_of = |number: &u32| nodes[*number as usize].as_ref().map_or(0, |node| node.hash);
        self.index.insert_unique(hash, node, hash_of);
        self.leaves.append(node);
        if let Some(above) = self.nodes.get_mut(parent as usize).and_then(Option::as_mut) {
            above.children += 1;
            self.leaves.remove(parent);
        }
        node
    }

    fn add(&mut self, parent: Option<u32>, place: Place, hash: u64) -> u32 {
        let node = Some(Node { parent, place, hash, children: 0, key: None });
        match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() as u32 - 1
            }
        }
    }

    /// Takes a node out, but for its part in others.
    fn take(&mut self, number: u32) -> Result<Node> {
        let node = self.nodes.get_mut(number as usize).and_then(Option::take);
        let node = node.ok_or_else(|| Error::internal("a node of the prefix tree is missing"))?;
        if let Ok(entry) = self.index.find_entry(node.hash, |other| *other == number) {
            entry.remove();
        }
        self.free.push(number);
        Ok(node)
    }

    /// Leaves whose page nothing else owns, the one that was used longest ago first.
    pub fn evictable(&self, pool: &PagePool) -> impl Iterator<Item = u32> {
        let idle = |node: &u32| self.page(*node).is_some_and(|page| pool.owners(page) == 1);
        self.leaves.iter().filter(idle)
    }

    /// Nodes of the pool that have one of these pages, or are below one that has: each before its parent.
    pub(super) fn at_or_below(&self, pages: &[u32]) -> Vec<u32> {
        let pages: HashSet<u32> = pages.iter().copied().collect();
        // Of every node whether it is such a one, and how deep it lies.
        let mut known: Vec<Option<(bool, u32)>> = vec![None; self.nodes.len()];
        let (mut found, mut path) = (Vec::new(), Vec::new());
        for number in 0..self.nodes.len() as u32 {
            let (mut at, mut above) = (number, (false, 0));
            while let Some(node) = self.nodes.get(at as usize).and_then(Option::as_ref) {
                if let Some(seen) = known[at as usize] {
                    above = seen;
                    break;
                }
                path.push(at);
                let Some(parent) = node.parent else { break };
                at = parent;
            }
            while let Some(at) = path.pop() {
                let page = self.page(at);
                above = (above.0 || page.is_some_and(|page| pages.contains(&page)), above.1 + 1);
                known[at as usize] = Some(above);
                if above.0 && page.is_some() {
                    found.push((above.1, at));
                }
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.into_iter().map(|(_, number)| number).collect()
    }

    /// Every page of the tree with its request's key and the tokens that lead to it, its own included; in
    /// their order.
    pub fn pages(&self) -> Vec<(&PrefixKey, Vec<u32>, u32)> {
        let numbers = (0..self.nodes.len() as u32).filter(|number| self.page(*number).is_some());
        let mut pages: Vec<_> = numbers.filter_map(|number| self.described(number)).collect();
        pages.sort_unstable();
        pages
    }

    fn described(&self, number: u32) -> Option<(&PrefixKey, Vec<u32>, u32)> {
        let (mut at, mut path) = (number, Vec::new());
        while let Some(Node { parent: Some(parent), .. }) = self.nodes.get(at as usize)?.as_ref() {
            path.push(self.tokens_of(at));
            at = *parent;
        }
        let key = self.nodes.get(at as usize)?.as_ref()?.key.as_deref()?;
        path.reverse();
        Some((key, path.concat(), self.page(number)?))
    }

    fn node_mut(&mut self, number: u32) -> Result<&mut Node> {
        let node = self.nodes.get_mut(number as usize).and_then(Option::as_mut);
        node.ok_or_else(|| Error::internal("a node of the prefix tree is missing"))
    }

    /// Gives the page of a leaf up for the store; the number that it has there.
    ///
    /// # Errors
    /// `Internal` where there is no leaf of this number.
    pub(super) fn stow(&mut self, leaf: u32, pool: &mut PagePool) -> Result<u64> {
        self.gone += 1;
        let (gone, node) = (self.gone, self.node_mut(leaf)?);
        let parent = node.parent;
        let place = std::mem::replace(&mut node.place, Place::Store(gone));
        let (Place::Pool(page), Some(parent)) = (place, parent) else {
            return Err(Error::internal("a node of the prefix tree has no page"));
        };
        pool.unkeep(page)?;
        self.stored.insert(gone, leaf);
        self.stored_below.insert((parent, leaf));
        self.loses_leaf(parent, leaf)?;
        Ok(gone)
    }

    /// Puts a page of the pool in the place of a node's page in the store.
    ///
    /// # Errors
    /// `Internal` for a page without an owner, or one that is in the tree already.
    pub(super) fn bring_back(&mut self, node: u32, page: u32, pool: &mut PagePool) -> Result<()> {
        let back = self.node_mut(node)?;
        let (Place::Store(gone), Some(parent)) = (back.place, back.parent) else {
            return Err(Error::internal("a node of the prefix tree is in the pool already"));
        };
        pool.keep(page)?;
        back.place = Place::Pool(page);
        self.stored.remove(&gone);
        self.revived.push(gone);
        self.stored_below.remove(&(parent, node));
        self.leaves.append(node);
        self.node_mut(parent)?.children += 1;
        self.leaves.remove(parent);
        Ok(())
    }

    /// Those that the store need not keep: their nodes have a page in the pool again.
    pub(super) fn take_revived(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.revived)
    }

    /// A child of a node, a leaf, is not in the pool any more.
    fn loses_leaf(&mut self, parent: u32, leaf: u32) -> Result<()> {
        let above = self.node_mut(parent)?;
        above.children -= 1;
        match (above.children, above.parent) {
            (0, Some(_)) => self.leaves.replace(leaf, parent),
            (children, _) => {
                self.leaves.remove(leaf);
                if children == 0 {
                    self.drop_root(parent);
                }
            }
        }
        Ok(())
    }

    fn drop_root(&mut self, root: u32) {
        let stored = self.stored_below.range((root, 0)..=(root, u32::MAX)).next().is_some();
        let bare = |node: &Node| node.parent.is_none() && node.children == 0 && !stored;
        if self.nodes.get(root as usize).and_then(Option::as_ref).is_some_and(bare) {
            let key = self.nodes[root as usize].take().and_then(|node| node.key);
            self.free.push(root);
            key.map(|key| self.roots.remove(&key));
        }
    }

    /// Removes a leaf, and what is stored below it; adds what the store has that by to `dropped`.
    ///
    /// # Errors
    /// `Internal` where there is none of this number.
    pub(super) fn remove(&mut self, leaf: u32, pool: &mut PagePool, dropped: &mut Vec<u64>) -> Result<()> {
        self.forget_below(leaf, dropped)?;
        let node = self.take(leaf)?;
        let (Place::Pool(page), Some(parent)) = (node.place, node.parent) else {
            return Err(Error::internal("a leaf of the prefix tree has no page"));
        };
        pool.unkeep(page)?;
        self.loses_leaf(parent, leaf)
    }

    /// Removes the pages of the keys that request `private` alone has; adds what the store has those by to
    /// `dropped`.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn remove_private(
        &mut self,
        private: u64,
        pool: &mut PagePool,
        dropped: &mut Vec<u64>,
    ) -> Result<()> {
        let roots = self.roots.iter().filter(|(key, _)| key.private == Some(private));
        for root in roots.map(|(_, root)| *root).collect::<Vec<_>>() {
            let below_root = |number: &u32| {
                let node = self.nodes.get(*number as usize).and_then(Option::as_ref);
                node.is_some_and(|node| node.parent == Some(root))
            };
            let first: Vec<u32> = self.index.iter().copied().filter(below_root).collect();
            let pages: Vec<u32> = first.iter().filter_map(|number| self.page(*number)).collect();
            for node in self.at_or_below(&pages) {
                self.remove(node, pool, dropped)?;
            }
            self.forget_below(root, dropped)?;
            self.drop_root(root);
        }
        Ok(())
    }

    /// The store has given a page up: its node goes, and those below it; adds what the store has those by to
    /// `dropped`.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn forget(&mut self, gone: u64, dropped: &mut Vec<u64>) -> Result<()> {
        let Some(number) = self.stored.remove(&gone) else { return Ok(()) };
        self.forget_below(number, dropped)?;
        if let Some(parent) = self.take(number)?.parent {
            self.stored_below.remove(&(parent, number));
            self.drop_root(parent);
        }
        Ok(())
    }

    /// Takes out what is stored below a node. A text may have any number of pages, one below the other: it
    /// takes no stack for each.
    fn forget_below(&mut self, number: u32, dropped: &mut Vec<u64>) -> Result<()> {
        if self.stored_below.is_empty() {
            return Ok(());
        }
        let mut above = vec![number];
        while let Some(parent) = above.pop() {
            while let Some((_, node)) =
                self.stored_below.range((parent, 0)..=(parent, u32::MAX)).next().copied()
            {
                self.stored_below.remove(&(parent, node));
                if let Place::Store(gone) = self.take(node)?.place {
                    self.stored.remove(&gone);
                    dropped.push(gone);
                }
                above.push(node);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
