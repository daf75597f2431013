//! Virtual devices: their properties and their primary contexts.
//!
//! The numbers are those of an H200 (compute capability 9.0), from NVIDIA's public tables for Hopper, or of
//! an A100 (8.0) where the settings ask for one; memory is what the settings say, since a laptop has not
//! 141 GB. What this driver cannot do (textures, interprocess handles) has 0 as its attribute.

use crate::code::{Code, Result};
use crate::state::{Driver, Id};
use std::sync::atomic::{AtomicU32, Ordering};

/// What every device calls itself.
pub const NAME: &str = "Engraft software CUDA";
/// Streaming multiprocessors.
pub const SMS: u32 = 132;
/// Shared memory per block without it, in bytes.
pub const SHARED_DEFAULT: u32 = 48 << 10;
/// Shared memory that the system takes per block, in bytes.
pub const SHARED_RESERVED: u32 = 1 << 10;
/// Threads per multiprocessor.
pub const THREADS_PER_SM: u32 = 2048;
/// Blocks per multiprocessor.
pub const BLOCKS_PER_SM: u32 = 32;
/// 32-bit registers per multiprocessor and per block.
pub const REGISTERS: u32 = 65536;
/// Threads per block.
pub const THREADS_PER_BLOCK: u32 = 1024;
/// The largest block, `[x, y, z]`.
pub const BLOCK: [u32; 3] = [1024, 1024, 64];
/// The largest grid, `[x, y, z]`.
pub const GRID: [u32; 3] = [0x7FFF_FFFF, 65535, 65535];
/// The version this driver reports: 12.8 is what the interface is written against, 13.0 is what an H200
/// machine has today.
pub const VERSION: i32 = 13000;
/// The newest PTX it takes, `[major, minor]`.
pub const PTX: [u32; 2] = [9, 0];
/// Compute capabilities that a device can have, times ten.
pub const CAPABILITIES: [u32; 2] = [80, 90];

/// What the devices of this process are: a driver has one sort for all of its life.
static CAPABILITY: AtomicU32 = AtomicU32::new(90);

/// Compute capability times ten.
pub fn capability() -> u32 {
    CAPABILITY.load(Ordering::Relaxed)
}

/// What devices are from now on, before the first is looked at.
pub fn set_capability(capability: u32) {
    CAPABILITY.store(capability, Ordering::Relaxed);
}

/// Shared memory per multiprocessor in bytes.
pub fn shared_per_sm() -> u32 {
    if capability() >= 90 { 228 << 10 } else { 164 << 10 }
}

/// Shared memory per block with the opt-in, in bytes.
pub fn shared_opt_in() -> u32 {
    shared_per_sm() - SHARED_RESERVED
}

/// A virtual device.
#[derive(Debug)]
pub struct Device {
    /// The primary context while it is active.
    pub primary: Option<Id>,
    /// How often it is retained.
    pub retained: u32,
    /// Flags for it.
    pub flags: u32,
    /// The pool that `cuDeviceGetDefaultMemPool` names.
    pub default_pool: Id,
    /// The pool that `cuMemAllocAsync` takes from.
    pub pool: Id,
}

impl Device {
    /// A device without contexts.
    pub fn new(pool: Id) -> Self {
        Device { primary: None, retained: 0, flags: 0, default_pool: pool, pool }
    }
}

impl Driver {
    /// The ordinal, checked.
    pub fn device(&self, ordinal: i32) -> Result<u32> {
        let ordinal = u32::try_from(ordinal).map_err(|_| Code::INVALID_DEVICE)?;
        if (ordinal as usize) < self.devices.len() { Ok(ordinal) } else { Err(Code::INVALID_DEVICE) }
    }
}

/// A device attribute by its `CUdevice_attribute` number.
pub fn attribute(number: u32, ordinal: u32) -> Result<i32> {
    Ok(match number {
        1 => THREADS_PER_BLOCK as i32,
        2..=4 => BLOCK[number as usize - 2] as i32,
        5..=7 => GRID[number as usize - 5] as i32,
        8 => SHARED_DEFAULT as i32,
        9 => 64 << 10,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => REGISTERS as i32,
        13 => 1_980_000,
        14 | 30 => 512,
        15 => 1,
        16 => SMS as i32,
        // Mapped host memory, concurrent kernels, ECC.
        19 | 31 | 32 => 1,
        33 => 0xE0 + ordinal as i32,
        36 => 3_201_000,
        37 => 6144,
        38 => 50 << 20,
        39 => THREADS_PER_SM as i32,
        40 => 3,
        // Unified addressing.
        41 => 1,
        51 => 32,
        75 => (capability() / 10) as i32,
        76 => (capability() % 10) as i32,
        // Stream priorities, global and local L1.
        78..=80 => 1,
        81 => shared_per_sm() as i32,
        87 => 2,
        // Managed memory, which the program may use while kernels run.
        83 | 89 => 1,
        // Preemption, registered host memory at its own address.
        90 | 91 => 1,
        // Cooperative launch.
        95 => 1,
        97 => shared_opt_in() as i32,
        99 => 1,
        106 => BLOCKS_PER_SM as i32,
        111 => SHARED_RESERVED as i32,
        // Memory pools.
        115 => 1,
        // Clusters.
        120 => i32::from(capability() >= 90),
        126 => 4,
        // Tensor maps, unified function pointers stay off.
        127 => i32::from(capability() >= 90),
        134 => -1,
        n if (1..=162).contains(&n) => 0,
        _ => return Err(Code::INVALID_VALUE),
    })
}

/// The 16 bytes that name a device: fixed, so that logs compare.
pub fn uuid(ordinal: u32) -> [u8; 16] {
    let mut bytes = *b"engraft-softcuda";
    bytes[15] = ordinal as u8;
    bytes
}

/// The PCI address that a device claims.
pub fn pci_bus_id(ordinal: u32) -> String {
    format!("0000:{:02X}:00.0", 0xE0 + ordinal)
}

/// The ordinal of a PCI address in any of the usual spellings.
pub fn from_pci_bus_id(text: &str, devices: usize) -> Result<u32> {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    let (Some(bus), Some(0)) = (
        parts.len().checked_sub(3).and_then(|at| u32::from_str_radix(parts[at], 16).ok()),
        parts.last().and_then(|p| u32::from_str_radix(p, 16).ok()),
    ) else {
        return Err(Code::INVALID_VALUE);
    };
    let ordinal = bus.checked_sub(0xE0).ok_or(Code::INVALID_DEVICE)?;
    if (ordinal as usize) < devices { Ok(ordinal) } else { Err(Code::INVALID_DEVICE) }
}

/// `cuDeviceGetP2PAttribute`: rank 0, access between different devices, native atomics (VM atomics are
/// sequential).
pub fn peer_attribute(number: u32, from: u32, to: u32) -> Result<i32> {
    if from == to {
        return Err(Code::INVALID_DEVICE);
    }
    match number {
        1 | 4 => Ok(0),
        2 | 3 => Ok(1),
        _ => Err(Code::INVALID_VALUE),
    }
}
