//! Numbers of marks: dispatches behind work that note their number if the one before it was noted.
//!
//! Whatever is given up alone (a command buffer, or a pass, of which wgpu makes a command buffer of Metal's)
//! leaves its marks out, and so do all behind it. So every pass with work ends with a mark, and what the host
//! reads has one of its own.

/// Which marks there are, and which are due.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The number of the last one that was encoded; they wrap around.
    last: u32,
    /// The number of the last one that the host has seen noted.
    seen: u32,
    /// Whether work was encoded behind it, in the pass that is open.
    unmarked: bool,
}

impl Marks {
    /// Work was encoded.
    pub fn work(&mut self) {
        self.unmarked = true;
    }

    /// The pass ends: the mark that it has before, if it has work of which none speaks.
    pub fn at_end_of_pass(&mut self) -> Option<u32> {
        self.unmarked.then(|| self.next())
    }

    /// The next one, in front of what the host reads.
    pub fn next(&mut self) -> u32 {
        self.unmarked = false;
        self.last = self.last.wrapping_add(1);
        self.last
    }

    /// The host has seen this one.
    pub fn see(&mut self, mark: u32) {
        self.seen = mark;
    }

    /// Whether there is work of which the host has seen no mark.
    pub fn is_unseen(&self) -> bool {
        self.unmarked || self.seen != self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is encoded, as a device and its host see it.
    #[derive(Debug, Default)]
    struct Encoded {
        marks: Marks,
        /// Of every pass with anything in it: whether it has work, and its marks.
        passes: Vec<(bool, Vec<u32>)>,
        open: bool,
    }

    impl Encoded {
        fn pass(&mut self) -> &mut (bool, Vec<u32>) {
            if !std::mem::replace(&mut self.open, true) {
                self.passes.push((false, Vec::new()));
            }
            let last = self.passes.len() - 1;
            &mut self.passes[last]
        }

        fn work(&mut self) {
            self.pass().0 = true;
            self.marks.work();
        }

        /// A time is written, or the command buffer is handed over.
        fn end(&mut self) {
            if let Some(mark) = self.marks.at_end_of_pass() {
                self.pass().1.push(mark);
            }
            self.open = false;
        }

        /// The number that the host wants to see.
        fn read(&mut self) -> u32 {
            let mark = self.marks.next();
            self.pass().1.push(mark);
            self.end();
            mark
        }

        /// The number noted in the end, where one pass is given up.
        fn noted(&self, lost: Option<usize>) -> u32 {
            let ran = self.passes.iter().enumerate().filter(|(at, _)| Some(*at) != lost);
            let marks = ran.flat_map(|(_, (_, marks))| marks.iter().copied());
            marks.fold(0, |noted: u32, mark| if noted.wrapping_add(1) == mark { mark } else { noted })
        }
    }

    /// Every order of work, ends of passes and reads, and each pass of it lost.
    #[test]
    fn whichever_pass_with_work_is_given_up_the_host_sees_it() {
        let mut lost = 0;
        for script in 0..3u32.pow(7) {
            let mut all = Encoded::default();
            for at in 0..7 {
                match script / 3u32.pow(at) % 3 {
                    0 => all.work(),
                    1 => all.end(),
                    _ => _ = all.read(),
                }
            }
            let wanted = all.read();
            assert_eq!(all.noted(None), wanted, "{all:?}");
            for (at, _) in all.passes.iter().enumerate().filter(|(_, (work, _))| *work) {
                lost += 1;
                assert_ne!(all.noted(Some(at)), wanted, "pass {at} of {all:?}");
            }
        }
        assert!(lost > 3000, "{lost}");
    }

    #[test]
    fn a_wait_looks_where_there_is_work_that_it_has_not_seen() {
        let mut marks = Marks { last: u32::MAX - 1, seen: u32::MAX - 1, unmarked: false };
        assert!(!marks.is_unseen() && marks.at_end_of_pass().is_none());
        marks.work();
        assert!(marks.is_unseen());
        assert_eq!(marks.at_end_of_pass(), Some(u32::MAX));
        assert!(marks.is_unseen(), "it was encoded, not seen");
        let read = marks.next();
        assert_eq!(read, 0);
        marks.see(read);
        assert!(!marks.is_unseen());
    }
}
