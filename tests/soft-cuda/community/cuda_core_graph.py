"""cuda.core on the software driver: kernels compiled to PTX by NVRTC, a graph that forks and joins, replayed."""

import numpy as np
from cuda.core import Device, LaunchConfig, Program, ProgramOptions, launch
from cuda.core.graph import GraphBuilder

SOURCE = """
extern "C" __global__ void add_one(int *x) { atomicAdd(x, 1); }
extern "C" __global__ void add_to(int *y, const int *x) { *y += *x; }
"""

device = Device(0)
device.set_current()
stream = device.create_stream()
options = ProgramOptions(std="c++17", arch="compute_90")
module = Program(SOURCE, code_type="c++", options=options).compile("ptx", name_expressions=("add_one", "add_to"))
add_one, add_to = module.get_kernel("add_one"), module.get_kernel("add_to")
config = LaunchConfig(grid=1, block=1)

host = np.zeros(3, np.int32)
buffer = device.allocate(12, stream=stream)
x, y, z = buffer.handle, buffer.handle + 4, buffer.handle + 8
from cuda.bindings import driver

driver.cuMemsetD32Async(int(buffer.handle), 0, 3, stream.handle)
stream.sync()
builder = device.create_graph_builder().begin_building()
launch(builder, config, add_one, int(x))
left, right = builder.split(2)
launch(left, config, add_to, int(y), int(x))
launch(right, config, add_to, int(z), int(x))
builder = GraphBuilder.join(left, right)
launch(builder, config, add_one, int(x))
graph = builder.end_building().complete()
for _ in range(3):
    graph.launch(stream)
stream.sync()
driver.cuMemcpyDtoH(host.ctypes.data, int(buffer.handle), 12)
# 1 and 2, then 3 and 4, then 5 and 6; the branches add 1, 3 and 5.
assert host.tolist() == [6, 9, 9], host
print("cuda.core: a graph that forks and joins, three times")
