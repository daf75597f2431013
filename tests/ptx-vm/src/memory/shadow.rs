//! What is known of each word of shared and global memory while a launch runs: who wrote it last, who has
//! read it since.
//!
//! One [`Cell`] per 4-byte word, with masks for its bytes. Two accesses race when one of them is a write,
//! they overlap, they are not both strong (atomic, volatile, relaxed and up), and the later one's [`Clock`]
//! does not know the earlier one. The lanes of one warp are distinguished until the warp's own count moves on
//! (`__syncwarp`, a barrier): a lane that reads what another lane of its warp wrote just now races with it,
//! because lanes may run one after another. Four neighbouring words are a [`Line`]: as long as they have one
//! history they share a cell, and an access of 16 aligned bytes is one check instead of four. What is found
//! is the same. Where two parties write, or two read, different bytes of one word, only the later one is
//! remembered: such a race can be missed, but nothing is reported that is none.

pub(crate) use super::access::{Conflict, How, Party, Seen, TOGETHER};
use super::access::{FAR, SEVERAL};
use super::clock::{Clock, Fenced};
use super::flag::Scope;

/// The reader field's mark for a list of readers.
const LISTED: u16 = u16::MAX;
/// More readers than this are not distinguished when nothing can order clusters.
const ANYONE: u32 = u32::MAX;

/// What is known of one word. A count of 0 stands for "none".
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Cell {
    write_count: u32,
    read_count: u32,
    write_cluster: u32,
    read_cluster: u32,
    write_who: u16,
    read_who: u16,
    /// The instructions of the last write and of the last read, by their place in the kernel.
    write_line: u16,
    read_line: u16,
    write_bytes: u8,
    read_bytes: u8,
    /// Bit 0: the last write was strong; bit 1: all reads were strong; bit 2: the asynchronous proxy made the
    /// last write (global memory). Bits 3 and 4: the scope of a strong write; 5 and 6: the narrowest scope of
    /// strong reads. Bit 7: a read that a later one has replaced was weak.
    strong: u8,
    /// Low four bits: bytes written at all (shared memory). High four: bytes of an mbarrier.
    pub(crate) init: u8,
    /// Bytes that an asynchronous operation is about to write (low) or still reads (high).
    pub(crate) flight: u8,
    /// Warps (plus one) that have read after `read_who`, in order, when all of them read together and at one
    /// count: the tiles of a matmul are read so, and need no list.
    more: [u8; 3],
}

/// None but the first reader.
const ALONE: [u8; 3] = [0; 3];

/// The party behind one of [`Cell::more`].
#[inline(always)]
fn along(mark: u8) -> u16 {
    u16::from(mark - 1) << 6 | u16::from(TOGETHER)
}

/// One of several readers.
#[derive(Debug, Clone, Copy)]
struct Reader {
    cluster: u32,
    who: u16,
    line: u16,
    count: u32,
    /// Of its reads, as in [`Cell::strong`].
    marks: u8,
}

/// The lists of readers that do not fit a cell.
#[derive(Debug, Default, Clone)]
pub(crate) struct Readers {
    lists: Vec<Vec<Reader>>,
    spare: Vec<u32>,
    /// Clusters can be ordered among each other in this launch.
    pub(crate) ordered_clusters: bool,
    /// The first cluster of each launch and its device, ascending; empty where one launch is alone.
    pub(crate) devices: Vec<(u32, u32)>,
}

impl Readers {
    /// No lists yet.
    pub(crate) fn new(ordered_clusters: bool) -> Self {
        Readers { ordered_clusters, ..Readers::default() }
    }

    /// The device that runs a cluster.
    fn device(&self, cluster: u32) -> Option<u32> {
        let at = self.devices.partition_point(|(first, _)| *first <= cluster);
        at.checked_sub(1).map(|at| self.devices[at].1)
    }

    /// Whether strong accesses of two clusters, the narrower of which has this scope, are atomic to each
    /// other.
    fn joint(&self, scope: Scope, a: u32, b: u32) -> bool {
        scope == Scope::System
            || a == b
            || scope == Scope::Device && (self.devices.len() < 2 || self.device(a) == self.device(b))
    }
}

/// The marks of reads in [`Cell::strong`], which a write leaves alone.
const READ_MARKS: u8 = 0b1110_0010;
/// Of those, the mark of a weak read that has been replaced: what the launch has done, not what still counts.
const WEAK_BEFORE: u8 = 0b1000_0000;

/// The marks of two reads that both count: weak if one is, else the narrower scope.
#[inline(always)]
fn both(a: u8, b: u8) -> u8 {
    if a & b & 2 == 0 { 0 } else { a.min(b) }
}

impl Cell {
    /// Notes an access to some bytes of the word (a mask of four bits), or tells with whom it races.
    #[inline(always)]
    pub(crate) fn touch(
        &mut self,
        readers: &mut Readers,
        bytes: u8,
        how: How,
        me: &Party<'_>,
    ) -> Option<Conflict> {
        let now = me.clock.now(me.warp);
        if self.write_count != 0
            && self.write_bytes & bytes != 0
            && !(how.strong && self.strong & 1 != 0 && self.joint_write(readers, how, me))
        {
            // Two lanes of one warp that write one word: mostly one instruction, and then no race worth a
            // report.
            let same = how.write && self.write_cluster == me.cluster && self.write_who >> 6 == me.warp;
            if !same && !me.after(self.write_cluster, self.write_who, self.write_count) {
                return Some(Conflict::new(true, self.write_cluster, self.write_who, self.write_line));
            }
        }
        if how.write {
            if self.read_count != 0 {
                if self.read_bytes & bytes != 0
                    && !(how.strong && self.strong & 2 != 0 && readers.devices.len() < 2)
                    && let Some(conflict) = self.unordered_reader(readers, how, me)
                {
                    return Some(conflict);
                }
                self.forget_readers(readers);
            }
            // Lanes that write different bytes are not put together: each may read its own at once.
            let same = self.write_count == now
                && self.write_cluster == me.cluster
                && self.write_who >> 6 == me.warp
                && (self.write_bytes & bytes != 0 || self.write_who == me.who());
            self.write_bytes = if same { self.write_bytes | bytes } else { bytes };
            self.write_who =
                if same && self.write_who != me.who() { me.warp << 6 | u16::from(SEVERAL) } else { me.who() };
            self.write_count = now;
            self.write_cluster = me.cluster;
            self.write_line = me.line();
            self.strong = self.strong & READ_MARKS | how.write_marks();
        } else {
            self.read(readers, bytes, how, now, me);
        }
        None
    }

    /// Whether the last write and this access, both strong, are atomic to each other.
    #[inline(always)]
    fn joint_write(&self, readers: &Readers, how: How, me: &Party<'_>) -> bool {
        let scope = Scope::ALL[usize::from(self.strong >> 3 & 3)].min(how.scope);
        readers.joint(scope, self.write_cluster, me.cluster)
    }

    /// Whether reads with these marks, if they were strong, and this write are atomic to each other.
    fn joint_read(readers: &Readers, marks: u8, how: How, reader: u32, me: &Party<'_>) -> bool {
        let scope = Scope::ALL[usize::from(marks >> 5 & 3)].min(how.scope);
        how.strong && marks & 2 != 0 && readers.joint(scope, reader, me.cluster)
    }

    /// A read replaces the ones that are remembered.
    #[inline(always)]
    fn replace_marks(&mut self, how: How) {
        let weak = if self.strong & 2 == 0 { WEAK_BEFORE } else { self.strong & WEAK_BEFORE };
        self.strong = self.strong & !READ_MARKS | how.read_marks() | weak;
    }

    /// Notes an access that has been reported, so that it is not reported again.
    #[cold]
    pub(crate) fn renew(&mut self, readers: &mut Readers, bytes: u8, how: How, me: &Party<'_>) {
        let now = me.clock.now(me.warp);
        if !how.write {
            self.read(readers, bytes, how, now, me);
            return;
        }
        self.forget_readers(readers);
        (self.write_count, self.write_cluster, self.write_who) = (now, me.cluster, me.who());
        (self.write_bytes, self.write_line) = (bytes, me.line());
        self.strong = self.strong & READ_MARKS | how.write_marks();
    }

    /// What has been done with the word. A write stands for the reads too, unless only one of the two
    /// was released.
    pub(super) fn touched(&self, readers: &Readers, released: &Clock) -> [Option<Seen>; 2] {
        let place = |line: u16| (line != FAR).then_some(u32::from(line));
        let reads_strong = self.read_count == 0 || self.strong & (2 | WEAK_BEFORE) == 2;
        let late = |cluster, who: u16, count| !released.knows(cluster, who >> 6, count);
        let read = (self.read_count != 0).then(|| {
            let all = match (self.read_who, self.read_count) {
                (LISTED, ANYONE) => true,
                (LISTED, at) => {
                    readers.lists[at as usize - 1].iter().any(|r| late(r.cluster, r.who, r.count))
                }
                (who, count) => {
                    let more = self.more.iter().filter(|&&mark| mark != 0).map(|&mark| along(mark));
                    std::iter::once(who).chain(more).any(|who| late(self.read_cluster, who, count))
                }
            };
            Seen { write: false, strong: reads_strong, late: all, by: place(self.read_line) }
        });
        if self.write_count == 0 {
            return [read, None];
        }
        let strong = self.strong & 1 != 0 && reads_strong;
        let late = late(self.write_cluster, self.write_who, self.write_count);
        let write = Seen { write: true, strong, late, by: place(self.write_line) };
        [Some(write), read.filter(|read| read.late != late)]
    }

    /// One history but for the instructions that made it.
    #[inline(always)]
    fn alike(&self, other: &Cell) -> bool {
        let bare = |cell: &Cell| Cell { write_line: 0, read_line: 0, ..*cell };
        bare(self) == bare(other)
    }

    /// The warp whose write to some of these bytes the asynchronous proxy may not see: no fence stands
    /// between.
    pub(crate) fn hidden_write(&self, space: Fenced, bytes: u8, me: &Party<'_>) -> Option<u16> {
        let plain = self.write_count != 0 && self.write_bytes & bytes != 0 && self.strong & 4 == 0;
        let (cluster, warp) = (self.write_cluster, self.write_who >> 6);
        (plain && !me.clock.shows_async(space, cluster, warp, self.write_count)).then_some(warp)
    }

    /// The asynchronous proxy made the last write.
    pub(super) fn wrote_async(&mut self) {
        self.strong |= 4;
    }

    /// Whether the last access to all of these bytes was a plain write by the same lane, which then counts as
    /// made now.
    #[inline(always)]
    pub(crate) fn is_still(&mut self, bytes: u8, me: &Party<'_>) -> bool {
        let same = self.write_count != 0
            && self.write_cluster == me.cluster
            && self.write_who == me.who()
            && self.write_bytes == bytes
            && self.read_count == 0
            && self.strong & 1 == 0;
        if same {
            self.write_count = me.clock.now(me.warp);
        }
        same
    }

    /// Whether no read finds or changes anything: never written, and read whole and weakly by clusters
    /// without order.
    #[inline(always)]
    pub(super) fn is_settled(&self) -> bool {
        let anyone = self.read_who == LISTED && self.read_count == ANYONE;
        anyone && self.write_count == 0 && self.read_bytes == 15 && self.strong & 2 == 0
    }

    #[inline(always)]
    fn read(&mut self, readers: &mut Readers, bytes: u8, how: How, now: u32, me: &Party<'_>) {
        let who = me.who();
        if self.read_bytes & bytes == 0
            && (self.read_who != who || self.read_cluster != me.cluster || self.more != ALONE)
        {
            self.forget_readers(readers);
        }
        if self.read_count == 0 {
            (self.read_count, self.read_cluster, self.read_who, self.read_bytes) =
                (now, me.cluster, who, bytes);
            self.read_line = me.line();
            self.strong = self.strong & !READ_MARKS | how.read_marks();
            return;
        }
        if self.read_who != LISTED && self.more == ALONE {
            let same = self.read_cluster == me.cluster && self.read_who >> 6 == me.warp;
            // What was read before the warp's last synchronisation is past.
            if same && self.read_count != now
                || !same && me.after(self.read_cluster, self.read_who, self.read_count)
            {
                self.replace_marks(how);
                (self.read_count, self.read_cluster, self.read_who) = (now, me.cluster, who);
                (self.read_bytes, self.read_line) = (bytes, me.line());
                return;
            }
            if same {
                self.read_line = me.line();
                self.read_who = if self.read_who == who { who } else { me.warp << 6 | u16::from(SEVERAL) };
                self.read_bytes |= bytes;
                self.also_marks(how);
                return;
            }
        }
        let marks = self.strong & READ_MARKS & !WEAK_BEFORE;
        self.read_bytes |= bytes;
        self.also_marks(how);
        if self.read_count != ANYONE && !self.read_along(now, me) {
            self.read_listed(readers, now, marks, how, me);
        }
    }

    /// A read counts next to the ones that are remembered.
    #[inline(always)]
    fn also_marks(&mut self, how: How) {
        let marks = both(self.strong & !WEAK_BEFORE & READ_MARKS, how.read_marks());
        self.strong = self.strong & (!READ_MARKS | WEAK_BEFORE) | marks;
    }

    /// Remembers one more warp that reads together, at the count of the first.
    #[inline(always)]
    fn read_along(&mut self, now: u32, me: &Party<'_>) -> bool {
        let together = self.read_who & 63 == u16::from(TOGETHER) && me.lane == TOGETHER;
        let here = self.read_cluster == me.cluster && self.read_line == me.line();
        if !together || self.read_count != now || !here || me.warp >= 255 {
            return false;
        }
        let mark = me.warp as u8 + 1;
        if self.read_who == me.who() {
            return true;
        }
        for place in &mut self.more {
            if *place == 0 {
                *place = mark;
            }
            if *place == mark {
                return true;
            }
        }
        false
    }

    #[cold]
    fn read_listed(&mut self, readers: &mut Readers, now: u32, marks: u8, how: How, me: &Party<'_>) {
        if self.read_who != LISTED {
            if !readers.ordered_clusters && self.read_cluster != me.cluster {
                (self.read_count, self.read_who, self.more) = (ANYONE, LISTED, ALONE);
                return;
            }
            let at = readers.spare.pop().unwrap_or_else(|| {
                readers.lists.push(Vec::new());
                readers.lists.len() as u32 - 1
            });
            let more = self.more.into_iter().filter(|&mark| mark != 0).map(along);
            let here = std::iter::once(self.read_who).chain(more);
            let (cluster, count, line) = (self.read_cluster, self.read_count, self.read_line);
            readers.lists[at as usize].extend(here.map(|who| Reader { cluster, who, line, count, marks }));
            (self.read_count, self.read_who, self.more) = (at + 1, LISTED, ALONE);
        }
        let list = &mut readers.lists[self.read_count as usize - 1];
        if !readers.ordered_clusters && list.first().is_some_and(|r| r.cluster != me.cluster) {
            let (bytes, strong) = (self.read_bytes, self.strong);
            self.forget_readers(readers);
            (self.read_count, self.read_who, self.read_bytes) = (ANYONE, LISTED, bytes);
            self.strong = strong;
            return;
        }
        let own = how.read_marks();
        match list.iter_mut().find(|r| r.cluster == me.cluster && r.who >> 6 == me.warp) {
            Some(r) if r.count == now => {
                r.who = if r.who == me.who() { r.who } else { me.warp << 6 | u16::from(SEVERAL) };
                (r.line, r.marks) = (me.line(), both(r.marks, own));
            }
            Some(r) => (r.count, r.who, r.line, r.marks) = (now, me.who(), me.line(), own),
            None => {
                let (cluster, who, line) = (me.cluster, me.who(), me.line());
                list.push(Reader { cluster, who, line, count: now, marks: own });
            }
        }
    }

    /// The first reader that this write is neither ordered behind nor atomic to.
    #[inline(always)]
    fn unordered_reader(&self, readers: &Readers, how: How, me: &Party<'_>) -> Option<Conflict> {
        if self.read_who != LISTED {
            let (cluster, count) = (self.read_cluster, self.read_count);
            if how.strong && Self::joint_read(readers, self.strong, how, cluster, me) {
                return None;
            }
            if !me.after(cluster, self.read_who, count) {
                return Some(Conflict::new(false, cluster, self.read_who, self.read_line));
            }
            for mark in self.more {
                if mark != 0 && !me.after(cluster, along(mark), count) {
                    return Some(Conflict::new(false, cluster, along(mark), self.read_line));
                }
            }
            return None;
        }
        self.unordered_listed(readers, how, me)
    }

    fn unordered_listed(&self, readers: &Readers, how: How, me: &Party<'_>) -> Option<Conflict> {
        if self.read_count == ANYONE {
            let anyone = Conflict { write: false, cluster: ANYONE, warp: 0, lane: None, line: None };
            return (!Self::joint_read(readers, self.strong, how, ANYONE, me)).then_some(anyone);
        }
        let list = &readers.lists[self.read_count as usize - 1];
        let joint = |r: &Reader| Self::joint_read(readers, r.marks, how, r.cluster, me);
        list.iter()
            .find(|r| !me.after(r.cluster, r.who, r.count) && !joint(r))
            .map(|r| Conflict::new(false, r.cluster, r.who, r.line))
    }

    #[inline(always)]
    fn forget_readers(&mut self, readers: &mut Readers) {
        if self.read_who == LISTED {
            self.forget_list(readers);
        }
        (self.read_count, self.read_who, self.read_bytes, self.more) = (0, 0, 0, ALONE);
        // Words with one history have one cell, bit for bit: nothing of the readers stays.
        (self.read_cluster, self.read_line) = (0, 0);
        self.strong &= !READ_MARKS;
    }

    #[inline(never)]
    fn forget_list(&self, readers: &mut Readers) {
        if self.read_count != ANYONE && self.read_count != 0 {
            let at = self.read_count - 1;
            readers.lists[at as usize].clear();
            readers.spare.push(at);
        }
    }

    /// A word with the same history: the list of readers is copied, since each word has its own.
    fn twin(&self, readers: &mut Readers) -> Cell {
        let mut twin = *self;
        if self.read_who == LISTED && self.read_count != ANYONE && self.read_count != 0 {
            let list = readers.lists[self.read_count as usize - 1].clone();
            twin.read_count = match readers.spare.pop() {
                Some(at) => {
                    readers.lists[at as usize] = list;
                    at + 1
                }
                None => {
                    readers.lists.push(list);
                    readers.lists.len() as u32
                }
            };
        }
        twin
    }
}

/// Bytes of a line.
pub(crate) const LINE: usize = 16;

/// Four words, aligned: half a cache line of this processor, so that wide accesses stay fast.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Line {
    /// Stands for all four words, unless they are apart.
    pub(super) one: Cell,
    /// Where the four are when they are apart, plus one.
    pub(super) apart: u32,
}

// The readers and instructions that a cell remembers by itself must not make the shadow much larger than what
// it describes twice over.
const _: () = assert!(size_of::<Line>() == 2 * LINE + 4);

/// The words of lines that are apart.
#[derive(Debug, Default, Clone)]
pub(crate) struct Parts {
    cells: Vec<[Cell; 4]>,
    spare: Vec<u32>,
}

impl Parts {
    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.cells.clear();
        self.spare.clear();
    }
}

impl Line {
    /// The cells that stand for the whole line.
    #[inline(always)]
    pub(crate) fn all<'a>(&'a mut self, parts: &'a mut Parts) -> &'a mut [Cell] {
        match self.apart {
            0 => std::slice::from_mut(&mut self.one),
            at => &mut parts.cells[at as usize - 1],
        }
    }

    /// The cell of one word, which from now on has a history of its own.
    #[inline(always)]
    pub(crate) fn word<'a>(
        &'a mut self,
        at: usize,
        parts: &'a mut Parts,
        readers: &mut Readers,
    ) -> &'a mut Cell {
        if self.apart == 0 {
            self.part(parts, readers);
        }
        &mut parts.cells[self.apart as usize - 1][at]
    }

    #[inline(never)]
    fn part(&mut self, parts: &mut Parts, readers: &mut Readers) {
        let cells = [self.one, self.one.twin(readers), self.one.twin(readers), self.one.twin(readers)];
        self.apart = match parts.spare.pop() {
            Some(at) => {
                parts.cells[at as usize] = cells;
                at + 1
            }
            None => {
                parts.cells.push(cells);
                parts.cells.len() as u32
            }
        };
    }

    /// After an access to all four words: they may have one history again.
    #[inline(always)]
    pub(crate) fn join(&mut self, parts: &mut Parts) {
        if self.apart != 0 {
            self.rejoin(parts);
        }
    }

    fn rejoin(&mut self, parts: &mut Parts) {
        let [a, b, c, d] = &parts.cells[self.apart as usize - 1];
        if a.alike(b) && a.alike(c) && a.alike(d) {
            self.one = *a;
            parts.spare.push(self.apart - 1);
            self.apart = 0;
        }
    }
}

/// The part of `at .. end` in the word of `at`: where it stops, and its bytes as a mask.
#[inline(always)]
pub(crate) fn word_bytes(at: usize, end: usize) -> (usize, u8) {
    let next = at / 4 * 4 + 4;
    let stop = end.min(next);
    (stop, (0xf << (at % 4) & 0xf >> (next - stop)) as u8)
}

#[cfg(test)]
#[path = "shadow_tests.rs"]
mod tests;
