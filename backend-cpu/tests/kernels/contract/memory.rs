//! Memory that no one has touched yet, and memory that is free.

use engraft_core::backend::Backend;
use engraft_core::mem::{
    AT_ONCE, DeviceMem, Float, HostWeight, Release, WeightFormat, WeightInfo, WeightUse,
};
use engraft_cpu::CpuMem;
use std::cell::RefCell;

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn memory_is_taken_when_it_is_touched() {
    let (before, bytes) = (resident(), 1 << 30);
    let mem = CpuMem::new(bytes).unwrap();
    assert!(resident() < before + (512 << 20), "an allocation of 1 GiB is in memory at once");
    // SAFETY: inside the allocation, which nothing else uses.
    unsafe {
        assert_eq!(*mem.start().add(bytes - 1), 0);
        mem.start().add(bytes - 1).write(7);
    }
}

#[test]
fn memory_begins_at_a_cache_line_and_ends_where_it_should() {
    for bytes in [0, 1, 63, 64, 4097, 1 << 20] {
        let mem = CpuMem::new(bytes).unwrap();
        assert_eq!((mem.start().addr() % 64, mem.bytes()), (0, bytes));
    }
    assert!(CpuMem::new(usize::MAX).is_err() && CpuMem::new(usize::MAX / 2).is_err());
}

#[cfg(target_os = "linux")]
#[test]
fn this_system_says_what_is_free() {
    let cpu = engraft_cpu::Cpu::new(engraft_cpu::CpuConfig::default()).unwrap();
    let free = engraft_core::backend::Backend::free_bytes(cpu.as_ref()).unwrap();
    let text = std::fs::read_to_string("/proc/meminfo").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
    let total = line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024;
    assert!(free > 0 && free <= total, "{free} of {total}");
}

/// All of a weight is released in order, some at a time, whatever it is packed for.
#[test]
fn bytes_that_are_packed_are_released() {
    let cpu = engraft_cpu::Cpu::new(engraft_cpu::CpuConfig::default()).unwrap();
    let (rows, cols) = (2046, 1100);
    let bytes = vec![0u8; 4 * rows * cols];
    let (first, second) = bytes.split_at(4 * cols * 1500);
    for used_for in [
        WeightUse::MATMUL,
        WeightUse::Embedding,
        WeightUse::EmbeddingAndLinear,
        WeightUse::GatedLinear { grain: 1 },
        WeightUse::Experts { count: 3, grain: 1 },
    ] {
        let info =
            WeightInfo { name: "w".into(), rows, cols, format: WeightFormat::Plain(Float::F32), used_for };
        let released = RefCell::new(Vec::new());
        let release = |some: &[u8]| {
            let start = some.as_ptr().addr() - bytes.as_ptr().addr();
            released.borrow_mut().push(start..start + some.len());
        };
        let weight = HostWeight::new(info, vec![first.into(), second.into()]).unwrap();
        cpu.prepare_weight(weight.releasing(Release::by(&release)), &[]).unwrap();
        let mut end = 0;
        for some in released.into_inner() {
            assert!(some.start == end && some.len() <= AT_ONCE + 64 * 4 * cols, "{used_for:?}: {some:?}");
            end = some.end;
        }
        assert_eq!(end, bytes.len(), "{used_for:?}");
    }
}
