"""Measure the products of 8-bit integers that a core adds up in a second at most, by instruction
set.

A short loop of the dot-product instruction on registers, twelve sums at a time: no memory, no
epilogue. No kernel is faster; what a layer reaches of it says how well it uses the processor.
"""

from __future__ import annotations

import ctypes
import functools
import time
from typing import Final

from compiler.targets.c.toolchain import build_library, find_compiler
from compiler.targets.engine.isa import HERE, build_flags
from compiler.targets.engine.library import detected_isa

_ROUNDS: Final = 5
_LOOPS: Final = 200_000


@functools.cache
def peak_macs(isa: str | None = None) -> float | None:
    """Products a second on one core, the best of some rounds; None without a compiler, or where
    the kernel refuses the registers.

    Args:
        isa: instruction set of ``isa.ISAS``; None for the best one of this processor.
    """
    if find_compiler() is None:
        return None
    flags = build_flags(isa or detected_isa())
    library = ctypes.CDLL(
        str(build_library("qpeak", [HERE / "peak.c", HERE / "amx_tiles.h"], flags))
    )
    library.qk_peak.restype = ctypes.c_int64
    library.qk_peak.argtypes = [ctypes.c_int64]
    best = 0.0
    for _ in range(_ROUNDS):
        begin = time.thread_time()
        macs = library.qk_peak(_LOOPS)
        best = max(best, macs / max(time.thread_time() - begin, 1e-9))
    return best or None
