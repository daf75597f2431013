"""`cuGetProcAddress` of the software driver against `cudaTypedefs.h`: every entry and version that the header has.

`versions.py HEADER`, run under `soft-cuda run`. The header names each entry with the version that it came with
(`PFN_cuCtxSynchronize_v13000`). Asked for that version the driver gives this entry, which is the symbol with the
number of the entry behind it (`_v2` for the second); for a version just before, the entry before, or none with the
status that says so. What the driver has not, it exports all the same, to refuse it by its name.
"""

import re
import sys
from ctypes import byref, c_char_p, c_int, c_uint64, c_void_p, cast

import device_memory as cuda

NEWEST = 13000
FOUND, NOT_FOUND, TOO_OLD = 0, 1, 2


def find(name, version):
    """The address and the status."""
    function, status = c_void_p(), c_int(-1)
    cuda.call("cuGetProcAddress_v2", c_char_p(name.encode()), byref(function), version, c_uint64(0), byref(status))
    return function.value, status.value


def symbol(name):
    """The address of an exported symbol; nothing where there is none."""
    found = getattr(cuda.driver(), name, None)
    return found and cast(found, c_void_p).value


def check(name, versions):
    """What is wrong with the answers for a name, and how many there were."""
    found = [find(name, version) for version in versions]
    if found[-1] == (None, NOT_FOUND):
        exported = [symbol(name + number) for number in ("", "_v2", "_v3")]
        return [] if any(exported) else [f"{name} is not exported"], 0
    wrong = []
    for at, version in enumerate(versions):
        entry = name if at == 0 else f"{name}_v{at + 1}"
        here = symbol(entry)
        # Of the oldest entries, with addresses of 32 bits, many are not here.
        wanted = (here, FOUND) if here else (None, TOO_OLD)
        if found[at] != wanted:
            wrong.append(f"{name} {version}: {found[at]}, and {entry} is {here}")
        before = found[at - 1] if at else (None, TOO_OLD)
        if find(name, version - 1) != before:
            wrong.append(f"{name} {version - 1}: another entry than that before {version}")
    return wrong, len(versions)


def main(header):
    since = {}
    for name, version in re.findall(r"\*PFN_(cu\w+?)_v(\d+)\)", open(header).read()):
        if int(version) <= NEWEST:
            since.setdefault(name, set()).add(int(version))
    outcomes = [check(name, sorted(versions)) for name, versions in sorted(since.items())]
    here = [count for _, count in outcomes if count]
    print(f"{len(here)} names with {sum(here)} versions are as in the header; {len(outcomes) - len(here)} are refused by name")
    wrong = [line for lines, _ in outcomes for line in lines]
    print(*wrong, sep="\n")
    sys.exit(bool(wrong) or sum(here) < 200)


if __name__ == "__main__":
    main(sys.argv[1])
