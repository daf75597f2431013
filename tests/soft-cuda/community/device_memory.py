"""The few calls of the driver that these programs make themselves, by ctypes: no framework is needed."""

import ctypes
import functools

import numpy as np


@functools.cache
def driver():
    library = ctypes.CDLL("libcuda.so.1")
    assert library.cuInit(0) == 0
    context = ctypes.c_void_p()
    assert library.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert library.cuCtxSetCurrent(context) == 0
    return library


def call(name, *arguments):
    code = getattr(driver(), name)(*arguments)
    if code:
        raise RuntimeError(f"{name} answered {code}")


class Buffer:
    """Device memory with the interface that Triton asks of a tensor."""

    def __init__(self, array=None, bytes=0, dtype=np.float32):
        array = None if array is None else np.ascontiguousarray(array)
        self.dtype = array.dtype if array is not None else np.dtype(dtype)
        self.shape = () if array is None else array.shape
        self.bytes = bytes or array.nbytes
        address = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(self.bytes))
        self.address = address.value
        if array is not None:
            call("cuMemcpyHtoD_v2", ctypes.c_uint64(self.address), array.ctypes.data_as(ctypes.c_void_p),
                 ctypes.c_size_t(array.nbytes))

    def data_ptr(self):
        return self.address

    def get(self, shape=None):
        array = np.empty(shape or self.shape, self.dtype)
        call("cuMemcpyDtoH_v2", array.ctypes.data_as(ctypes.c_void_p), ctypes.c_uint64(self.address),
             ctypes.c_size_t(array.nbytes))
        return array

    def free(self):
        call("cuMemFree_v2", ctypes.c_uint64(self.address))


def stream():
    handle = ctypes.c_void_p()
    call("cuStreamCreate", ctypes.byref(handle), 1)
    return handle.value


def synchronize():
    call("cuCtxSynchronize")


def launch(ptx, name, grid, threads, shared, arguments):
    """Launches a kernel of a PTX text; integers are pointers, everything else brings its own type."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(ptx.encode()))
    call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(name.encode()))
    values = [ctypes.c_uint64(a) if isinstance(a, int) else a for a in arguments]
    pointers = (ctypes.c_void_p * len(values))(*[ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values])
    if shared > 48 << 10:
        call("cuFuncSetAttribute", function, 8, shared)
    call("cuLaunchKernel", function, *grid, threads, 1, 1, shared, None, pointers, None)
    synchronize()
