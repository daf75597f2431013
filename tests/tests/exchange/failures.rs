//! A rank that fails is named, and nothing hangs; a library that is of no use is refused.

use super::both::{SOON, does_not_come, leaves, text};
use super::{device, double, ranks};
use conformance::backends::cuda_with;
use engraft_core::backend::Backend;
use engraft_core::numerics::Mode;
use engraft_cuda::{CudaConfig, Nccl};
use engraft_ranks::ThreadBoard;
use std::path::Path;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_rank_that_leaves_is_named_at_once() {
    let double = double();
    leaves(&device(&double, Mode::Reference));
}

#[test]
fn a_rank_that_does_not_come_is_named() {
    let double = double();
    does_not_come(&device(&double, Mode::Reference));
}

/// What NCCL reports on its own, by asking.
#[test]
fn an_asynchronous_error_ends_the_wait() {
    let double = double();
    let (gpu, began) = (device(&double, Mode::Reference), Instant::now());
    let said = ranks(&gpu, 2, LONG, |rank| {
        let mut rank = rank.unwrap();
        rank.sum(1, &[2.0], true).unwrap();
        if rank.rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
            double.0.break_links();
        }
        text(rank.sum(1, &[2.0], true))
    });
    assert!(said.iter().any(|said| said.contains("a link of the network is broken")), "{said:?}");
    assert!(said.iter().all(|said| said.starts_with("rank ")), "{said:?}");
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

/// NCCL hangs where ranks call different things; the double says so.
#[test]
fn ranks_that_run_different_steps_are_named() {
    let double = double();
    for mode in [Mode::Reference, Mode::Fast] {
        let said = ranks(&device(&double, mode), 2, LONG, |rank| {
            let mut rank = rank.unwrap();
            let values = vec![1.0; 3 + rank.rank];
            text(rank.sum(1, &values, true))
        });
        let all = said.join("\n");
        assert!(all.contains("of 4 elements") && all.contains("of 3 elements"), "{mode:?}: {all}");
        assert!(said.iter().all(|said| said.starts_with("rank ")), "{all}");
    }
    let said = ranks(&device(&double, Mode::Fast), 2, LONG, |rank| {
        let mut rank = rank.unwrap();
        let mut x = rank.matrix(2, &[1.0, 2.0]).unwrap();
        let done = match rank.rank {
            0 => rank.comm.all_reduce(&mut rank.stream, x.view_mut(1).unwrap(), true),
            _ => rank.comm.all_gather(&mut rank.stream, x.view_mut(1).unwrap(), &[0..0, 0..2]),
        };
        text(done.and_then(|()| rank.read(&x)))
    });
    let all = said.join("\n");
    assert!(all.contains("calls ncclAllReduce") && all.contains("calls ncclAllGather of 2"), "{all}");
}

/// Their streams would wait for each other on the device.
#[test]
fn ranks_that_share_a_backend_are_refused() {
    let double = double();
    let gpu = device(&double, Mode::Reference);
    let boards = ThreadBoard::group(2).unwrap();
    let said: Vec<String> = std::thread::scope(|scope| {
        let shared = &gpu;
        let all: Vec<_> = boards
            .into_iter()
            .map(|board| {
                scope.spawn(move || {
                    let comm = shared.group(Box::new(board));
                    // Both have tried.
                    std::thread::sleep(Duration::from_millis(200));
                    text(comm.map(drop))
                })
            })
            .collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert!(said.iter().any(|said| said.contains("a device each")), "{said:?}");
}

#[test]
fn a_library_that_is_too_old_is_refused_by_its_version() {
    let double = double();
    double.0.version(21_805);
    let config = CudaConfig { nccl: Some(double.0.path.clone()), ..CudaConfig::default() };
    let said = text(cuda_with("cuda:soft", config));
    assert!(said.contains("2.19 or newer") && said.contains("2.18.5"), "{said}");
    double.0.version(21_900);
    assert_eq!(Nccl::open(&double.0.path).unwrap().version(), "2.19.0");
}

/// By its name alone: the one that the process has.
#[test]
fn a_library_that_is_loaded_already_is_taken() {
    let double = double();
    let nccl = Nccl::open(Path::new("libnccl.so.2")).unwrap();
    assert_eq!(nccl.path().canonicalize().unwrap(), double.0.path.canonicalize().unwrap());
    assert_eq!(nccl.version(), "2.28.9");
}

/// A rank whose library is another one must not exchange with the rest.
#[test]
fn ranks_with_unlike_versions_are_named() {
    let double = double();
    let old = device(&double, Mode::Reference);
    double.0.version(22_700);
    let new = device(&double, Mode::Reference);
    let boards = ThreadBoard::group(2).unwrap();
    let said: Vec<String> = std::thread::scope(|scope| {
        let (old, new) = (&old, &new);
        let all: Vec<_> = boards
            .into_iter()
            .zip([old, new])
            .map(|(board, gpu)| scope.spawn(move || text(gpu.group(Box::new(board)).map(drop))))
            .collect();
        all.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    for said in said {
        assert_eq!(said, "rank 1 of 2: its NCCL is 2.27.0, that of rank 0 is 2.28.9");
    }
}
