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
    place: Place,
    /// The parent's number, then the tokens of the page: the node's place in the index.
    edge: Box<[u32]>,
    /// Children in the pool.
    children: u32,
    /// Children in the store.
    stored: u32,
    /// When it was last used, by the tree's own count.
    used: u64,
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
    index: HashMap<Box<[u32]>, u32>,
    /// Nodes without children but the roots, the one that was used longest ago first.
    leaves: BTreeSet<(u64, u32)>,
    clock: u64,
    edge: Vec<u32>,
    /// Nodes by what the store has their pages by.
    stored: BTreeMap<u64, u32>,
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
            index: HashMap::new(),
            leaves: BTreeSet::new(),
            clock: 0,
            edge: Vec::with_capacity(page_size + 1),
            stored: BTreeMap::new(),
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
                let root = self.add(None, Place::Nowhere, Box::default());
                self.node_mut(root)?.key = Some(Box::new(key.clone()));
                self.roots.insert(key.clone(), root);
                return Ok(self.hang(root, tokens, page));
            }
        };
        if let Some(node) = self.child(parent, tokens) {
            match self.place(node) {
                Some(Place::Store(_)) => self.bring_back(node, page, pool)?,
                _ => self.touch(node),
            }
            return Ok(node);
        }
        pool.keep(page)?;
        Ok(self.hang(parent, tokens, page))
    }

    /// Adds a node that is not there yet.
    fn hang(&mut self, parent: u32, tokens: &[u32], page: u32) -> u32 {
        let edge: Box<[u32]> = std::iter::once(parent).chain(tokens.iter().copied()).collect();
        let node = self.add(Some(parent), Place::Pool(page), edge.clone());
        self.index.insert(edge, node);
        self.leaves.insert((self.clock, node));
        if let Some(above) = self.nodes.get_mut(parent as usize).and_then(Option::as_mut) {
            above.children += 1;
            self.leaves.remove(&(above.used, parent));
        }
        node
    }

    fn add(&mut self, parent: Option<u32>, place: Place, edge: Box<[u32]>) -> u32 {
        let node = Some(Node { parent, place, edge, children: 0, stored: 0, used: self.clock, key: None });
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

    /// Leaves whose page nothing else owns, the one that was used longest ago first.
    pub fn evictable(&self, pool: &PagePool) -> impl Iterator<Item = u32> {
        let idle = |node: &u32| self.page(*node).is_some_and(|page| pool.owners(page) == 1);
        self.leaves.iter().map(|(_, node)| *node).filter(idle)
    }

    /// A node without children in the pool that has one of these pages, or is below one that has.
    pub(super) fn lowest_of(&self, pages: &[u32]) -> Option<u32> {
        let above = |node: &u32| self.nodes.get(*node as usize).and_then(Option::as_ref)?.parent;
        let is = |node: u32| self.page(node).is_some_and(|page| pages.contains(&page));
        let below = |leaf: &u32| std::iter::successors(Some(*leaf), above).any(is);
        self.leaves.iter().map(|(_, node)| *node).find(below)
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
        let (used, parent) = (node.used, node.parent);
        let place = std::mem::replace(&mut node.place, Place::Store(gone));
        let (Place::Pool(page), Some(parent)) = (place, parent) else {
            return Err(Error::internal("a node of the prefix tree has no page"));
        };
        pool.unkeep(page)?;
        self.leaves.remove(&(used, leaf));
        self.stored.insert(gone, leaf);
        self.node_mut(parent)?.stored += 1;
        self.loses_child(parent)?;
        Ok(gone)
    }

    /// Puts a page of the pool in the place of a node's page in the store.
    ///
    /// # Errors
    /// `Internal` for a page without an owner, or one that is in the tree already.
    pub(super) fn bring_back(&mut self, node: u32, page: u32, pool: &mut PagePool) -> Result<()> {
        self.clock += 1;
        let (clock, back) = (self.clock, self.node_mut(node)?);
        let (Place::Store(gone), Some(parent)) = (back.place, back.parent) else {
            return Err(Error::internal("a node of the prefix tree is in the pool already"));
        };
        pool.keep(page)?;
        (back.place, back.used) = (Place::Pool(page), clock);
        self.stored.remove(&gone);
        self.revived.push(gone);
        self.leaves.insert((clock, node));
        let above = self.node_mut(parent)?;
        above.stored -= 1;
        above.children += 1;
        let used = above.used;
        self.leaves.remove(&(used, parent));
        Ok(())
    }

    /// Those that the store need not keep: their nodes have a page in the pool again.
    pub(super) fn take_revived(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.revived)
    }

    /// A child of a node is not in the pool any more.
    fn loses_child(&mut self, parent: u32) -> Result<()> {
        let above = self.node_mut(parent)?;
        above.children -= 1;
        let (children, used) = (above.children, above.used);
        match (children, above.parent) {
            (0, Some(_)) => {
                self.leaves.insert((used, parent));
            }
            (0, None) => self.drop_root(parent),
            _ => {}
        }
        Ok(())
    }

    fn drop_root(&mut self, root: u32) {
        let bare = |node: &Node| node.parent.is_none() && node.children + node.stored == 0;
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
        self.remove_stored_below(leaf, dropped)?;
        let lost = || Error::internal("a node of the prefix tree is missing");
        let node = self.nodes.get_mut(leaf as usize).and_then(Option::take).ok_or_else(lost)?;
        self.leaves.remove(&(node.used, leaf));
        self.index.remove(&node.edge);
        self.free.push(leaf);
        let (Place::Pool(page), Some(parent)) = (node.place, node.parent) else { return Err(lost()) };
        pool.unkeep(page)?;
        self.loses_child(parent)
    }

    /// The store has given a page up: its node goes, and those below it; adds what the store has those by to
    /// `dropped`.
    ///
    /// # Errors
    /// `Internal` when the bookkeeping is inconsistent.
    pub(super) fn forget(&mut self, gone: u64, dropped: &mut Vec<u64>) -> Result<()> {
        let Some(number) = self.stored.remove(&gone) else { return Ok(()) };
        self.remove_stored_below(number, dropped)?;
        let node = self.nodes.get_mut(number as usize).and_then(Option::take);
        let node = node.ok_or_else(|| Error::internal("a node of the prefix tree is missing"))?;
        self.index.remove(&node.edge);
        self.free.push(number);
        if let Some(parent) = node.parent {
            self.node_mut(parent)?.stored -= 1;
            self.drop_root(parent);
        }
        Ok(())
    }

    fn remove_stored_below(&mut self, number: u32, dropped: &mut Vec<u64>) -> Result<()> {
        while self.node_mut(number)?.stored > 0 {
            let below = |node: &u32| {
                let node = self.nodes.get(*node as usize).and_then(Option::as_ref);
                node.is_some_and(|node| node.parent == Some(number))
            };
            let Some((gone, _)) = self.stored.iter().find(|(_, node)| below(node)) else {
                return Err(Error::internal("a stored node of the prefix tree is missing"));
            };
            let gone = *gone;
            dropped.push(gone);
            self.forget(gone, dropped)?;
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

    /// Removes the leaf that was used longest ago; whether there was one.
    fn evict(tree: &mut PrefixTree, pool: &mut PagePool) -> bool {
        let oldest = tree.evictable(pool).next();
        oldest.is_some_and(|leaf| tree.remove(leaf, pool, &mut Vec::new()).is_ok())
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
        assert!(!evict(&mut tree, &mut pool), "the requests that filled the pages own them");
        for page in old.iter().chain(&new) {
            pool.release(*page).unwrap();
        }
        assert_eq!((pool.free(), pool.available()), (0, 4));
        assert_eq!(found(&mut tree, &plain, &[1, 2, 3, 4], 9), old, "used last now");
        assert!(evict(&mut tree, &mut pool));
        assert_eq!(
            found(&mut tree, &key("a", 0), &[5, 6, 7, 8], 9),
            new[..1],
            "a leaf goes before its parent"
        );
        // A page in use stays, and so does what leads to it.
        pool.share(old[1]).unwrap();
        pool.share(old[0]).unwrap();
        assert!(evict(&mut tree, &mut pool));
        assert_eq!(found(&mut tree, &key("a", 0), &[5, 6], 9), [0; 0]);
        assert!(!evict(&mut tree, &mut pool));
        assert_eq!((pool.free(), pool.available(), tree.len()), (2, 2, 2));
        pool.release(old[1]).unwrap();
        pool.release(old[0]).unwrap();
        while evict(&mut tree, &mut pool) {}
        assert_eq!((pool.free(), tree.len(), tree.roots.len(), tree.free.len()), (4, 0, 0, tree.nodes.len()));
    }

    #[test]
    fn a_stored_page_keeps_its_place_until_the_store_gives_it_up() {
        let (mut tree, mut pool) = (PrefixTree::new(2), PagePool::new(4, None));
        let plain = key("", 0);
        let pages = fill(&mut tree, &mut pool, &plain, &[1, 2, 3, 4, 5, 6]);
        pages.iter().for_each(|page| pool.release(*page).unwrap());
        let oldest = |tree: &PrefixTree, pool: &PagePool| tree.evictable(pool).next().unwrap();
        let (last, middle) = {
            let last = oldest(&tree, &pool);
            (tree.stow(last, &mut pool).unwrap(), oldest(&tree, &pool))
        };
        let middle = tree.stow(middle, &mut pool).unwrap();
        assert_eq!((tree.len(), tree.stored(), pool.free(), pool.available()), (1, 2, 3, 4));
        let mut path = Vec::new();
        tree.find(&plain, &[1, 2, 3, 4, 5, 6], 9, &mut path);
        let places: Vec<Place> = path.iter().map(|node| tree.place(*node).unwrap()).collect();
        assert_eq!(places, [Place::Pool(pages[0]), Place::Store(middle), Place::Store(last)]);
        // Computed anew by a request, or read back: the node has a page of the pool again.
        let page = pool.take().unwrap();
        assert_eq!(tree.insert(&plain, Some(path[0]), &[3, 4], page, &mut pool).unwrap(), path[1]);
        assert_eq!((tree.len(), tree.stored(), tree.page(path[1])), (2, 1, Some(page)));
        pool.release(page).unwrap();
        // What is below a node that goes, goes.
        let mut dropped = Vec::new();
        let leaf = oldest(&tree, &pool);
        assert_eq!(leaf, path[1], "nothing below it is in the pool");
        let again = tree.stow(leaf, &mut pool).unwrap();
        tree.forget(again, &mut dropped).unwrap();
        assert_eq!((dropped, tree.stored(), tree.len()), (vec![last], 0, 1));
        let root = oldest(&tree, &pool);
        let only = tree.stow(root, &mut pool).unwrap();
        assert_eq!((tree.len(), tree.roots.len()), (0, 1));
        tree.forget(only, &mut Vec::new()).unwrap();
        assert_eq!((pool.free(), tree.roots.len(), tree.free.len()), (4, 0, tree.nodes.len()));
    }

    #[test]
    fn what_is_behind_a_lost_page_is_lost_before_it() {
        let (mut tree, mut pool, key) = (PrefixTree::new(1), PagePool::new(3, None), key("", 0));
        let mut add = |tree: &mut PrefixTree, parent, token| {
            let page = pool.take().unwrap();
            (page, tree.insert(&key, parent, &[token], page, &mut pool).unwrap())
        };
        let (other, _) = add(&mut tree, None, 9);
        let (lost, first) = add(&mut tree, None, 1);
        let (_, behind) = add(&mut tree, Some(first), 2);
        for node in [behind, first] {
            assert_eq!(tree.lowest_of(&[lost]), Some(node));
            tree.remove(node, &mut pool, &mut Vec::new()).unwrap();
        }
        assert_eq!((tree.lowest_of(&[lost]), tree.len()), (None, 1));
        assert!(tree.lowest_of(&[other]).is_some());
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
