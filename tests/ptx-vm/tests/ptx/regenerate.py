#!/usr/bin/env python3
"""Compiles the .cu files of this folder to the .ptx files next to them.

    pip install --no-deps --target .nvrtc nvidia-cuda-nvrtc-cu12==12.8.93
    ./regenerate.py .nvrtc [--check] [stem ...]

The first line of a source may say `// arch: compute_90a`; the default is compute_80. With --check nothing is written and a
difference is an error. VARIANTS are the planted bugs: the same source with one macro changed.
"""
import ctypes, pathlib, sys

VARIANTS = {
    "gemm": {"no_barrier_before": "NO_BARRIER_BEFORE", "no_barrier_after": "NO_BARRIER_AFTER", "weak_wait": "WEAK=1",
             "no_guard": "GUARD=true", "swapped": "SWAP=1"},
    "rmsnorm": {"no_barrier": "NO_BARRIER", "off_by_one": "OVER=1", "divergent": "LANES=31"},
    "wgmma": {"short_expect": "SHORT=8192", "wrong_parity": "PARITY=1", "no_wait": "NO_WAIT", "no_wgmma_wait": "NO_WGMMA_WAIT",
              "wrong_step": "STEP=1", "no_barrier_after": "NO_BARRIER_AFTER"},
    "grid": {"no_grid_sync": "NO_GRID_SYNC", "no_fence": "FENCE="},
    "cluster": {"no_last_sync": "LAST_SYNC=", "no_free_wait": "FREE_WAIT="},
}
HERE = pathlib.Path(__file__).parent


def nvrtc(folder):
    lib = pathlib.Path(folder) / "nvidia/cuda_nvrtc/lib"
    ctypes.CDLL(str(next(lib.glob("libnvrtc-builtins.so*"))), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(next(p for p in sorted(lib.glob("libnvrtc.so*")) if "alt" not in p.name)))


def strings(values):
    return (ctypes.c_char_p * len(values))(*[v.encode() for v in values])


def text(lib, program, kind):
    size = ctypes.c_size_t()
    getattr(lib, f"nvrtcGet{kind}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(lib, f"nvrtcGet{kind}")(program, buffer)
    return buffer.value.decode()


def compile_one(lib, source, macros=()):
    code = source.read_text()
    arch = code.splitlines()[0].split("arch:")[1].strip() if "arch:" in code.splitlines()[0] else "compute_80"
    headers = sorted(HERE.glob("*.h"))
    program = ctypes.c_void_p()
    lib.nvrtcCreateProgram(ctypes.byref(program), code.encode(), source.name.encode(), len(headers),
                           strings([h.read_text() for h in headers]), strings([h.name for h in headers]))
    flags = [f"--gpu-architecture={arch}", "--std=c++17"] + [f"-D{m}" for m in macros]
    status = lib.nvrtcCompileProgram(program, len(flags), strings(flags))
    if status:
        sys.exit(f"{source.name}: {text(lib, program, 'ProgramLog')}")
    return text(lib, program, "PTX")


def main():
    check, names = "--check" in sys.argv, [a for a in sys.argv[1:] if a != "--check"]
    lib, stems = nvrtc(names[0]), names[1:]
    for source in sorted(HERE.glob("*.cu")):
        if stems and source.stem not in stems:
            continue
        for name, macro in [("", "CORRECT"), *VARIANTS.get(source.stem, {}).items()]:
            ptx, target = compile_one(lib, source, [macro]), HERE / f"{source.stem}{'.' if name else ''}{name}.ptx"
            if check and target.read_text() != ptx:
                sys.exit(f"{target.name} is not what {source.name} compiles to")
            if not check:
                target.write_text(ptx)


main()
