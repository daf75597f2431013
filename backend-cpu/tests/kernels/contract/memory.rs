//! Memory that no one has touched yet, and memory that is free.

use engraft_core::mem::DeviceMem;
use engraft_cpu::CpuMem;

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
