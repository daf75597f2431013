"""cuda.core on the software driver: kernels compiled to PTX by NVRTC, graphs, and a branch that nothing orders.

`cuda_core_graph.py right LINKER` replays a graph that forks and joins, one of three kernels by templates next to the same
launches without it, and one whose target is changed by an update, and links by cuda.core's linker, which has to ask
the one that is named, `driver` or `nvJitLink`. `cuda_core_graph.py list` and `cuda_core_graph.py branches` are as in
the other programs with planted bugs: two branches of a graph that write one place.
"""

import sys

import numpy as np
from cuda.bindings import driver
from cuda.core import Device, LaunchConfig, LegacyPinnedMemoryResource, Linker, Program, ProgramOptions, launch
from cuda.core.graph import GraphBuilder

import planted

SOURCE = """
extern "C" __global__ void add_one(int *x) { atomicAdd(x, 1); }
extern "C" __global__ void add_to(int *y, const int *x) {
    *y += *x;  // bug: branches
}
template <typename T> __global__ void sum(const T *a, const T *b, T *c, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] + b[i];
}
template <typename T> __global__ void product(const T *a, const T *b, T *c, size_t n) {
    for (size_t i = threadIdx.x + blockIdx.x * blockDim.x; i < n; i += gridDim.x * blockDim.x) c[i] = a[i] * b[i];
}
"""
ONE = LaunchConfig(grid=1, block=1)


class Bench:
    """A device, a stream and the kernels."""

    def __init__(self):
        self.device = Device(0)
        self.device.set_current()
        self.stream = self.device.create_stream()
        # The lines of the source are those of this file: before it as many are empty.
        before = open(__file__).read().split("SOURCE = ")[0].count("\n")
        options = ProgramOptions(std="c++17", arch="compute_90", lineinfo=True, name="cuda_core_graph.py")
        names = ("add_one", "add_to", "sum<float>", "product<float>")
        source = "\n" * before + SOURCE
        self.module = Program(source, code_type="c++", options=options).compile("ptx", name_expressions=names)
        self.kernels = {name: self.module.get_kernel(name) for name in names}
        self.buffers = []

    def memory(self, array):
        """Device memory with these numbers. A buffer that is collected is freed, whatever runs on it."""
        buffer = self.device.allocate(array.nbytes, stream=self.stream)
        self.buffers.append(buffer)
        driver.cuMemcpyHtoDAsync(int(buffer.handle), array.ctypes.data, array.nbytes, self.stream.handle)
        self.stream.sync()
        return buffer

    def numbers(self, buffer, like):
        out = np.empty_like(like)
        driver.cuMemcpyDtoH(out.ctypes.data, int(buffer.handle), out.nbytes)
        return out

    def launch(self, where, name, *arguments, config=ONE):
        launch(where, config, self.kernels[name], *arguments)

    def forked(self, places):
        """A graph that adds one to x, x to the places by two branches, and one to x."""
        x, *places = places
        builder = self.device.create_graph_builder().begin_building()
        self.launch(builder, "add_one", x)
        branches = builder.split(2)
        for branch, place in zip(branches, places):
            self.launch(branch, "add_to", place, x)
        builder = GraphBuilder.join(*branches)
        self.launch(builder, "add_one", x)
        return builder.end_building().complete()


def fork_and_join(t):
    zeros = np.zeros(3, np.int32)
    buffer = t.memory(zeros)
    at = int(buffer.handle)
    graph = t.forked([at, at + 4, at + 8])
    for _ in range(3):
        graph.launch(t.stream)
    t.stream.sync()
    # 1 and 2, then 3 and 4, then 5 and 6; the branches add 1, 3 and 5.
    assert t.numbers(buffer, zeros).tolist() == [6, 9, 9]


def with_and_without(t):
    dice = np.random.default_rng(42)
    a, b, c = (dice.random(1000, dtype=np.float32) for _ in range(3))
    first, second = t.memory(np.zeros_like(a)), t.memory(np.zeros_like(a))
    there = [int(t.memory(array).handle) for array in (a, b, c)]
    config = LaunchConfig(grid=4, block=256)

    def work(where):
        t.launch(where, "sum<float>", there[0], there[1], int(first.handle), np.uint64(1000), config=config)
        t.launch(where, "product<float>", int(first.handle), there[2], int(second.handle), np.uint64(1000), config=config)

    builder = t.device.create_graph_builder().begin_building()
    work(builder)
    graph = builder.end_building().complete()
    graph.upload(t.stream)
    for run in (lambda: graph.launch(t.stream), lambda: work(t.stream)):
        driver.cuMemsetD8Async(int(second.handle), 0, a.nbytes, t.stream.handle)
        run()
        t.stream.sync()
        assert np.allclose(t.numbers(second, a), (a + b) * c)


def update(t):
    memory = LegacyPinnedMemoryResource().allocate(8, stream=t.device.default_stream)
    values = np.from_dlpack(memory).view(np.int32)
    values[:] = 0

    def captured(place):
        builder = t.device.create_graph_builder().begin_building()
        for _ in range(2):
            t.launch(builder, "add_one", place)
        return builder.end_building()

    first, second = (captured(values[i:].ctypes.data) for i in (0, 1))
    graph = first.complete()
    graph.launch(t.stream)
    t.stream.sync()
    assert values.tolist() == [2, 0]
    graph.update(second)
    graph.launch(t.stream)
    t.stream.sync()
    assert values.tolist() == [2, 2]


def linked(t):
    options = ProgramOptions(arch="compute_90", relocatable_device_code=True)
    sources = (
        "__device__ int twice(int x) { return 2 * x; }",
        'extern __device__ int twice(int); extern "C" __global__ void apply(int *x) { *x = twice(*x); }',
    )
    parts = [Program(source, code_type="c++", options=options).compile("ptx") for source in sources]
    linker = Linker(*parts)
    assert linker.which_backend() == sys.argv[2], linker.which_backend()
    kernel = linker.link("cubin").get_kernel("apply")
    buffer = t.memory(np.full(1, 21, np.int32))
    launch(t.stream, ONE, kernel, int(buffer.handle))
    t.stream.sync()
    assert t.numbers(buffer, np.zeros(1, np.int32)).tolist() == [42]


def branches():
    t = Bench()
    at = int(t.memory(np.zeros(2, np.int32)).handle)
    graph = t.forked([at, at + 4, at + 4])
    graph.launch(t.stream)
    # Not `Device.sync`, which asks the runtime library.
    t.stream.sync()


BUGS = {"branches": (branches, "StreamRace", "no event, stream or wait of the host orders the two")}
RIGHT = (fork_and_join, with_and_without, update, linked)

if __name__ == "__main__":
    part = sys.argv[1]
    if part == "list":
        planted.list_bugs(__file__, BUGS)
    elif part == "right":
        for run in RIGHT:
            run(Bench())
        print("cuda.core:", ", ".join(run.__name__.replace("_", " ") for run in RIGHT), "by", sys.argv[2])
    else:
        BUGS[part][0]()
