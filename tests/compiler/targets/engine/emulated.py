"""Kernels of instruction sets that this processor may lack: the same source with their
instructions in plain C, or in those of an older set."""

from __future__ import annotations

from functools import cache

from compiler.targets.c.toolchain import build_library
from compiler.targets.engine.isa import FLAGS, ISAS, SOURCES
from compiler.targets.engine.library import Library, available_isas, load_library, open_library

_BASES = {"amx": "vnni", "avxvnni": "avx2"}
"""The instruction set that all but the dot steps and tiles are compiled for."""


@cache
def emulated_library(isa: str) -> Library:
    """The kernels of ``isa``, on a machine that has its base."""
    base = _BASES[isa]
    flags = [*FLAGS, *ISAS[base].flags, f"-D{ISAS[isa].macro}", "-DQK_EMULATED"]
    return open_library(build_library("qkernels", SOURCES, flags))


@cache
def libraries() -> tuple[Library, ...]:
    """The kernels of every instruction set at hand, and of those that can be emulated."""
    here = available_isas()
    others = [isa for isa, base in _BASES.items() if isa not in here and base in here]
    return (*map(emulated_library, others), *map(load_library, here))
