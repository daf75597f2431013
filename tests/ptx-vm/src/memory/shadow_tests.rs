//! The shadow of memory: what races, what does not, and lines against words.

use super::*;
use crate::memory::global::GlobalShadow;

fn party(clock: &Clock, warp: u16, lane: u8) -> Party<'_> {
    Party { cluster: 0, warp, lane, line: 0, clock }
}

#[test]
fn two_warps_race_until_a_barrier_joins_them() {
    let (mut a, mut b) = (Clock::new(0, 2), Clock::new(0, 2));
    a.tick(0);
    b.tick(1);
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    assert_eq!(cell.touch(&mut readers, 15, How::WRITE, &party(&a, 0, 3)), None);
    let seen = cell.touch(&mut readers, 15, How::READ, &party(&b, 1, 0));
    assert_eq!(seen, Some(Conflict { write: true, cluster: 0, warp: 0, lane: Some(3), line: Some(0) }));
    assert_eq!(cell.touch(&mut readers, 15, How::ATOMIC, &party(&b, 1, 0)).map(|c| c.write), Some(true));
    b.join(&a);
    assert_eq!(cell.touch(&mut readers, 15, How::READ, &party(&b, 1, 0)), None);
    let seen = cell.touch(&mut readers, 15, How::WRITE, &party(&a, 0, 3));
    assert_eq!(seen.map(|c| (c.write, c.warp)), Some((false, 1)));
}

#[test]
fn several_readers_are_all_remembered_and_bytes_are_apart() {
    let clocks: Vec<Clock> = (0..3)
        .map(|w| {
            let mut c = Clock::new(0, 3);
            c.tick(w);
            c
        })
        .collect();
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    for (w, clock) in clocks.iter().enumerate() {
        assert_eq!(cell.touch(&mut readers, 3, How::READ, &party(clock, w as u16, 0)), None);
    }
    assert_eq!(cell.touch(&mut readers, 12, How::WRITE, &party(&clocks[1], 1, 0)), None, "other bytes");
    for (w, clock) in clocks.iter().enumerate() {
        assert_eq!(cell.touch(&mut readers, 3, How::READ, &party(clock, w as u16, 0)), None);
    }
    let mut c = clocks[1].clone();
    c.join(&clocks[0]);
    assert_eq!(cell.touch(&mut readers, 1, How::WRITE, &party(&c, 1, 0)).map(|c| c.warp), Some(2));
    c.join(&clocks[2]);
    assert_eq!(cell.touch(&mut readers, 1, How::WRITE, &party(&c, 1, 0)), None);
}

/// Warps that read together stand in the cell, up to four; more, or others among them, in a list: none is
/// forgotten, and the first who is not ordered is named, in the order in which they came.
#[test]
fn readers_in_the_cell_and_in_a_list_are_the_same_readers() {
    const WARPS: u16 = 6;
    for lanes in [[TOGETHER; 6], [TOGETHER, TOGETHER, 4, TOGETHER, TOGETHER, TOGETHER]] {
        for count in 1..=usize::from(WARPS) {
            for late in [false, true] {
                let mut clocks: Vec<Clock> = (0..WARPS).map(|_| Clock::new(0, WARPS.into())).collect();
                clocks.iter_mut().enumerate().for_each(|(w, c)| c.tick(w as u16));
                // A reader at a later count of its own does not fit the others.
                if late {
                    clocks[1].tick(1);
                }
                let order: Vec<u16> = (0..WARPS).rev().take(count).collect();
                let (mut cell, mut readers) = (Cell::default(), Readers::new(true));
                for _ in 0..2 {
                    for &w in &order {
                        let me = party(&clocks[usize::from(w)], w, lanes[usize::from(w)]);
                        assert_eq!(cell.touch(&mut readers, 15, How::READ, &me), None);
                    }
                }
                // The writer learns of one reader after the other; until the last it races with the next.
                let mut writer = Clock::new(0, usize::from(WARPS) + 1);
                writer.tick(WARPS);
                for &w in &order {
                    let seen = cell.touch(&mut readers, 15, How::WRITE, &party(&writer, WARPS, 0));
                    let lane = (lanes[usize::from(w)] < SEVERAL).then_some(lanes[usize::from(w)]);
                    assert_eq!(
                        seen,
                        Some(Conflict { write: false, cluster: 0, warp: w, lane, line: Some(0) }),
                        "{order:?}"
                    );
                    writer.join(&clocks[usize::from(w)]);
                }
                assert_eq!(cell.touch(&mut readers, 15, How::WRITE, &party(&writer, WARPS, 0)), None);
                assert_eq!(cell.more, ALONE, "the next readers start anew");
            }
        }
    }
}

/// Blocks without order read one place: whoever writes there then races with them, however many warps have
/// read and how.
#[test]
fn readers_of_several_blocks_without_order_stay_known() {
    let few: &[(u32, u16)] = &[(0, 0), (0, 1), (1, 0)];
    let many: &[(u32, u16)] = &[(0, 0), (0, 1), (1, 0), (1, 1), (1, 0), (2, 0), (2, 1)];
    for (reads, lane, parts) in [
        (few, 0, false),
        (few, 0, true),
        (few, TOGETHER, false),
        (many, 0, false),
        (many, 0, true),
        (many, TOGETHER, true),
        (many, TOGETHER, false),
    ] {
        let mut shadow = GlobalShadow::new(1, false);
        for &(cluster, warp) in reads {
            let mut clock = Clock::new(cluster, 2);
            clock.tick(warp);
            let me = Party { cluster, warp, lane, line: 0, clock: &clock };
            assert_eq!(shadow.touch(0, 32, 16, How::READ, &me), None);
            if parts {
                assert_eq!(shadow.touch(0, 36, 4, How::READ, &me), None);
            }
        }
        assert_ne!(shadow.pages[0][0].settled, 0);
        let mut clock = Clock::new(3, 2);
        clock.tick(0);
        let me = Party { cluster: 3, warp: 0, lane: 0, line: 0, clock: &clock };
        for (at, bytes) in [(44, 4), (32, 16)] {
            let seen = shadow.touch(0, at, bytes, How::WRITE, &me);
            assert!(seen.is_some_and(|c| !c.write), "{bytes} bytes at {at} after {reads:?}");
        }
        assert_eq!(shadow.touch(0, 48, 16, How::WRITE, &me), None, "the next line was not read");
        let clock = Clock::new(4, 2);
        let me = Party { cluster: 4, warp: 0, lane: 0, line: 0, clock: &clock };
        assert!(shadow.touch(0, 48, 16, How::READ, &me).is_some_and(|c| c.write));
    }
}

/// Lines against words: the same accesses, the same conflicts.
#[test]
fn a_line_finds_what_its_words_find() {
    let mut state = 1u64;
    let mut dice = |n: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % n
    };
    let mut found = 0;
    for round in 0..2000 {
        let mut clocks: Vec<Clock> = (0..3).map(|_| Clock::new(0, 3)).collect();
        clocks.iter_mut().enumerate().for_each(|(w, c)| c.tick(w as u16));
        let (mut lines, mut words) = (GlobalShadow::new(1, true), [Cell::default(); 8]);
        let mut readers = Readers::new(true);
        for step in 0..12 {
            let warp = dice(3) as u16;
            match dice(6) {
                0 => {
                    let other = clocks[dice(3) as usize].clone();
                    clocks[usize::from(warp)].join(&other);
                }
                1 => clocks[usize::from(warp)].tick(warp),
                _ => {}
            }
            let how = [How::READ, How::READ, How::WRITE, How::ATOMIC][dice(4) as usize];
            let bytes = [1, 2, 4, 8, 16, 16, 16, 32][dice(8) as usize];
            let at = dice((32 / bytes) as u64) as usize * bytes;
            let lane = [0, 1, TOGETHER][dice(3) as usize];
            let me = party(&clocks[usize::from(warp)], warp, lane);
            let got = lines.touch(0, at, bytes, how, &me);
            let (mut byte, mut want) = (at, None);
            while byte < at + bytes && want.is_none() {
                let (stop, mask) = word_bytes(byte, at + bytes);
                want = words[byte / 4].touch(&mut readers, mask, how, &me);
                byte = stop;
            }
            assert_eq!(got, want, "round {round} step {step}: {how:?} of {bytes} at {at} by warp {warp}");
            if got.is_some() {
                found += 1;
                break;
            }
        }
    }
    assert!(found > 500, "the test finds races: {found}");
}

#[test]
fn neighbours_that_read_and_write_their_own_halves_of_a_word_do_not_race() {
    let mut c = Clock::new(0, 1);
    c.tick(0);
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    for how in [How::READ, How::WRITE] {
        assert_eq!(cell.touch(&mut readers, 3, how, &party(&c, 0, 0)), None);
        assert_eq!(cell.touch(&mut readers, 12, how, &party(&c, 0, 1)), None);
    }
}

#[test]
fn a_word_read_whole_before_a_barrier_is_free_by_halves_behind_it() {
    let mut c = Clock::new(0, 1);
    c.tick(0);
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    assert_eq!(cell.touch(&mut readers, 15, How::READ, &party(&c, 0, 0)), None);
    c.tick(0);
    for (bytes, lane) in [(12, 1), (3, 0)] {
        assert_eq!(cell.touch(&mut readers, bytes, How::READ, &party(&c, 0, lane)), None);
    }
    assert_eq!(cell.touch(&mut readers, 12, How::WRITE, &party(&c, 0, 1)), None);
    // Each reads back what it wrote.
    assert_eq!(cell.touch(&mut readers, 3, How::WRITE, &party(&c, 0, 0)), None);
    for (bytes, lane) in [(12, 1), (3, 0)] {
        assert_eq!(cell.touch(&mut readers, bytes, How::READ, &party(&c, 0, lane)), None);
    }
    // Another's half, not.
    assert!(cell.touch(&mut readers, 3, How::READ, &party(&c, 0, 1)).is_some());
}

#[test]
fn lanes_of_a_warp_race_until_the_warp_synchronises() {
    let mut c = Clock::new(0, 1);
    c.tick(0);
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    assert_eq!(cell.touch(&mut readers, 15, How::WRITE, &party(&c, 0, 1)), None);
    assert_eq!(cell.touch(&mut readers, 15, How::READ, &party(&c, 0, 1)), None);
    assert!(cell.touch(&mut readers, 15, How::READ, &party(&c, 0, 2)).is_some());
    c.tick(0);
    assert_eq!(cell.touch(&mut readers, 15, How::READ, &party(&c, 0, 2)), None);
    assert!(cell.touch(&mut readers, 15, How::WRITE, &party(&c, 0, 1)).is_some());
    assert_eq!(cell.touch(&mut readers, 15, How::READ, &party(&c, 0, TOGETHER)), None);
}

#[test]
fn strong_accesses_do_not_race_with_each_other() {
    let clocks: Vec<Clock> = (0..2)
        .map(|w| {
            let mut c = Clock::new(0, 2);
            c.tick(w);
            c
        })
        .collect();
    let (mut cell, mut readers) = (Cell::default(), Readers::default());
    assert_eq!(cell.touch(&mut readers, 15, How::ATOMIC, &party(&clocks[0], 0, 0)), None);
    assert_eq!(cell.touch(&mut readers, 15, How::ATOMIC, &party(&clocks[1], 1, 0)), None);
    assert_eq!(
        cell.touch(&mut readers, 15, How { strong: true, ..How::READ }, &party(&clocks[0], 0, 0)),
        None
    );
    assert!(cell.touch(&mut readers, 15, How::READ, &party(&clocks[0], 0, 0)).is_some());
}

/// Accesses of the first warps of clusters 0 (device 0), 1 (device 1) and 2 (device 0), without order among
/// them.
struct Devices {
    clocks: [Clock; 3],
    readers: Readers,
    cell: Cell,
}

impl Devices {
    fn new() -> Devices {
        let clocks = [0, 1, 2].map(|cluster| {
            let mut clock = Clock::new(cluster, 1);
            clock.tick(0);
            clock
        });
        let readers = Readers { devices: vec![(0, 0), (1, 1), (2, 0)], ..Readers::new(true) };
        Devices { clocks, readers, cell: Cell::default() }
    }

    /// The cluster that a strong access of this scope races with.
    fn touch(&mut self, cluster: u32, write: bool, scope: Scope) -> Option<u32> {
        self.how(cluster, How { write, strong: true, scope })
    }

    fn how(&mut self, cluster: u32, how: How) -> Option<u32> {
        let clock = &self.clocks[cluster as usize];
        let me = Party { cluster, warp: 0, lane: 0, line: 0, clock };
        self.cell.touch(&mut self.readers, 15, how, &me).map(|c| c.cluster)
    }
}

#[test]
fn each_reader_has_its_own_scope() {
    let (gpu, sys) = (Scope::Device, Scope::System);
    // A device looks at its own flag at its own scope, another one at all devices'.
    for first in [0, 1] {
        let mut d = Devices::new();
        for cluster in [first, 1 - first] {
            assert_eq!(d.touch(cluster, false, if cluster == 0 { gpu } else { sys }), None);
        }
        assert_eq!(d.touch(0, true, sys), None, "reader {first} first");
    }
    // Whoever of several readers is too narrow is named, wherever it stands among them.
    for order in [[2, 1], [1, 2]] {
        let mut d = Devices::new();
        for cluster in order {
            assert_eq!(d.touch(cluster, false, gpu), None);
        }
        assert_eq!(d.touch(0, true, gpu), Some(1), "{order:?}");
    }
    // The scope of the write counts for each of them, and so does a weak read.
    let mut d = Devices::new();
    assert_eq!([2, 1].map(|cluster| d.touch(cluster, false, sys)), [None; 2]);
    assert_eq!(d.touch(0, true, gpu), Some(1));
    let mut d = Devices::new();
    assert_eq!(d.touch(2, false, sys), None);
    assert_eq!(d.how(1, How::READ), None);
    assert_eq!(d.touch(0, true, sys), Some(1));
    // The two scopes of one reader: the narrower one counts until its warp has synchronised.
    let mut d = Devices::new();
    for scope in [gpu, sys] {
        assert_eq!([2, 1].map(|cluster| d.touch(cluster, false, scope)), [None; 2]);
    }
    assert_eq!(d.touch(0, true, sys), Some(1));
    let mut d = Devices::new();
    for scope in [gpu, sys] {
        assert_eq!([2, 1].map(|cluster| d.touch(cluster, false, scope)), [None; 2]);
        d.clocks.iter_mut().for_each(|clock| clock.tick(0));
    }
    assert_eq!(d.touch(0, true, sys), None);
}

#[test]
fn a_read_behind_another_one_counts_with_its_own_scope() {
    let (gpu, sys) = (Scope::Device, Scope::System);
    for (scopes, race) in [([gpu, sys], None), ([sys, gpu], Some(1))] {
        let mut d = Devices::new();
        assert_eq!(d.touch(0, false, scopes[0]), None);
        let first = d.clocks[0].clone();
        d.clocks[1].join(&first);
        assert_eq!(d.touch(1, false, scopes[1]), None);
        assert_eq!(d.touch(0, true, sys), race, "{scopes:?}");
    }
    // That the launch has read weakly stays known.
    let mut d = Devices::new();
    assert_eq!(d.how(0, How::READ), None);
    d.clocks[0].tick(0);
    assert_eq!(d.touch(0, false, sys), None);
    let seen = d.cell.touched(&d.readers, &Clock::default());
    assert_eq!(seen.map(|seen| seen.map(|seen| seen.strong)), [Some(false), None]);
    assert_eq!(d.touch(1, true, sys), None, "the read that counts is strong");
}
