//! What holds whatever ranks exchange by: called by the tests of kernels and by those of NCCL.

use super::law::{PATIENCE, bits};
use super::ranks;
use engraft_cuda::Cuda;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// No wait of these tests lasts longer.
pub const SOON: Duration = Duration::from_secs(20);

/// The error's words.
pub fn text<T>(outcome: engraft_core::Result<T>) -> String {
    outcome.err().map_or_else(|| "a result".to_string(), |error| error.to_string())
}

/// A rank that adds nothing counts as zeros, whatever it holds.
pub fn adds_nothing(gpu: &Arc<Cuda>) {
    let got = ranks(gpu, 2, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        let values = [[-0.0, 3.0], [f32::NAN, 1.0]][rank.rank];
        let adds = rank.rank == 0;
        bits(&rank.sum(2, &values, adds).unwrap())
    });
    assert_eq!(got, [[0, 3f32.to_bits()]; 2]);
}

/// Columns of unequal width reach every rank, twice in a row.
pub fn columns(gpu: &Arc<Cuda>) {
    let (rows, cols) = (3, 7);
    let columns: [Range<usize>; 4] = [0..3, 3..3, 3..4, 4..7];
    let whole: Vec<f32> = (0..rows * cols).map(|i| i as f32).collect();
    let got = ranks(gpu, 4, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        let own = |i: usize| columns[rank.rank].contains(&(i % cols));
        let values: Vec<f32> = (0..rows * cols).map(|i| if own(i) { i as f32 } else { -1.0 }).collect();
        let mut x = rank.matrix(cols, &values).unwrap();
        for _ in 0..2 {
            rank.comm.all_gather(&mut rank.stream, x.view_mut(rows).unwrap(), &columns).unwrap();
        }
        rank.read(&x).unwrap()
    });
    assert_eq!(got, vec![whole; 4]);
}

/// Ranks exchange once; then rank 1 is gone, and rank 0 waits for it on the device.
pub fn leaves(gpu: &Arc<Cuda>) {
    let began = Instant::now();
    let said = ranks(gpu, 2, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        assert_eq!(rank.sum(1, &[2.0], true).unwrap(), [4.0]);
        if rank.rank == 1 {
            return String::new();
        }
        let said = text(rank.sum(1, &[2.0], true));
        // The group stays failed.
        assert_eq!(text(rank.sum(1, &[2.0], true)), said);
        said
    });
    assert_eq!(said[0], "rank 1 of 2: it has left the group");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// One that does not come within the patience of ranks: the roll is called, and it does not answer.
pub fn does_not_come(gpu: &Arc<Cuda>) {
    let (patience, given_up, began) = (Duration::from_millis(1500), AtomicUsize::new(0), Instant::now());
    let said = ranks(gpu, 4, patience, |rank| {
        let mut rank = rank.unwrap();
        assert_eq!(rank.sum(1, &[2.0], true).unwrap(), [8.0]);
        // It comes when all others have given it up.
        while rank.rank == 2 && given_up.load(Ordering::SeqCst) < 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let said = text(rank.sum(1, &[2.0], true));
        given_up.fetch_add(1, Ordering::SeqCst);
        said
    });
    for said in &said {
        assert!(said.starts_with("rank 2 of 4: it did not reach"), "{said}");
    }
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}
