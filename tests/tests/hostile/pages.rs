//! Memory between pages that nothing may touch.

use std::ptr::NonNull;

/// What the slack between an allocation and the nearer page boundary holds.
const CANARY: u8 = 0xA5;

/// So many bytes, with a page before and one behind that fault at the first touch. The bytes begin behind the
/// first, or end at the second (to a multiple of 4 bytes, which views rely on).
pub struct Pages {
    map: NonNull<u8>,
    mapped: usize,
    page: usize,
    start: usize,
    bytes: usize,
}

// SAFETY: plain bytes; who may touch them is the affair of whoever holds the memory made of them.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps zeroed bytes.
    ///
    /// # Errors
    /// What the system says.
    pub fn new(bytes: usize, at_end: bool) -> std::io::Result<Self> {
        // SAFETY: asks for a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
        let inner = bytes.div_ceil(page).max(1) * page;
        let mapped = inner + 2 * page;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a mapping of its own, at a place that the system chooses.
        let map = unsafe { libc::mmap(std::ptr::null_mut(), mapped, libc::PROT_NONE, flags, -1, 0) };
        let Some(map) = NonNull::new(map.cast::<u8>()).filter(|_| map != libc::MAP_FAILED) else {
            return Err(std::io::Error::last_os_error());
        };
        let start = page + if at_end { (inner - bytes) / 4 * 4 } else { 0 };
        let pages = Self { map, mapped, page, start, bytes };
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: whole pages inside the mapping.
        if unsafe { libc::mprotect(map.as_ptr().add(page).cast(), inner, protection) } != 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the pages between the guards, which nothing else knows yet.
        unsafe {
            let all = std::slice::from_raw_parts_mut(map.as_ptr().add(page), inner);
            all.fill(CANARY);
            all[start - page..][..bytes].fill(0);
        }
        Ok(pages)
    }

    /// First byte.
    pub fn start(&self) -> NonNull<u8> {
        // SAFETY: inside the mapping.
        unsafe { self.map.add(self.start) }
    }

    /// Everything between the guards, slack included, and the address of its first byte.
    ///
    /// # Safety
    /// Nothing writes it meanwhile.
    pub unsafe fn image(&self) -> (usize, Vec<u8>) {
        // SAFETY: inside the mapping, readable; the caller rules out writers.
        let all = unsafe {
            let first = self.map.as_ptr().add(self.page);
            std::slice::from_raw_parts(first, self.mapped - 2 * self.page)
        };
        (self.map.as_ptr() as usize + self.page, all.to_vec())
    }

    /// Bytes between the guards that may be used.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, unmapped once.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.mapped) };
    }
}
