"""Instruction sets of the engine's kernels, and how a library for each one is compiled.

Imports the standard library only: the build of a wheel reads this file before anything is
installed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
SOURCES: Final = tuple(sorted([HERE / "kernels.c", *HERE.glob("*.h")]))

FLAGS: Final = ("-std=gnu99", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden")


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: the macro that chooses its header, flags, and features of processors."""

    macro: str
    flags: tuple[str, ...]
    machines: tuple[str, ...]
    features: frozenset[str]


_O2 = ("-O2", "-fpeel-loops", "-ftree-vectorize")
"""With full registers -O3 gives no faster code here, and gcc takes half as long again."""

_X86 = ("x86_64", "AMD64")
_ARM = ("aarch64", "arm64")
_VNNI = ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni")

ISAS: Final[Mapping[str, Isa]] = {
    "amx": Isa(
        "QK_AMX",
        (*_O2, *(f"-m{name}" for name in (*_VNNI, "amx-tile", "amx-int8"))),
        _X86,
        frozenset((*_VNNI[:-1], "avx512_vnni", "amx_tile", "amx_int8")),
    ),
    "vnni": Isa(
        "QK_VNNI",
        (*_O2, *(f"-m{name}" for name in _VNNI)),
        _X86,
        frozenset((*_VNNI[:-1], "avx512_vnni")),
    ),
    "avxvnni": Isa(
        "QK_AVXVNNI",
        # Partial redundancy elimination of gcc 12 copies the sums of a loop to memory in each turn.
        ("-O3", "-fno-tree-pre", "-mavx2", "-mfma", "-mavxvnni"),
        _X86,
        frozenset(("avx2", "fma", "avx_vnni")),
    ),
    "avx2": Isa("QK_AVX2", ("-O3", "-mavx2", "-mfma"), _X86, frozenset(("avx2", "fma"))),
    "i8mm": Isa(
        "QK_I8MM",
        ("-O3", "-march=armv8.2-a+dotprod+i8mm"),
        _ARM,
        frozenset(("asimddp", "i8mm")),
    ),
    "neon": Isa("QK_NEON", ("-O3", "-march=armv8.2-a+dotprod"), _ARM, frozenset(("asimddp",))),
    "generic": Isa("QK_GENERIC", ("-O3",), (), frozenset()),
}
"""Best first; "generic" runs on every processor."""


def library_name(isa: str) -> str:
    """File name of the library in a wheel."""
    return f"qkernels_{isa}.so"


def build_flags(isa: str) -> tuple[str, ...]:
    """Compiler flags of the library for one instruction set."""
    return (*FLAGS, *ISAS[isa].flags, f"-D{ISAS[isa].macro}")
