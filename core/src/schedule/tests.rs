//! The scheduler against invariants, over random requests.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// Runs every request to its end and checks each step; returns steps taken.
fn simulate(
    requests: &[(usize, usize)],
    max_seqs: usize,
    budget: usize,
    pages: usize,
    page_size: usize,
) -> usize {
    let stride = requests.iter().map(|(p, n)| (p + n).div_ceil(page_size)).max().unwrap_or(1);
    let (mut tables, mut pool) = (PageTables::new(max_seqs, stride, page_size), PagePool::new(pages, None));
    let mut scheduler = Scheduler::new(max_seqs, budget);
    let mut expected = 0;
    for (id, (prompt, new)) in requests.iter().enumerate() {
        let seq = Sequence::new(id as u64, vec![0; *prompt], *new);
        if scheduler.submit(seq, &tables, &pool).is_ok() {
            expected += 1;
        }
    }
    let (mut batch, mut steps, mut ended) = (StepBatch::default(), 0, 0);
    while !scheduler.is_idle() {
        scheduler.next(&mut tables, &mut pool, &mut batch).unwrap();
        steps += 1;
        assert!(batch.tokens > 0, "a step that does nothing would never end");
        assert!(batch.tokens <= budget.max(max_seqs));
        assert_eq!(batch.tokens, batch.slices.iter().map(|s| s.len).sum::<usize>());
        let decoding = scheduler.running().iter().filter(|s| s.phase() == Phase::Decode).count();
        let served = batch.slices.iter().filter(|s| scheduler.running()[s.index].phase() == Phase::Decode);
        assert_eq!(served.count(), decoding, "every decoding sequence gets its token");
        let mut done = Vec::new();
        for slice in &batch.slices {
            let seq = scheduler.running_mut(slice.index).unwrap();
            assert_eq!(slice.start, seq.done);
            assert_ne!(tables.slot(seq.row, slice.start + slice.len - 1), -1);
            seq.done += slice.len;
            if slice.samples {
                seq.tokens.push(1);
                if seq.sampled().len() + seq.prompt == seq.limit {
                    done.push(slice.index);
                }
            }
        }
        done.sort_unstable_by(|a, b| b.cmp(a));
        for index in done {
            scheduler.finish(index, &mut tables, &mut pool).unwrap();
            ended += 1;
        }
        tables.settle();
        assert!(steps < 100_000);
    }
    assert_eq!((ended, pool.free()), (expected, pages), "all served, no page leaked");
    steps
}

#[test]
fn a_long_prompt_is_chunked_and_does_not_stall_decoding() {
    // 2 + 6 prompt tokens in step 1; then 7 a step besides the token that the first request samples (4
    // steps), 8 alone.
    assert_eq!(simulate(&[(2, 5), (100, 1)], 4, 8, 64, 4), 1 + 4 + 9);
    // In order of arrival: the short prompt gets what the last chunk of the long one leaves.
    assert_eq!(simulate(&[(100, 1), (2, 5)], 4, 8, 64, 4), 13 + 4);
}

#[test]
fn a_request_larger_than_the_pool_is_refused() {
    let (tables, pool) = (PageTables::new(1, 100, 4), PagePool::new(3, None));
    let e = Scheduler::new(1, 8).submit(Sequence::new(0, vec![0; 9], 8), &tables, &pool).unwrap_err();
    assert!(matches!(e, Error::KvFull { wanted: 5, free: 3, total: 3 }));
}

#[test]
fn cancelled_requests_give_everything_back() {
    let (mut tables, mut pool) = (PageTables::new(2, 4, 4), PagePool::new(8, None));
    let mut scheduler = Scheduler::new(1, 8);
    for id in 0..2 {
        scheduler.submit(Sequence::new(id, vec![0; 6], 2), &tables, &pool).unwrap();
    }
    let mut batch = StepBatch::default();
    scheduler.next(&mut tables, &mut pool, &mut batch).unwrap();
    assert!(pool.free() < 8);
    assert!(scheduler.cancel(0, &mut tables, &mut pool).unwrap());
    assert!(scheduler.cancel(1, &mut tables, &mut pool).unwrap());
    assert!(!scheduler.cancel(1, &mut tables, &mut pool).unwrap());
    assert!(scheduler.is_idle());
    assert_eq!(pool.free(), 8);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn random_requests_all_end(
        requests in proptest::collection::vec((1usize..40, 1usize..12), 1..20),
        max_seqs in 1usize..6,
        budget in 1usize..20,
        pages in 1usize..30,
        page_size in 1usize..9,
    ) {
        simulate(&requests, max_seqs, budget, pages, page_size);
    }
}
