//! Rows and words moved.

use crate::machine::{Machine, numbers, rounded, same};
use engraft_kernels::params::Elem;
use engraft_kernels::params::rows::{Feed, Gather, Scatter, Seen};

#[test]
fn rows_are_gathered_and_unknown_ones_are_zero() {
    for elem in Elem::ALL {
        // The last: more units of 16 bytes, and more elements, than a block has threads.
        for (cols, pitch) in [(16, 24), (7, 9), (2064, 2072), (259, 263)] {
            let x = numbers(4 * cols, 1);
            let rows = [3u32, 0, 4, 3, u32::MAX];
            let all = rounded(&x, elem);
            let want: Vec<f32> = rows
                .iter()
                .flat_map(
                    |r| if *r < 4 { all[*r as usize * cols..][..cols].to_vec() } else { vec![0.0; cols] },
                )
                .collect();
            Machine::each(&mut |gpu| {
                let from = gpu.matrix(&x, cols, elem, pitch, 0);
                let out = gpu.matrix(&numbers(5 * cols, 2), cols, elem, pitch, 0);
                let p = Gather { x: from, out, rows: gpu.put(&rows), elem, reserved: 0 };
                gpu.run(&p, &p.launch());
                same(&gpu.values(out, elem), &want, "gather");
            });
        }
    }
}

/// Next to each other and far apart, by even and odd numbers of pairs: another warp may write first.
#[test]
fn of_several_writes_the_last_counts() {
    let mut pairs = vec![[3u32, 30], [0, 1], [9, 90], [3, 31], [5, 50], [u32::MAX, 7], [3, 32]];
    pairs.resize(39, [9, 90]);
    pairs.extend([[5, 51], [0, 2]]);
    Machine::each(&mut |gpu| {
        let dst = gpu.put(&[100u32; 9]);
        let p = Scatter { pairs: gpu.put(&pairs), dst, count: pairs.len() as u32, len: 9 };
        gpu.run(&p, &p.launch());
        assert_eq!(gpu.get::<u32>(dst, 9), [2, 100, 100, 32, 100, 51, 100, 100, 100]);
    });
}

#[test]
fn seen_bits_are_cleared_and_set() {
    let ids: Vec<u32> = vec![0, 31, 32, 95, 96, 5000, 0];
    Machine::each(&mut |gpu| {
        let seen = gpu.put(&[0xffff_ffffu32; 4]);
        let p = Seen { ids: gpu.put(&ids), seen, count: ids.len() as u32, words: 3 };
        gpu.run(&p, &p.launch());
        assert_eq!(gpu.get::<u32>(seen, 4), [1 << 31 | 1, 1, 1 << 31, 0xffff_ffff]);
    });
}

/// More words than a warp clears, each with the bit of an id that another warp sets.
#[test]
fn bits_are_set_behind_all_that_was_cleared() {
    const WORDS: u32 = 70;
    let ids: Vec<u32> = (0..WORDS).rev().map(|word| word * 32 + word % 32).collect();
    let want: Vec<u32> = (0..WORDS).map(|word| 1 << (word % 32)).collect();
    Machine::each(&mut |gpu| {
        let seen = gpu.put(&[u32::MAX; WORDS as usize]);
        let p = Seen { ids: gpu.put(&ids), seen, count: WORDS, words: WORDS };
        gpu.run(&p, &p.launch());
        assert_eq!(gpu.get::<u32>(seen, WORDS as usize), want);
    });
}

/// More ids than a block has threads; rows at the end of `last`, and beyond it.
#[test]
fn tokens_that_a_step_has_sampled_are_fed_to_the_next() {
    for count in [1usize, 255, 256, 257, 700] {
        let rows = 5u32;
        let ids: Vec<u32> = (0..count as u32).map(|t| 1000 + t).collect();
        let last: Vec<u32> = (0..rows).map(|row| 7 + row * 11).collect();
        let feeds: Vec<u32> =
            (0..count as u32).map(|t| [u32::MAX, 0, 4, rows, 2, 6, 1, 3][t as usize % 8]).collect();
        let want: Vec<u32> =
            feeds.iter().zip(&ids).map(|(row, id)| last.get(*row as usize).copied().unwrap_or(*id)).collect();
        Machine::each(&mut |gpu| {
            // A word more: what lies behind stays.
            let out = gpu.put(&vec![3u32; count + 1]);
            let (ids, feeds, last) = (gpu.put(&ids), gpu.put(&feeds), gpu.put(&last));
            let p = Feed { ids, feeds, last, out, count: count as u32, rows };
            gpu.run(&p, &p.launch());
            assert_eq!(gpu.get::<u32>(out, count + 1), [&want[..], &[3]].concat(), "{count} ids");
        });
    }
}
