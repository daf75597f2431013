//! What a request leaves behind, and what is taken back of it.

use super::*;
use crate::kv::HostPages;

const PAGE: usize = 2;

/// Ten pages of two positions for three rows; with bytes of a page, a store behind them.
fn manager(page_bytes: Option<usize>) -> KvManager {
    let mut kv = KvManager::new(3, 4, PAGE, 10, None);
    page_bytes.into_iter().for_each(|bytes| kv.set_store(HostPages::new(1 << 10), bytes));
    kv
}

/// Computes a text in a row of its own and leaves its whole pages to others.
fn text(kv: &mut KvManager, key: &PrefixKey, tokens: &[u32]) -> (u32, usize) {
    let row = kv.tables.open().unwrap();
    let mut prefix = CachedPrefix::new(key.clone(), tokens.len() - 1);
    let found = kv.adopt(row, &mut prefix, tokens).unwrap();
    kv.grow(row, tokens.len()).unwrap();
    kv.commit(row, &mut prefix, tokens, tokens.len(), 1).unwrap();
    (row, found)
}

/// Positions of a text that others have left.
fn found(kv: &mut KvManager, key: &PrefixKey, tokens: &[u32]) -> usize {
    let (row, found) = text(kv, key, tokens);
    kv.close(row).unwrap();
    found
}

/// Evicts the last page of a key that is in the pool.
fn evict(kv: &mut KvManager, key: &PrefixKey) {
    let of_key = |page| kv.prefixes.pages().iter().any(|(other, _, own)| *other == key && *own == page);
    let mut leaves = kv.prefixes.evictable(&kv.pool);
    let leaf = leaves.find(|leaf| kv.prefixes.page(*leaf).is_some_and(of_key)).unwrap();
    drop(leaves);
    kv.evict(leaf).unwrap();
}

#[test]
fn what_is_in_doubt_is_left_to_none_and_what_others_use_stays() {
    let (mut kv, key) = (manager(None), PrefixKey::default());
    let (other, _) = text(&mut kv, &key, &[1, 2, 9, 9]);
    let (doubtful, shared) = text(&mut kv, &key, &[1, 2, 3, 4, 5, 6]);
    assert_eq!((shared, kv.prefixes.len()), (2, 4));
    kv.distrust(doubtful).unwrap();
    assert_eq!(kv.prefixes.len(), 2, "of the page that both read the other one has seen that it is sound");
    kv.close(doubtful).unwrap();
    kv.audit([other].into_iter()).unwrap();
    assert_eq!(found(&mut kv, &key, &[1, 2, 3, 4, 5, 6, 7]), 2);
    assert_eq!(found(&mut kv, &key, &[1, 2, 9, 9, 9]), 4);
    kv.close(other).unwrap();
    kv.audit([].into_iter()).unwrap();
}

#[test]
fn what_came_from_outside_goes_with_its_request_from_pool_and_store() {
    let (mut kv, key) = (manager(Some(4)), PrefixKey::default());
    let private = PrefixKey { private: Some(7), ..PrefixKey::default() };
    let own = [1, 2, 3, 4, 5, 6];
    for key in [&key, &private] {
        let (row, _) = text(&mut kv, key, &own);
        kv.close(row).unwrap();
    }
    // The last page of either goes to the store, and one more of the private key is on its way there.
    evict(&mut kv, &key);
    evict(&mut kv, &private);
    for (number, _) in kv.take_out() {
        kv.keep_evicted(number, vec![0; 4]).unwrap();
    }
    evict(&mut kv, &private);
    let before = kv.stats();
    assert_eq!((before.pages, before.stored), (3, 3));
    kv.audit([].into_iter()).unwrap();
    kv.forget_private(8).unwrap();
    assert_eq!(kv.stats(), before, "another request's");
    kv.forget_private(7).unwrap();
    kv.audit([].into_iter()).unwrap();
    let pages = kv.prefixes.pages();
    assert!(pages.iter().all(|(key, ..)| key.private.is_none()), "{pages:?}");
    let (stats, all) = (kv.stats(), 3);
    assert_eq!(stats.pages + stats.stored, all, "{stats:?}");
}
