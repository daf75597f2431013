"""Kernels by numba-cuda against numpy, and bugs planted in them: run under `soft-cuda run`.

`numba_kernels.py right N` runs the correct ones under N schedules and orders; `numba_kernels.py list` names the bugs
with the lines that comments of this file mark and what must be reported of each; `numba_kernels.py BUG` runs one.
"""

import sys
from ctypes import c_uint64

import numpy as np
from numba import cuda, float32

import device_memory
import planted

dice = np.random.default_rng(7)
THREADS = 64


@cuda.jit(lineinfo=True)
def scale(x, a):
    i = cuda.grid(1)
    if i < x.size:
        x[i] = x[i] * a  # bug: use_after_free, unwritten, streams, copies


@cuda.jit(lineinfo=True)
def scale_unguarded(x, a):
    i = cuda.grid(1)
    x[i] = x[i] * a  # bug: bounds


@cuda.jit(lineinfo=True)
def turned(x, out):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    cuda.syncthreads()
    out[i] = tile[THREADS - 1 - t]


@cuda.jit(lineinfo=True)
def turned_too_early(x, out):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    out[i] = tile[THREADS - 1 - t]  # bug: barrier


@cuda.jit(lineinfo=True)
def turned_by_some(x, out):
    tile = cuda.shared.array(THREADS, float32)
    t = cuda.threadIdx.x
    i = cuda.grid(1)
    tile[t] = x[i]
    if t < 20:
        cuda.syncthreads()  # bug: divergent_barrier
    out[i] = tile[t]


@cuda.jit(lineinfo=True)
def total(x, out):
    i = cuda.grid(1)
    if i < x.size:
        cuda.atomic.add(out, 0, x[i])


@cuda.jit(lineinfo=True)
def total_without_atomics(x, out):
    i = cuda.grid(1)
    if i < x.size:
        out[0] += x[i]  # bug: race


def blocks(n):
    return (n + THREADS - 1) // THREADS


def real(n):
    return dice.standard_normal(n).astype(np.float32)


def right_scale():
    x = real(1000)
    there = cuda.to_device(x)
    scale[blocks(1000), THREADS](there, 2)
    assert (there.copy_to_host() == 2 * x).all()


def right_turned():
    x = real(256)
    out = cuda.device_array_like(x)
    turned[4, THREADS](cuda.to_device(x), out)
    assert (out.copy_to_host() == x.reshape(4, THREADS)[:, ::-1].ravel()).all()


def right_total():
    x = real(1000)
    out = cuda.to_device(np.zeros(1, np.float32))
    total[blocks(1000), THREADS](cuda.to_device(x), out)
    assert abs(out.copy_to_host()[0] - x.sum(dtype=np.float64)) < 1e-2


def right_streams():
    x = real(1000)
    first, second, done = cuda.stream(), cuda.stream(), cuda.event()
    there = cuda.to_device(x)
    cuda.synchronize()
    scale[blocks(1000), THREADS, first](there, 2)
    done.record(first)
    done.wait(second)
    scale[blocks(1000), THREADS, second](there, 2)
    second.synchronize()
    assert (there.copy_to_host() == 4 * x).all()


RIGHT = {name[6:]: run for name, run in list(globals().items()) if name.startswith("right_")}


def bounds():
    scale_unguarded[blocks(1000), THREADS](cuda.to_device(real(1000)), 2)


def use_after_free():
    there = cuda.to_device(real(64))
    scale[1, THREADS](there, 2)
    cuda.synchronize()
    device_memory.call("cuMemFree_v2", c_uint64(there.device_ctypes_pointer.value))
    scale[1, THREADS](there, 2)


def unwritten():
    scale[1, THREADS](cuda.device_array(64, np.float32), 2)


def race():
    total_without_atomics[4, THREADS](cuda.to_device(real(256)), cuda.to_device(np.zeros(1, np.float32)))


def free_stream():
    """A stream that does not wait for the default one."""
    return cuda.external_stream(device_memory.stream())


def streams():
    there = cuda.to_device(real(256))
    cuda.synchronize()
    for stream in (free_stream(), free_stream()):
        scale[4, THREADS, stream](there, 2)


def copies():
    there = cuda.to_device(real(256))
    host = cuda.pinned_array(256, np.float32)
    cuda.synchronize()
    scale[4, THREADS, free_stream()](there, 2)
    there.copy_to_host(host, stream=free_stream())
    cuda.synchronize()


def barrier():
    turned_too_early[4, THREADS](cuda.to_device(real(256)), cuda.device_array(256, np.float32))


def divergent_barrier():
    turned_by_some[4, THREADS](cuda.to_device(real(256)), cuda.device_array(256, np.float32))


# What must be reported of each: the kind, and words of it.
BUGS = {
    "bounds": (bounds, "OutOfBounds", "the nearest allocation below has 4000 bytes"),
    "use_after_free": (use_after_free, "UseAfterFree", "an allocation that has been freed"),
    "unwritten": (unwritten, "Uninitialised", "was never written"),
    "race": (race, "GlobalRace", "the other access is line"),
    "streams": (streams, "StreamRace", "no event, stream or wait of the host orders the two"),
    "copies": (copies, "StreamRace", "a copy in stream"),
    "barrier": (barrier, "SharedRace", "a barrier between the write and this read is missing"),
    "divergent_barrier": (divergent_barrier, "Divergence", "of the warp have ended or went around this barrier"),
}

if __name__ == "__main__":
    part = sys.argv[1]
    if part == "list":
        planted.list_bugs(__file__, BUGS)
    elif part == "right":
        planted.under_schedules(int(sys.argv[2]), RIGHT)
        print(f"{len(RIGHT)} programs by numba right under {sys.argv[2]} schedules")
    else:
        BUGS[part][0]()
        cuda.synchronize()
