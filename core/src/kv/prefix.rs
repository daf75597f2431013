//! Pages that requests have filled, kept for those whose tokens begin alike.
//!
//! A tree whose edges are whole pages: a node is found by the identity of its parent and the tokens of its
//! page, which are compared and not only hashed, so that no two prefixes are ever taken for one another. The
//! tree is one owner of every page in it. Whoever owns the page of a node owns those of its ancestors, too:
//! pages that the tree alone owns are therefore whole subtrees, and all of them can be evicted, leaves first.

use super::PagePool;
use crate::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What keys and values depend on besides the tokens before them. Requests that differ in it share nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrefixKey {
    /// Keeps requests apart that may not learn of each other: how long a prompt takes shows what was cached.
    pub salt: String,
    /// The row of the rotary tables that position 0 reads: with LongRoPE it depends on the prompt's length.
    pub rope_shift: u32,
}

/// A node of the tree: a page behind those of its ancestors.
#[derive(Debug, Clone)]
struct Node {
    /// None for a root, which has no page.
    parent: Option<u32>,
    page: u32,
    /// The parent's number, then the tokens of the page: the node's place in the index.
    edge: Box<[u32]>,
    children: u32,
    /// When it was last used, by the tree's own count.
    used: u64,
}

/// Pages by the tokens that lead to them.
#[derive(Debug, Clone)]
pub struct PrefixTree {
    page_size: usize,
    nodes: Vec<Option<Node>>,
    free: Vec<u32>,
    roots: BTreeMap<PrefixKey, u32>,
    index: HashMap<Box<[u32]>, u32>,
    /// Nodes without children but the roots, the one that was used longest ago first.
    leaves: BTreeSet<(u64, u32)>,
    clock: u64,
    edge: Vec<u32>,
}

impl PrefixTree {
    /// An empty tree of pages of `page_size` positions.
    pub fn new(page_size: usize) -> Self {
        Self {
            page_size,
            nodes: Vec::new(),
            free: Vec::new(),
            roots: BTreeMap::new(),
            index: HashMap::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            edge: Vec::with_capacity(page_size + 1),
        }
    }

    /// Pages in the tree.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The page of a node.
    pub fn page(&self, node: u32) -> Option<u32> {
        let node = self.nodes.get(node as usize)?.as_ref()?;
        node.parent.map(|_| node.page)
    }

    /// The pages of all nodes.
    pub(super) fn owned(&self) -> impl Iterator<Item = u32> {
        self.nodes.iter().flatten().filter(|node| node.parent.is_some()).map(|node| node.page)
    }

    /// Replaces `path` by the nodes of the longest run of whole pages, at most `most`, that `tokens` begin
    /// with, and counts them as used.
    pub fn find(&mut self, key: &PrefixKey, tokens: &[u32], most: usize, path: &mut Vec<u32>) {
        path.clear();
        let Some(mut at) = self.roots.get(key).copied() else { return };
        self.clock += 1;
        for page in tokens.chunks_exact(self.page_size).take(most) {
            let Some(child) = self.child(at, page) else { break };
            self.touch(child);
            path.push(child);
            at = child;
        }
    }

    fn child(&mut self, parent: u32, tokens: &[u32]) -> Option<u32> {
        self.edge.clear();
        self.edge.push(parent);
        self.edge.extend_from_slice(tokens);
        self.index.get(&self.edge[..]).copied()
    }

    fn touch(&mut self, number: u32) {
        let Some(node) = self.nodes.get_mut(number as usize).and_then(Option::as_mut) else { return };
        if self.leaves.remove(&(node.used, number)) {
            self.leaves.insert((self.clock, number));
        }
        node.used = self.clock;
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
        self.clock += 1;
        let parent = match parent.or_else(|| self.roots.get(key).copied()) {
            Some(parent) => parent,
            None => {
                pool.keep(page)?;
                let root = self.add(None, u32::MAX, Box::default());
                self.roots.insert(key.clone(), root);
                return Ok(self.hang(root, tokens, page));
            }
        };
        if let Some(node) = self.child(parent, tokens) {
            self.touch(node);
            return Ok(node);
        }
        pool.keep(page)?;
        Ok(self.hang(parent, tokens, page))
    }

    /// Adds a node that is not there yet.
    fn hang(&mut self, parent: u32, tokens: &[u32], page: u32) -> u32 {
        let edge: Box<[u32]> = std::iter::once(parent).chain(tokens.iter().copied()).collect();
        let node = self.add(Some(parent), page, edge.clone());
        self.index.insert(edge, node);
        self.leaves.insert((self.clock, node));
        if let Some(above) = self.nodes.get_mut(parent as usize).and_then(Option::as_mut) {
            above.children += 1;
            self.leaves.remove(&(above.used, parent));
        }
        node
    }

    fn add(&mut self, parent: Option<u32>, page: u32, edge: Box<[u32]>) -> u32 {
        let node = Some(Node { parent, page, edge, children: 0, used: self.clock });
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

    /// Evicts the leaf that was used longest ago among those whose page nothing else owns; whether there was
    /// one.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub fn evict(&mut self, pool: &mut PagePool) -> Result<bool> {
        // A live sequence owns at most one path, hence one leaf: few are passed over.
        let oldest = self.evictable(pool).next();
        match oldest {
            Some(leaf) => self.remove(leaf, pool).map(|()| true),
            None => Ok(false),
        }
    }

    /// Leaves whose page nothing else owns, the one that was used longest ago first.
    pub fn evictable(&self, pool: &PagePool) -> impl Iterator<Item = u32> {
        let idle = |node: &u32| self.page(*node).is_some_and(|page| pool.owners(page) == 1);
        self.leaves.iter().map(|(_, node)| *node).filter(idle)
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
        while let Some(Node { parent: Some(parent), edge, .. }) = self.nodes.get(at as usize)?.as_ref() {
            path.push(&edge[1..]);
            at = *parent;
        }
        let (key, _) = self.roots.iter().find(|(_, root)| **root == at)?;
        path.reverse();
        Some((key, path.concat(), self.page(number)?))
    }

    /// Removes a leaf.
    ///
    /// # Errors
    /// `Internal` where there is none of this number.
    pub(super) fn remove(&mut self, leaf: u32, pool: &mut PagePool) -> Result<()> {
        let lost = || Error::internal("a node of the prefix tree is missing");
        let node = self.nodes.get_mut(leaf as usize).and_then(Option::take).ok_or_else(lost)?;
        self.leaves.remove(&(node.used, leaf));
        self.index.remove(&node.edge);
        self.free.push(leaf);
        pool.unkeep(node.page)?;
        let Some(parent) = node.parent else { return Err(lost()) };
        let above = self.nodes.get_mut(parent as usize).and_then(Option::as_mut).ok_or_else(lost)?;
        above.children -= 1;
        match (above.children, above.parent) {
            (0, Some(_)) => {
                self.leaves.insert((above.used, parent));
            }
            (0, None) => {
                self.nodes[parent as usize] = None;
                self.free.push(parent);
                self.roots.retain(|_, root| *root != parent);
            }
            _ => {}
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn key(salt: &str, rope_shift: u32) -> PrefixKey {
        PrefixKey { salt: salt.into(), rope_shift }
    }

    /// Fills pages with `tokens` as a request of this key does; the pages taken.
    fn fill(tree: &mut PrefixTree, pool: &mut PagePool, key: &PrefixKey, tokens: &[u32]) -> Vec<u32> {
        let (mut parent, mut pages) = (None, Vec::new());
        for chunk in tokens.chunks_exact(2) {
            let page = pool.take().unwrap();
            let node = tree.insert(key, parent, chunk, page, pool).unwrap();
            pages.push(page);
            parent = Some(node);
        }
        pages
    }

    fn found(tree: &mut PrefixTree, key: &PrefixKey, tokens: &[u32], most: usize) -> Vec<u32> {
        let mut path = Vec::new();
        tree.find(key, tokens, most, &mut path);
        path.iter().map(|node| tree.page(*node).unwrap()).collect()
    }

    #[test]
    fn a_prefix_is_found_by_its_tokens_salt_and_shift_alone() {
        let (mut tree, mut pool) = (PrefixTree::new(2), PagePool::new(8, None));
        let plain = key("", 0);
        let pages = fill(&mut tree, &mut pool, &plain, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(found(&mut tree, &plain, &[1, 2, 3, 4, 5, 6, 7], 9), pages);
        assert_eq!(found(&mut tree, &plain, &[1, 2, 3, 4, 5, 6], 2), pages[..2]);
        assert_eq!(found(&mut tree, &plain, &[1, 2, 3, 9, 5, 6], 9), pages[..1]);
        // The tokens of the second page behind none, or behind others, are another prefix.
        assert_eq!(found(&mut tree, &plain, &[3, 4], 9), [0; 0]);
        assert_eq!(found(&mut tree, &plain, &[9, 9, 3, 4], 9), [0; 0]);
        assert_eq!(found(&mut tree, &plain, &[1], 9), [0; 0]);
        for other in [key("a", 0), key("", 7)] {
            assert_eq!(found(&mut tree, &other, &[1, 2, 3, 4], 9), [0; 0]);
            let own = fill(&mut tree, &mut pool, &other, &[1, 2]);
            assert_eq!(found(&mut tree, &other, &[1, 2, 3, 4], 9), own);
        }
    }

    #[test]
    fn what_was_used_longest_ago_is_evicted_first_and_nothing_in_use() {
        let (mut tree, mut pool) = (PrefixTree::new(2), PagePool::new(4, None));
        let plain = key("", 0);
        let old = fill(&mut tree, &mut pool, &plain, &[1, 2, 3, 4]);
        let new = fill(&mut tree, &mut pool, &key("a", 0), &[5, 6, 7, 8]);
        assert!(!tree.evict(&mut pool).unwrap(), "the requests that filled the pages own them");
        for page in old.iter().chain(&new) {
            pool.release(*page).unwrap();
        }
        assert_eq!((pool.free(), pool.available()), (0, 4));
        assert_eq!(found(&mut tree, &plain, &[1, 2, 3, 4], 9), old, "used last now");
        assert!(tree.evict(&mut pool).unwrap());
        assert_eq!(
            found(&mut tree, &key("a", 0), &[5, 6, 7, 8], 9),
            new[..1],
            "a leaf goes before its parent"
        );
        // A page in use stays, and so does what leads to it.
        pool.share(old[1]).unwrap();
        pool.share(old[0]).unwrap();
        assert!(tree.evict(&mut pool).unwrap());
        assert_eq!(found(&mut tree, &key("a", 0), &[5, 6], 9), [0; 0]);
        assert!(!tree.evict(&mut pool).unwrap());
        assert_eq!((pool.free(), pool.available(), tree.len()), (2, 2, 2));
        pool.release(old[1]).unwrap();
        pool.release(old[0]).unwrap();
        while tree.evict(&mut pool).unwrap() {}
        assert_eq!((pool.free(), tree.len(), tree.roots.len(), tree.free.len()), (4, 0, 0, tree.nodes.len()));
    }

    #[test]
    fn a_page_that_is_there_already_is_not_taken_in_twice() {
        let (mut tree, mut pool) = (PrefixTree::new(2), PagePool::new(2, None));
        let first = fill(&mut tree, &mut pool, &key("", 0), &[1, 2]);
        let second = fill(&mut tree, &mut pool, &key("", 0), &[1, 2]);
        assert_eq!((tree.len(), pool.owners(first[0]), pool.owners(second[0])), (1, 2, 1));
        assert!(
            tree.insert(&key("", 0), None, &[5, 6], first[0], &mut pool).is_err(),
            "it holds other tokens"
        );
        assert!(tree.insert(&key("", 0), None, &[5, 6], 9, &mut pool).is_err(), "no such page");
        assert_eq!(tree.len(), 1);
    }
}
