"""The kernel library of the engine: built once per machine, or shipped in a platform wheel.

One source, one library for each instruction set. The library for the instruction set at hand is
taken from the package if the wheel holds it, else from the cache of ``targets.c.toolchain``.
"""

from __future__ import annotations

import ctypes
import functools
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from compiler.errors import CodegenError, legal_names
from compiler.targets.c.toolchain import build_library, cpu_features, find_compiler
from compiler.targets.engine.isa import HERE, ISAS, SOURCES, build_flags, library_name

ISA_VARIABLE: Final = "QSEARCH_ENGINE_ISA"
"""Environment variable that names the instruction set; "generic" works everywhere."""


@dataclass(frozen=True, slots=True, eq=False)
class Library:
    """The kernels for one instruction set, and what packing must know of them.

    Attributes:
        path: the file.
        isa: name of the instruction set.
        check, run: ``qk_check_call`` and ``qk_run_call`` of kernels.c, by the address of their
            arguments, without the GIL.
        k_unit: reduced elements of one dot step.
        weight_bytes: of one packed weight.
        lanes: 64-bit addends lie as the even lanes of so many, then the odd ones; 1: in order.
        panel_vectors: widest panel, in vectors of sixteen columns.
        activation_shift: what a dot step takes away from a stored byte.
        nibbles: weights from which products of one row take those of 4 bits; 0: never.
        widens: rows are copied as int16 before the product.
        columns_outside: packed weights are [column][k] rather than [k][column][unit].
        has_narrow: there are kernels for weights whose pairs of products fit in 16 bits.
        has_reals: sums may be scaled by float32 factors.
        has_eights: the last vector of a product holds eight columns where these are enough.
        has_lines: tables of more than 8 bits may be lines.
        tile_steps: most dot steps of a tile; 0: there are none.
    """

    path: Path
    isa: str
    check: Any
    run: Any
    k_unit: int
    weight_bytes: int
    lanes: int
    panel_vectors: int
    activation_shift: int
    nibbles: int
    widens: bool
    columns_outside: bool
    has_narrow: bool
    has_reals: bool
    has_eights: bool
    has_lines: bool
    tile_steps: int = 0

    @property
    def has_tile_registers(self) -> bool:
        """True if tiles have registers of their own, of sixteen rows."""
        return self.tile_steps > 2

    @property
    def crosses(self) -> bool:
        """Return whether two dot steps of widened bytes may be taken by half the products."""
        return self.widens and not self.columns_outside

    @property
    def depthwise_block(self) -> int:
        """Vectors of the widest block of a depthwise step: a register holds so many times four."""
        return max(self.lanes // 4, 1)


def detected_isa() -> str:
    """The best instruction set of this processor, or the one that ``QSEARCH_ENGINE_ISA`` names.

    Raises:
        CodegenError: the variable names none.
    """
    named = os.environ.get(ISA_VARIABLE)
    if named:
        if named not in ISAS:
            raise CodegenError(f"{ISA_VARIABLE}={named!r}", fix=legal_names(named, ISAS))
        return named
    return available_isas()[0]


@functools.cache
def available_isas() -> tuple[str, ...]:
    """Instruction sets that this processor has, best first."""
    words = frozenset(cpu_features().split())
    machine = platform.machine()
    return tuple(
        name
        for name, isa in ISAS.items()
        if not isa.machines
        or (machine in isa.machines and isa.features <= words and (name != "amx" or has_tiles()))
    )


@functools.cache
def has_tiles() -> bool:
    """True if Linux gives this process the tile registers of AMX: ARCH_REQ_XCOMP_PERM."""
    return bool(ctypes.CDLL(None).syscall(158, 0x1023, 18) == 0)


def adds_pairs() -> bool:
    """Return whether 8 bit kernels of onnxruntime add pairs of products in 16 bits, which
    saturates: those of x86 processors without VNNI."""
    vnni = frozenset(("avx512_vnni", "avx_vnni")) & frozenset(cpu_features().split())
    return platform.machine() in ISAS["avx2"].machines and not vnni


def shipped_library(isa: str) -> Path | None:
    """The library that a platform wheel holds; None in a pure one."""
    path = HERE / library_name(isa)
    if path.exists():
        return path
    return None


def is_available() -> bool:
    """Return whether there is a library, or a compiler to build one."""
    return shipped_library(detected_isa()) is not None or find_compiler() is not None


@functools.cache
def load_library(isa: str | None = None) -> Library:
    """The kernels for an instruction set, by default the best one of this processor.

    Raises:
        CodegenError: no library is shipped and there is no compiler, or it refuses the source.
    """
    isa = isa or detected_isa()
    if isa not in ISAS:
        raise CodegenError(f"unknown instruction set {isa!r}", fix=legal_names(isa, ISAS))
    try:
        return open_library(shipped_library(isa) or build_library(*build_of(isa)))
    except CodegenError:
        if isa != "amx":  # which needs GCC 11
            raise
        return load_library("vnni")


def build_of(isa: str) -> tuple[str, Sequence[Path], Sequence[str]]:
    """Return the arguments of ``build_library`` where no library is shipped: name, files and
    flags."""
    return "qkernels", SOURCES, build_flags(isa)


def open_library(path: Path) -> Library:
    """The kernels of one library file."""
    loaded = ctypes.CDLL(str(path))
    facts = (ctypes.c_int64 * 12)()
    loaded.qk_isa.restype = ctypes.c_char_p
    name = loaded.qk_isa(facts).decode()
    check = loaded.qk_check_call
    run = loaded.qk_run_call
    check.restype = ctypes.c_int64
    run.restype = None
    check.argtypes = run.argtypes = [ctypes.c_void_p]
    unit, weight_bytes, lanes, panel, shift, *flags, nibbles = facts
    numbers = unit, weight_bytes, lanes, panel, shift, nibbles
    library = Library(path, name, check, run, *numbers, *map(bool, flags))
    return replace(library, tile_steps=loaded.qk_most_in_tile())
