"""Choose the implementation of the loops: C where a compiler is there, else numpy."""

from __future__ import annotations

import functools
import logging
import os
from typing import Literal

from compiler.errors import CodegenError
from compiler.quantize.kernels.native_kernels import NativeKernels
from compiler.quantize.kernels.numpy_kernels import Kernels

_log = logging.getLogger("compiler.quantize.calibrate")

KERNELS_VARIABLE = "QSEARCH_KERNELS"
"""Environment variable that picks the implementation: auto (default), c or numpy."""

KernelChoice = Literal["auto", "c", "numpy"]


def choose_kernels(choice: KernelChoice | None = None) -> Kernels:
    """The implementation to use; None reads the environment variable QSEARCH_KERNELS.

    Raises:
        CodegenError: "c" was asked for and cannot be built; or the choice is unknown.
    """
    return _choose(choice or os.environ.get(KERNELS_VARIABLE, "auto"))


@functools.cache
def _choose(choice: str) -> Kernels:
    if choice == "numpy":
        return Kernels()
    if choice == "c":
        return NativeKernels()
    if choice != "auto":
        raise CodegenError(
            f"unknown kernels {choice!r}", where=KERNELS_VARIABLE, fix="legal: auto, c, numpy"
        )
    try:
        return NativeKernels()
    except CodegenError as error:
        _log.info("calibration runs in numpy, same results but slower: %s", error.what)
        return Kernels()
