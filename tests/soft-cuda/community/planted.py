"""What the programs with planted bugs share: the list of their bugs, and runs under many schedules."""

import re
from ctypes import c_uint64

import device_memory as cuda


def list_bugs(path, bugs):
    """A line for each bug: its name, what is reported, the lines of the source that a comment marks, words."""
    source = open(path).read().splitlines()
    for name, (_, kind, words) in bugs.items():
        marked = [str(at + 1) for at, line in enumerate(source) if re.search(rf"(?:#|//) bug: .*\b{name}\b", line)]
        assert marked, f"no line is marked for {name}"
        print(name, kind, "|".join(marked), words, sep="\t")


def under_schedules(count, programs):
    """Runs each program under orders of warps and blocks inside kernels, and of operations."""
    for seed in range(count):
        cuda.synchronize()
        cuda.call("engraftSoftCudaSetSchedule", 2, c_uint64(seed))
        cuda.call("engraftSoftCudaSetOrder", 3, c_uint64(seed))
        for run in programs.values():
            run()
    cuda.synchronize()
