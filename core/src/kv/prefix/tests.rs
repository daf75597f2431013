//! Prefixes found, evicted, stored and lost.

use super::*;

fn key(salt: &str, rope_shift: u32) -> PrefixKey {
    PrefixKey { salt: salt.into(), rope_shift, ..PrefixKey::default() }
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
    assert_eq!(found(&mut tree, &key("a", 0), &[5, 6, 7, 8], 9), new[..1], "a leaf goes before its parent");
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
    let (mut tree, mut pool, key) = (PrefixTree::new(1), PagePool::new(5, None), key("", 0));
    let mut add = |tree: &mut PrefixTree, parent, token| {
        let page = pool.take().unwrap();
        (page, tree.insert(&key, parent, &[token], page, &mut pool).unwrap())
    };
    let (other, alone) = add(&mut tree, None, 9);
    let (lost, first) = add(&mut tree, None, 1);
    let (_, behind) = add(&mut tree, Some(first), 2);
    let (_, sibling) = add(&mut tree, Some(first), 3);
    let (last, lowest) = add(&mut tree, Some(behind), 4);
    assert_eq!(tree.at_or_below(&[lost]), [lowest, sibling, behind, first]);
    assert_eq!(tree.at_or_below(&[last, other]), [lowest, alone]);
    for node in tree.at_or_below(&[lost]) {
        tree.remove(node, &mut pool, &mut Vec::new()).unwrap();
    }
    assert_eq!((tree.at_or_below(&[lost]), tree.len()), (vec![], 1));
}

/// A text of any length: neither stack for each page, nor a search of all others for each.
#[test]
fn a_long_text_that_the_store_loses_is_forgotten_at_once() {
    let (pages, plain) = (100_000, key("", 0));
    let (mut tree, mut pool) = (PrefixTree::new(1), PagePool::new(pages, None));
    let mut at = None;
    for token in 0..pages as u32 {
        let page = pool.take().unwrap();
        at = Some(tree.insert(&plain, at, &[token], page, &mut pool).unwrap());
        pool.release(page).unwrap();
    }
    let mut first = 0;
    while let Some(leaf) = { tree.evictable(&pool).next() } {
        first = tree.stow(leaf, &mut pool).unwrap();
    }
    assert_eq!((tree.len(), tree.stored(), pool.free()), (0, pages, pages));
    let (mut dropped, began) = (Vec::new(), std::time::Instant::now());
    // On a stack that a frame for each page would not fit on.
    std::thread::scope(|scope| {
        let forget = || tree.forget(first, &mut dropped).unwrap();
        std::thread::Builder::new().stack_size(64 << 10).spawn_scoped(scope, forget).unwrap();
    });
    assert_eq!((dropped.len(), tree.stored(), tree.roots.len()), (pages - 1, 0, 0));
    assert!(began.elapsed().as_secs() < 10, "{:?} for {pages} pages", began.elapsed());
}

#[test]
fn a_page_that_is_there_already_is_not_taken_in_twice() {
    let (mut tree, mut pool) = (PrefixTree::new(2), PagePool::new(2, None));
    let first = fill(&mut tree, &mut pool, &key("", 0), &[1, 2]);
    let second = fill(&mut tree, &mut pool, &key("", 0), &[1, 2]);
    assert_eq!((tree.len(), pool.owners(first[0]), pool.owners(second[0])), (1, 2, 1));
    assert!(tree.insert(&key("", 0), None, &[5, 6], first[0], &mut pool).is_err(), "it holds other tokens");
    assert!(tree.insert(&key("", 0), None, &[5, 6], 9, &mut pool).is_err(), "no such page");
    assert_eq!(tree.len(), 1);
}
