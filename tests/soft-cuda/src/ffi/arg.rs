//! Pointers that C handed in, as types.
//!
//! Each is a bare pointer in memory and has no constructor: it only comes into being as an argument of one of
//! the `unsafe extern "C"` functions, whose caller has promised what the interface says of that argument
//! (null, or valid for the call). That promise is what the `SAFETY` lines below rest on, and it is needed
//! nowhere else.

use std::ffi::{CStr, c_char, c_void};

use crate::code::{Code, Result};
use crate::fatbin;

/// A place for one result, possibly null.
#[repr(transparent)]
#[derive(Debug)]
pub struct Out<T>(*mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// The result is not wanted.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes a result that the caller must want.
    pub fn set(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the C function promised a place for a `T`.
        unsafe { self.0.write(value) };
        Ok(())
    }

    /// Writes a result if the caller wants it.
    pub fn set_if_wanted(self, value: T) {
        // Null is what "not wanted" looks like.
        let _ = self.set(value);
    }

    /// Writes several results into an array.
    pub fn fill(self, values: impl IntoIterator<Item = T>) {
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: the caller promised an array of the length that the entry limits `values` to.
            unsafe { self.0.add(i).write(value) };
        }
    }

    /// The address of the place.
    pub fn address(self) -> usize {
        self.0 as usize
    }

    /// Reads what is there, for arguments that are read and written.
    pub fn get(self) -> Result<T>
    where
        T: Copy,
    {
        In(self.0).get()
    }
}

/// A value or an array to read, possibly null.
#[repr(transparent)]
#[derive(Debug)]
pub struct In<T>(*const T);

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for In<T> {}

impl<T: Copy> In<T> {
    /// Nothing was given.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// The value.
    pub fn get(self) -> Result<T> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller promised a `T` there (all types used here take any bits).
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// `count` values; none of null.
    pub fn list(self, count: usize) -> Result<Vec<T>> {
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promised an array of `count`.
        Ok((0..count).map(|i| unsafe { self.0.add(i).read_unaligned() }).collect())
    }
}

/// A C string.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Text(*const c_char);

impl Text {
    /// The text.
    pub fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        // SAFETY: the caller promised a string with its NUL.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// An image of code, whose first bytes say how long it is.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct Code8(*const u8);

impl Code8 {
    /// The bytes: up to the NUL of a text, the length in the head of a container, or enough of machine code
    /// to refuse it.
    pub fn bytes(self) -> Result<Vec<u8>> {
        if self.0.is_null() {
            return Err(Code::INVALID_VALUE);
        }
        let mut bytes = Vec::new();
        loop {
            // SAFETY: the caller promised an image: everything before its end is readable, and the end is
            // found below.
            let byte = unsafe { self.0.add(bytes.len()).read() };
            bytes.push(byte);
            match crate::link::size(&bytes) {
                Some(size) => {
                    // SAFETY: a container of this driver is as long as its head says.
                    return Ok(unsafe { std::slice::from_raw_parts(self.0, size) }.to_vec());
                }
                // The sizes in the heads of containers have zeros in them.
                None if crate::link::begins(&bytes) => {}
                None if fatbin::begins(&bytes) => {
                    if let Some(size) = fatbin::size(&bytes) {
                        // SAFETY: a fat binary is as long as its head says.
                        return Ok(unsafe { std::slice::from_raw_parts(self.0, size) }.to_vec());
                    }
                }
                None if fatbin::refers(&bytes) => {
                    if let Some(address) = fatbin::referred(&bytes) {
                        return Code8(address as *const u8).fat();
                    }
                }
                None if byte == 0 || (bytes.len() == 4 && is_machine(&bytes)) => return Ok(bytes),
                None => {}
            }
        }
    }
}

impl Code8 {
    /// The fat binary that a program's structure refers to.
    fn fat(self) -> Result<Vec<u8>> {
        if self.0.is_null() {
            return Err(Code::INVALID_IMAGE);
        }
        // SAFETY: the caller promised a fat binary there, whose head has 16 bytes.
        let head = unsafe { std::slice::from_raw_parts(self.0, 16) };
        match fatbin::size(head).filter(|_| fatbin::begins(head)) {
            // SAFETY: a fat binary is as long as its head says.
            Some(size) => Ok(unsafe { std::slice::from_raw_parts(self.0, size) }.to_vec()),
            None => Err(Code::INVALID_IMAGE),
        }
    }
}

fn is_machine(bytes: &[u8]) -> bool {
    matches!(crate::module::classify(bytes), crate::module::Image::Machine)
}

/// A null place: for variants of a function that do not ask for a result.
pub fn nowhere<T>() -> Out<T> {
    Out(std::ptr::null_mut())
}

/// Nothing given: for variants of a function that lack an argument.
pub fn nothing<T>() -> In<T> {
    In(std::ptr::null())
}

/// Copies bytes that the caller promised.
pub fn bytes(pointer: *const c_void, count: usize) -> Result<Vec<u8>> {
    In(pointer.cast::<u8>()).list(count)
}

/// Writes bytes into a buffer that the caller has made large enough.
pub fn fill(buffer: *mut u8, bytes: &[u8]) {
    Out(buffer).fill(bytes.iter().copied());
}

/// Writes text into a buffer of `size` bytes, truncated and terminated; the number of bytes written with the
/// NUL.
pub fn write_text(buffer: usize, size: usize, text: &str) -> usize {
    if buffer == 0 || size == 0 {
        return 0;
    }
    let count = text.len().min(size - 1);
    Out(buffer as *mut u8).fill(text.as_bytes()[..count].iter().copied().chain([0]));
    count + 1
}

/// Writes a value at an address that the caller gave as an option value.
pub fn write_at<T>(address: usize, value: T) {
    Out(address as *mut T).set_if_wanted(value);
}

/// Reads an array of pointers at an address that the caller gave.
pub fn pointers(address: *const *mut c_void, count: usize) -> Result<Vec<*mut c_void>> {
    In(address).list(count)
}

/// `count` values of an array that a structure of the caller points to.
pub fn list<T: Copy>(address: *const T, count: usize) -> Result<Vec<T>> {
    In(address).list(count)
}
