//! Bytes that an exchange brings into a rank, counted by the software driver: those of the table of
//! `docs/ranks.md`.

use super::law::PATIENCE;
use super::{double, ranks, reached};
use engraft_core::numerics::Mode;
use engraft_cuda::Cuda;
use soft_cuda::preload::{self, KernelCounts};
use std::sync::{Arc, Barrier};

/// What stands next to values: flags and counts of 32 blocks, and the word of the host.
const NEXT_TO: u64 = 32 * (32 + 4 + 1);

/// What the launches of one entry have read, a rank.
fn read(
    gpu: &Arc<Cuda>,
    world: usize,
    entry: &str,
    values: &[f32],
    cols: usize,
    gather: bool,
) -> KernelCounts {
    let driver = preload::load().unwrap();
    driver.set_traffic(true).unwrap();
    driver.clear_counts().unwrap();
    let together = Barrier::new(world);
    ranks(gpu, world, PATIENCE, |rank| {
        let mut rank = rank.unwrap();
        let (rows, width) = (values.len() / cols, cols / world);
        let columns: Vec<_> = (0..world).map(|rank| rank * width..(rank + 1) * width).collect();
        let mut x = rank.matrix(cols, values).unwrap();
        let x = x.view_mut(rows).unwrap();
        match gather {
            true => rank.comm.all_gather(&mut rank.stream, x, &columns),
            false => rank.comm.all_reduce(&mut rank.stream, x, true),
        }
        .unwrap();
        engraft_core::backend::Stream::sync(&mut rank.stream).unwrap();
        together.wait();
    });
    let all = driver.kernels().unwrap();
    driver.set_traffic(false).unwrap();
    let counts = all.into_iter().find(|kernel| kernel.name == entry);
    let counts = counts.unwrap_or_else(|| panic!("no {entry} has run"));
    assert_eq!(counts.launches, world as u64, "{entry}");
    counts
}

/// Bytes from other ranks that came into one are these: all that was read at least once, but for what was its
/// own and what stands next to values.
fn came(counts: &KernelCounts, world: usize, own: u64, want: u64) {
    let each = counts.traffic.read.distinct / world as u64;
    let name = &counts.name;
    assert!(
        (own + want..=own + want + NEXT_TO).contains(&each),
        "{name}: {each} bytes, {own} its own, {want} expected"
    );
}

/// The cells of the table's line.
fn cells(rows: usize, hidden: usize) -> Vec<u64> {
    let page = include_str!("../../../docs/ranks.md");
    let name = format!("| {rows}, {hidden} |");
    let line = page.lines().find(|line| line.starts_with(&name)).unwrap_or_else(|| panic!("no line {name}"));
    let number = |cell: &str| cell.trim().trim_end_matches(" KiB").replace(',', "").parse().ok();
    line.split('|').skip(2).filter_map(number).collect()
}

#[test]
fn sums_bring_the_bytes_of_the_table_into_a_rank() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    for (rows, hidden) in [(1, 4096), (1, 8192), (16, 8192)] {
        let (count, said) = (rows * hidden, cells(rows, hidden));
        assert_eq!(said.len(), 3, "{rows}, {hidden}");
        let (values, bytes) = (vec![1.0; count], 4 * count as u64);
        for (world, said) in [2usize, 4, 8].into_iter().zip(said) {
            let ranks = world as u64;
            let shared = count as u32 >= engraft_kernels::params::exchange::Reduce::shared_from(world as u32);
            let entry = if shared { "exchange_shared_w" } else { "exchange_reduce_w" };
            let counts = read(&gpu, world, &format!("{entry}{world}"), &values, hidden, false);
            // Its own values, and its own part, or its share of that.
            let own = bytes + if shared { bytes / ranks } else { bytes };
            let want = if shared { 2 * (ranks - 1) * bytes / ranks } else { (ranks - 1) * bytes };
            assert_eq!(want, 1024 * said, "{rows} x {hidden}, {world} ranks, on the page");
            came(&counts, world, own, want);
        }
    }
}

#[test]
fn columns_bring_those_of_the_others_into_a_rank() {
    let double = double();
    let gpu = reached(&double, Mode::Reference);
    let (rows, cols) = (3, 8192);
    for world in [2usize, 4, 8] {
        let bytes = (4 * rows * cols) as u64;
        let counts = read(&gpu, world, "exchange_gather", &vec![1.0; rows * cols], cols, true);
        let own = bytes / world as u64;
        came(&counts, world, own, bytes - own);
    }
}
