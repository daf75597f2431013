//! A mapped file that becomes shorter while it is read: the system ends the process by SIGBUS, which says
//! nothing. Here it says which file it was, and that `--no-mmap` reads files instead.
//!
//! The handler does what may be done inside one: it opens, reads and writes by system calls, allocates
//! nothing and takes no lock. Which file lies at the address is read from `/proc/self/maps`, so that nothing
//! has to know what was mapped. SIGBUS for another reason (failing memory, no file at the address) keeps its
//! usual end.

#[cfg(target_os = "linux")]
pub(crate) use linux::install;

/// Only Linux lists mappings as this needs it.
#[cfg(not(target_os = "linux"))]
pub(crate) fn install() {}

#[cfg(target_os = "linux")]
mod linux {
    use std::mem::MaybeUninit;

    /// Bytes of a path that are shown.
    const SHOWN: usize = 512;

    /// Handles SIGBUS for the process from now on.
    pub(crate) fn install() {
        // SAFETY: an all-zero `sigaction` is a valid one; the handler is of the type that SA_SIGINFO asks for
        // and calls only what is safe in signal handlers. A refusal leaves the usual end.
        unsafe {
            let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
            action.sa_sigaction = on_bus_error as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
        }
    }

    extern "C" fn on_bus_error(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel hands a valid `siginfo_t` of a memory fault; `signal` and `_exit` may be called
        // in handlers.
        unsafe {
            let address = (*info).si_addr() as usize;
            let mut finder = Finder::new(address);
            if (*info).si_code == libc::BUS_ADRERR && read_maps(&mut finder) {
                write(b"error: ");
                write(finder.path());
                write(
                    b" became shorter while it was mapped; --no-mmap reads files instead of mapping them\n",
                );
                libc::_exit(1);
            }
            // The access is repeated after the return, and ends the process as ever.
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        }
    }

    fn write(bytes: &[u8]) {
        // SAFETY: the pointer and the length are those of a slice. What cannot be written is lost: there is
        // nowhere else to say it.
        unsafe { libc::write(2, bytes.as_ptr().cast(), bytes.len()) };
    }

    /// Feeds the process's mappings to `finder`; whether it found a file.
    fn read_maps(finder: &mut Finder) -> bool {
        let mut part = [0u8; 1024];
        // SAFETY: a path that ends with zero, and a buffer of the length given.
        unsafe {
            let file = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            if file < 0 {
                return false;
            }
            loop {
                let read = libc::read(file, part.as_mut_ptr().cast(), part.len());
                let Some(bytes) = usize::try_from(read).ok().and_then(|n| part.get(..n)) else {
                    return false;
                };
                if bytes.is_empty() {
                    return false;
                }
                if bytes.iter().any(|&byte| finder.take(byte)) {
                    return true;
                }
            }
        }
    }

    /// Looks for the file at an address in the text of `/proc/self/maps`, byte by byte.
    struct Finder {
        address: usize,
        /// Fields of the line that have ended: the range, rights, offset, device, inode, path.
        field: usize,
        /// The last byte was a space.
        space: bool,
        number: usize,
        start: usize,
        inside: bool,
        path: [u8; SHOWN],
        length: usize,
    }

    impl Finder {
        fn new(address: usize) -> Self {
            let path = [0; SHOWN];
            Self { address, field: 0, space: false, number: 0, start: 0, inside: false, path, length: 0 }
        }

        fn path(&self) -> &[u8] {
            self.path.get(..self.length).unwrap_or_default()
        }

        /// The next byte; whether it ended the line of a file at the address.
        fn take(&mut self, byte: u8) -> bool {
            if byte == b'\n' {
                let found = self.inside && self.path().first() == Some(&b'/');
                if !found {
                    *self = Self::new(self.address);
                }
                return found;
            }
            match (self.field, byte) {
                (0, b'-') => self.start = std::mem::take(&mut self.number),
                (0, b' ') => self.inside = (self.start..self.number).contains(&self.address),
                (0, digit) => {
                    let value = char::from(digit).to_digit(16).unwrap_or(0) as usize;
                    self.number = self.number.wrapping_mul(16).wrapping_add(value);
                }
                // Several spaces stand before the path, and some may stand in it.
                (5, b' ') if self.length == 0 => {}
                (5, byte) => {
                    // Control bytes of a name do not reach the terminal.
                    let shown = if byte.is_ascii_control() { b'?' } else { byte };
                    if let Some(place) = self.path.get_mut(self.length) {
                        *place = shown;
                        self.length += 1;
                    }
                }
                _ => {}
            }
            if byte == b' ' && !self.space && self.field < 5 {
                self.field += 1;
            }
            self.space = byte == b' ';
            false
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn the_file_at_an_address_is_found() {
            let maps = "5581c000-5581d000 r--p 00000000 fe:00 123    /usr/bin/cat\n\
                        7f0000000000-7f0000002000 r--p 00000000 fe:00 77                         /a folder/m\x1b.gguf\n\
                        7f0000002000-7f0000003000 rw-p 00000000 00:00 0 \n\
                        7ffd00000000-7ffd00001000 rw-p 00000000 00:00 0                          [stack]\n";
            let at = |address: usize| {
                let mut finder = Finder::new(address);
                let found = maps.bytes().any(|byte| finder.take(byte));
                found.then(|| String::from_utf8_lossy(finder.path()).into_owned())
            };
            assert_eq!(at(0x5581_c000).as_deref(), Some("/usr/bin/cat"));
            assert_eq!(at(0x7f00_0000_1fff).as_deref(), Some("/a folder/m?.gguf"));
            assert_eq!(at(0x7f00_0000_2000), None, "no file");
            assert_eq!(at(0x7ffd_0000_0000), None, "a stack is no file");
            assert_eq!(at(0x1000), None);
        }
    }
}
