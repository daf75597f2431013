"""A dozen Triton kernels against numpy, and bugs planted in them: run under `soft-cuda run`.

`triton_kernels.py right N` runs the correct ones under N schedules, and those that are expected to fail once.
`triton_kernels.py list` names the bugs with what must be reported of each, and `triton_kernels.py BUG` runs one of
them. What is run and how it ends is held against `triton_expected.txt`: a kernel or a bug that is in one of the two
alone is a failure, and so is one that is expected to fail and does not.
"""

import os
import re
import sys
from ctypes import c_int32, c_uint64

import numpy as np
import triton
import triton.language as tl

import device_memory as cuda
import planted
from device_memory import Buffer

dice = np.random.default_rng(7)


def real(*shape, dtype=np.float32):
    return dice.standard_normal(shape).astype(dtype)


def close(got, want, tolerance=1e-4):
    error = np.abs(np.asarray(got, np.float64) - want).max()
    assert error <= tolerance * max(1.0, np.abs(want).max()), error


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n)
    b = tl.load(y + at, mask=at < n)  # bug: unwritten, use_after_free
    tl.store(out + at, a + b, mask=at < n)  # bug: streams, copies


@triton.jit
def add_unmasked(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at) + tl.load(y + at))  # bug: bounds


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(v - tl.max(v, 0))  # bug: barrier, divergent_barrier
    tl.store(out + row * columns + at, e / tl.sum(e, 0), mask=at < columns)


@triton.jit
def layer_norm(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < columns
    v = tl.load(x + row * columns + at, mask=mask, other=0.0)
    mean = tl.sum(v, 0) / columns
    d = tl.where(mask, v - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(d * d, 0) / columns + eps)
    w, b = tl.load(weight + at, mask=mask), tl.load(bias + at, mask=mask)
    tl.store(out + row * columns + at, d * scale * w + b, mask=mask)


@triton.jit
def matmul(a, b, c, m, n, k, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j = tl.program_id(0) * M + tl.arange(0, M), tl.program_id(1) * N + tl.arange(0, N)
    q = tl.arange(0, K)
    acc = tl.zeros((M, N), tl.float32)
    for start in range(0, k, K):
        left = tl.load(a + i[:, None] * k + (start + q)[None, :], mask=(i[:, None] < m) & ((start + q)[None, :] < k), other=0.0)
        right = tl.load(b + (start + q)[:, None] * n + j[None, :], mask=((start + q)[:, None] < k) & (j[None, :] < n), other=0.0)
        acc = tl.dot(left, right, acc)
    tl.store(c + i[:, None] * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))


@triton.jit
def attention(q, k, v, out, length, scale, L: tl.constexpr, D: tl.constexpr, B: tl.constexpr):
    rows, d = tl.program_id(0) * B + tl.arange(0, B), tl.arange(0, D)
    query = tl.load(q + rows[:, None] * D + d[None, :])
    best = tl.full((B,), -float("inf"), tl.float32)
    total = tl.zeros((B,), tl.float32)
    acc = tl.zeros((B, D), tl.float32)
    for start in range(0, L, B):
        cols = start + tl.arange(0, B)
        key = tl.load(k + cols[:, None] * D + d[None, :])
        s = tl.dot(query, tl.trans(key)) * scale
        s = tl.where(rows[:, None] >= cols[None, :], s, -float("inf"))
        new = tl.maximum(best, tl.max(s, 1))
        p = tl.exp(s - new[:, None])
        old = tl.exp(best - new)
        total = total * old + tl.sum(p, 1)
        value = tl.load(v + cols[:, None] * D + d[None, :])
        acc = tl.dot(p.to(value.dtype), value, acc * old[:, None])
        best = new
    tl.store(out + rows[:, None] * D + d[None, :], acc / total[:, None])


@triton.jit
def cumulative(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    tl.store(out + at, tl.cumsum(tl.load(x + at), 0))


@triton.jit
def histogram(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out + tl.load(x + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(out, tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0))


@triton.jit
def total_without_atomics(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    part = tl.sum(tl.load(x + at, mask=at < n, other=0.0), 0)
    tl.store(out, tl.load(out) + part)  # bug: race


@triton.jit
def transpose(x, out, m, n, B: tl.constexpr):
    i, j = tl.program_id(0) * B + tl.arange(0, B), tl.program_id(1) * B + tl.arange(0, B)
    tile = tl.load(x + i[:, None] * n + j[None, :])
    tl.store(out + j[:, None] * m + i[None, :], tl.trans(tile))


@triton.jit
def gather(table, index, out, D: tl.constexpr):
    row, d = tl.program_id(0), tl.arange(0, D)
    tl.store(out + row * D + d, tl.load(table + tl.load(index + row) * D + d))


@triton.jit
def argmax(x, out, columns, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    v = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf"))
    tl.store(out + row, tl.argmax(v, 0))


@triton.jit
def sorted_rows(x, out, N: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, N)
    tl.store(out + row * N + at, tl.sort(tl.load(x + row * N + at), 0))


@triton.jit
def dropout(x, out, n, seed, p, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    keep = tl.rand(seed, at) > p
    v = tl.load(x + at, mask=at < n)
    tl.store(out + at, tl.where(keep, v / (1 - p), 0.0), mask=at < n)


@triton.jit
def descriptor(x, out, m, n, M: tl.constexpr, N: tl.constexpr):
    tile = tl.make_tensor_descriptor(x, shape=[m, n], strides=[n, 1], block_shape=[M, N]).load([0, 0])
    tl.store(out + tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :], tile)


def right_add():
    x, y = real(1000), real(1000)
    out = Buffer(bytes=4000)
    add[(4,)](Buffer(x), Buffer(y), out, 1000, BLOCK=256)
    close(out.get((1000,)), x + y)


def right_softmax():
    x = real(8, 200)
    out = Buffer(bytes=x.nbytes)
    softmax[(8,)](Buffer(x), out, 200, BLOCK=256)
    e = np.exp(x - x.max(1, keepdims=True))
    close(out.get(x.shape), e / e.sum(1, keepdims=True))


def right_layer_norm():
    x, w, s = real(8, 200), real(200), real(200)
    out = Buffer(bytes=x.nbytes)
    layer_norm[(8,)](Buffer(x), Buffer(w), Buffer(s), out, 200, 1e-5, BLOCK=256)
    close(out.get(x.shape), (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + s)


def right_argmax():
    x = real(8, 200)
    argmax[(8,)](Buffer(x), out := Buffer(bytes=32, dtype=np.int32), 200, BLOCK=256)
    assert (out.get((8,)) == x.argmax(1)).all()


def right_matmul():
    p, q = real(70, 96, dtype=np.float16), real(96, 50, dtype=np.float16)
    c = Buffer(bytes=4 * 70 * 50)
    matmul[(3, 2)](Buffer(p), Buffer(q), c, 70, 50, 96, M=32, N=32, K=32, num_warps=4)
    close(c.get((70, 50)), p.astype(np.float64) @ q.astype(np.float64), 1e-3)


def right_attention():
    length, d = 64, 32
    q, k, v = (real(length, d, dtype=np.float16) for _ in range(3))
    out = Buffer(bytes=4 * length * d)
    attention[(4,)](Buffer(q), Buffer(k), Buffer(v), out, length, d**-0.5, L=length, D=d, B=16)
    s = q.astype(np.float64) @ k.astype(np.float64).T * d**-0.5
    s = np.where(np.tril(np.ones_like(s)) > 0, s, -np.inf)
    e = np.exp(s - s.max(1, keepdims=True))
    close(out.get((length, d)), e / e.sum(1, keepdims=True) @ v.astype(np.float64), 1e-2)


def right_cumulative():
    x = real(1024)
    out = Buffer(bytes=x.nbytes)
    cumulative[(1,)](Buffer(x), out, N=1024)
    close(out.get(x.shape), np.cumsum(x.astype(np.float64)), 1e-3)


def right_histogram():
    index = dice.integers(0, 16, 500).astype(np.int32)
    out = Buffer(np.zeros(16, np.int32))
    histogram[(4,)](Buffer(index), out, 500, BLOCK=128)
    assert (out.get() == np.bincount(index, minlength=16)).all()


def right_total():
    x = real(1024)
    out = Buffer(np.zeros(1, np.float32))
    total[(8,)](Buffer(x), out, 1024, BLOCK=128)
    close(out.get(), x.sum(dtype=np.float64), 1e-3)


def right_transpose():
    x = real(64, 32)
    out = Buffer(bytes=x.nbytes)
    transpose[(4, 2)](Buffer(x), out, 64, 32, B=16)
    assert (out.get((32, 64)) == x.T).all()


def right_gather():
    table, index = real(16, 64), dice.integers(0, 16, 500).astype(np.int32)
    gather[(500,)](Buffer(table), Buffer(index), out := Buffer(bytes=500 * 256), D=64)
    assert (out.get((500, 64)) == table[index]).all()


def right_sorted_rows():
    x = real(4, 64)
    out = Buffer(bytes=x.nbytes)
    sorted_rows[(4,)](Buffer(x), out, N=64)
    assert (out.get(x.shape) == np.sort(x, 1)).all()


def philox(seed, n):
    """The first of the four words that Philox 4x32-10 gives for each of the counters below n."""
    c, k = [np.arange(n, dtype=np.uint64)] + [np.zeros(n, np.uint64)] * 3, [seed & 0xFFFFFFFF, seed >> 32]
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [b >> np.uint64(32) ^ c[1] ^ np.uint64(k[0]), b & low, a >> np.uint64(32) ^ c[3] ^ np.uint64(k[1]), a & low]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c[0].astype(np.uint32)


def right_dropout():
    x = real(1000)
    out = Buffer(bytes=x.nbytes)
    dropout[(4,)](Buffer(x), out, 1000, 3, 0.5, BLOCK=256)
    words = philox(3, 1000).view(np.int32)
    keep = np.where(words < 0, -words - 1, words) * np.float32(4.6566127342e-10) > 0.5
    assert 400 < keep.sum() < 600
    close(out.get(x.shape), np.where(keep, 2 * x, 0))


def fails_descriptor():
    triton.set_allocator(lambda size, alignment, stream: Buffer(bytes=size, dtype=np.uint8))
    out = Buffer(bytes=8192, dtype=np.float16)
    descriptor[(1,)](Buffer(real(64, 64, dtype=np.float16)), out, 64, 64, M=64, N=64)


# The correct kernels, each of which answers for its numbers, and those that cannot run here.
RIGHT = {name[6:]: run for name, run in list(globals().items()) if name.startswith("right_")}
FAILING = {name[6:]: run for name, run in list(globals().items()) if name.startswith("fails_")}


def bounds():
    a, b = Buffer(real(1000)), Buffer(real(1000))
    add_unmasked[(4,)](a, b, Buffer(bytes=4000), 1000, BLOCK=256)


def use_after_free():
    a, b, out = Buffer(real(256)), Buffer(real(256)), Buffer(bytes=1024)
    # Triton's launcher asks the driver what a pointer is; a kernel that is queued when the memory goes does not.
    ptx, metadata = ptx_of(add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"}, {"BLOCK": 256}, 4)
    b.free()
    launch_ptx(ptx, metadata, (1, 1, 1), 128, [a.address, b.address, out.address, c_int32(256)])


def unwritten():
    add[(1,)](Buffer(real(256)), Buffer(bytes=1024), Buffer(bytes=1024), 256, BLOCK=256)


def race():
    total_without_atomics[(8,)](Buffer(real(1024)), Buffer(np.zeros(1, np.float32)), 1024, BLOCK=128)


def streams():
    a, b, out = Buffer(real(256)), Buffer(real(256)), Buffer(bytes=1024)
    cuda.synchronize()
    for stream in (cuda.stream(), cuda.stream()):
        # Triton launches in the stream that its driver names.
        triton.runtime.driver.active.get_current_stream = lambda device, stream=stream: stream
        add[(1,)](a, b, out, 256, BLOCK=256)


def copies():
    a, b, out, copy = (Buffer(real(256)) for _ in range(4))
    cuda.synchronize()
    first, second = cuda.stream(), cuda.stream()
    triton.runtime.driver.active.get_current_stream = lambda device: first
    add[(1,)](a, b, out, 256, BLOCK=256)
    cuda.call("cuMemcpyDtoDAsync_v2", c_uint64(copy.address), c_uint64(out.address), 1024, c_uint64(second))


def ptx_of(kernel, signature, constants, warps):
    """The PTX of a kernel, compiled ahead of time."""
    source = triton.compiler.ASTSource(fn=kernel, signature=signature, constexprs=constants)
    made = triton.compile(source, target=triton.backends.compiler.GPUTarget("cuda", 80, 32), options={"num_warps": warps})
    return made.asm["ptx"], made.metadata


def launch_ptx(ptx, metadata, grid, threads, arguments):
    """Launches what was compiled; behind the arguments come the pointers of scratch memory, which is not used."""
    parameters = len(re.findall(r"\.param ", ptx.split("{", 1)[0]))
    extra = [0] * (parameters - len(arguments))
    cuda.launch(ptx, metadata.name, grid, threads, metadata.shared, arguments + extra)


def softmax_with(change):
    """The softmax with its PTX changed: bugs that Triton's own language cannot say."""
    signature = {"x": "*fp32", "out": "*fp32", "columns": "i32", "BLOCK": "constexpr"}
    ptx, metadata = ptx_of(softmax, signature, {"BLOCK": 1024}, 4)
    changed = change(ptx)
    assert changed != ptx
    x = real(2, 1024)
    arguments = [Buffer(x).address, Buffer(bytes=x.nbytes).address, c_int32(1024)]
    launch_ptx(changed, metadata, (2, 1, 1), 128, arguments)


def barrier():
    softmax_with(lambda ptx: re.sub(r"bar\.sync\s+0;", "", ptx, count=1))


def divergent_barrier():
    some = "{ .reg .pred %q; .reg .b32 %u; mov.u32 %u, %tid.x; setp.ge.u32 %q, %u, 20; @%q bra SKIP; bar.sync 0; SKIP: }"
    softmax_with(lambda ptx: re.sub(r"bar\.sync\s+0;", some, ptx, count=1))


# What must be reported of each: the kind, and words of it. The line is one that a comment of this file marks.
BUGS = {
    "bounds": (bounds, "OutOfBounds", "the nearest allocation below has 4000 bytes"),
    "use_after_free": (use_after_free, "UseAfterFree", "an allocation that has been freed"),
    "unwritten": (unwritten, "Uninitialised", "was never written"),
    "race": (race, "GlobalRace", "the other access is line"),
    "streams": (streams, "StreamRace", "no event, stream or wait of the host orders the two"),
    "copies": (copies, "StreamRace", "a copy in stream"),
    "barrier": (barrier, "SharedRace", "a barrier between the write and this read is missing"),
    "divergent_barrier": (divergent_barrier, "Divergence", "lanes of the warp"),
}


def expected():
    """The list of expectations, and that it names what is here."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "triton_expected.txt")
    lines = [line.rstrip("\n").split(" ", 2) for line in open(path) if line.strip() and not line.startswith("#")]
    listed = {how: {name: rest for h, name, *rest in lines if h == how} for how in ("right", "fails", "bug")}
    here = {"right": set(RIGHT), "fails": set(FAILING), "bug": set(BUGS)}
    for how, names in here.items():
        assert set(listed[how]) == names, f"{how}: {sorted(set(listed[how]) ^ names)} in the list or in the program alone"
    assert {name: rest[0] for name, rest in listed["bug"].items()} == {name: bug[1] for name, bug in BUGS.items()}
    return listed


def run_right(schedules):
    listed = expected()
    planted.under_schedules(schedules, RIGHT)
    print(f"{len(RIGHT)} kernels right under {schedules} schedules")
    for name, run in FAILING.items():
        words = listed["fails"][name][0]
        try:
            with open(os.devnull, "w") as null:
                # Triton prints the whole text that an assembler has refused.
                sys.stdout, out = null, sys.stdout
                run()
                cuda.synchronize()
        except Exception as error:
            sys.stdout = out
            assert words in str(error), f"{name} fails otherwise: {error}"
            print(f"{name} is expected to fail: {words}")
        else:
            sys.stdout = out
            sys.exit(f"{name} runs and is expected to fail: take it off the list")


if __name__ == "__main__":
    part = sys.argv[1]
    if part == "list":
        expected()
        planted.list_bugs(__file__, BUGS)
    elif part == "right":
        run_right(int(sys.argv[2]))
    else:
        BUGS[part][0]()
        cuda.synchronize()
