"""The kernels of calibrate.c and products.c through ctypes."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.quantize.calibration.kernels.numpy_kernels import (
    F32,
    F64,
    I16,
    I32,
    I64,
    PADDED,
    UPPER_COUNTERS,
    Kernels,
    KeyTimes,
)
from compiler.targets.c.toolchain import build_library

_SOURCES = [Path(__file__).with_name(name) for name in ("calibrate.c", "products.c")]
_LANES = 4  # LANES and TEAM of the sources
_TEAM = 8


def _pointer(array: NDArray[Any]) -> ctypes.c_void_p:
    if array.flags.writeable and array.size:  # a fourth of the time; a tensor costs a dozen
        return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(array.data)))
    return ctypes.c_void_p(array.ctypes.data)


class NativeKernels(Kernels):
    """C implementation; threads may share one, since a lock guards its scratch tables.

    Raises:
        CodegenError: there is no compiler, or the library cannot be built or loaded.
    """

    name = "c"

    def __init__(self) -> None:
        path = build_library("calibrate", _SOURCES)
        try:
            library = ctypes.CDLL(str(path))
        except OSError as error:
            raise CodegenError(f"cannot load {path.name}: {error}", where=str(path)) from error
        library.qs_collect_low.restype = ctypes.c_int64
        for name in ("count_ranges", "histogram", "divergences_float32", "group_terms"):
            getattr(library, f"qs_{name}").restype = None
        for name in ("products", "grid_errors", "round_columns"):
            getattr(library, f"qs_{name}").restype = None
        self._library = library
        self._lock = threading.Lock()
        self._upper_scratch = np.zeros(_LANES * UPPER_COUNTERS, np.uint32)
        self._bin_scratch = np.zeros(0, np.uint32)
        self._low, self._slot = np.empty(0, np.uint16), np.empty(0, np.uint8)
        self._times = np.empty(0, np.int32)

    def count_ranges(self, values: F32, counts: I64, keys: I32) -> None:
        with self._lock:
            self._library.qs_count_ranges(
                _pointer(values),
                ctypes.c_int64(values.size),
                _pointer(self._upper_scratch),
                _pointer(counts),
                _pointer(keys),
            )

    def histogram(self, values: F32, edges: F32, counts: I64) -> None:
        bins = counts.size
        width = float(edges[-1]) - float(edges[0])
        with np.errstate(over="ignore"):
            inverse = np.float32(bins / width)
        with self._lock:
            if self._bin_scratch.size != _LANES * bins:
                self._bin_scratch = np.zeros(_LANES * bins, np.uint32)
            self._library.qs_histogram(
                _pointer(values),
                ctypes.c_int64(values.size),
                _pointer(edges),
                ctypes.c_int32(bins),
                ctypes.c_float(float(inverse)),
                _pointer(self._bin_scratch),
                _pointer(counts),
            )

    def collect_low(self, values: F32, buckets: I32) -> list[KeyTimes]:
        with self._lock:
            if self._low.size < values.size:
                # Kept, because fresh pages would cost more than the search; few are ever written.
                self._low = np.empty(values.size, np.uint16)
                self._slot = np.empty(values.size, np.uint8)
                self._times = np.empty(values.size, np.int32)
            found = self._library.qs_collect_low(
                _pointer(values),
                ctypes.c_int64(values.size),
                _pointer(buckets),
                ctypes.c_int32(buckets.size),
                _pointer(self._low),
                _pointer(self._slot),
                _pointer(self._times),
            )
            low, slot, times = (each[:found] for each in (self._low, self._slot, self._times))
            here = [slot == b for b in range(buckets.size)]
            return [(low[some], times[some]) for some in here]

    def divergences(self, hist: I64, prefix: I64, filled: I64, candidates: I32, levels: int) -> F32:
        out = np.empty(candidates.size, np.float32)
        work = np.empty(2 * _TEAM * hist.size, np.float32)
        self._library.qs_divergences_float32(
            _pointer(hist),
            _pointer(prefix),
            _pointer(filled),
            ctypes.c_int32(hist.size),
            _pointer(candidates),
            ctypes.c_int32(candidates.size),
            ctypes.c_int32(levels),
            _pointer(work),
            _pointer(out),
        )
        return out

    def group_terms(
        self,
        prefix: I64,
        filled: I64,
        candidates: I32,
        levels: int,
        p_less: F64,
        q_less: F64,
    ) -> F64:
        out = np.zeros(candidates.size, np.float64)
        whole = [sums.astype(np.float64) for sums in (prefix, filled)]
        work = np.empty(3 * candidates.size, np.float64)
        self._library.qs_group_terms(
            *map(_pointer, whole),
            ctypes.c_int32(prefix.size - 1),
            _pointer(candidates),
            ctypes.c_int32(candidates.size),
            ctypes.c_int32(levels),
            _pointer(p_less),
            _pointer(q_less),
            _pointer(work),
            _pointer(out),
        )
        return out

    def steps(self, values: F32, units: F64) -> I16 | None:
        out = np.empty(values.shape, np.int16)
        numbers = self._library.qs_steps(
            _pointer(values),
            *(ctypes.c_int64(size) for size in values.shape),
            _pointer(units),
            _pointer(out),
        )
        return out if numbers else None

    def products(
        self, both: I16, positions: int, products: I64, crossed: I64, sums: tuple[I64, I64]
    ) -> None:
        groups, taps, _ = products.shape
        self._library.qs_products(
            *map(_pointer, both),
            *(ctypes.c_int64(size) for size in (groups, taps, both.shape[3])),
            ctypes.c_int64(-(-positions // PADDED) * PADDED),
            *(_pointer(products), _pointer(crossed), *map(_pointer, sums)),
        )

    def grid_errors(self, magnitudes: F32, scale: F32, levels: float, out: F32) -> None:
        self._library.qs_grid_errors(
            _pointer(magnitudes),
            *(ctypes.c_int64(size) for size in magnitudes.shape),
            _pointer(scale),
            ctypes.c_float(levels),
            _pointer(out),
        )

    def round_columns(self, values: F64, factor: F64, ends: tuple[int, int]) -> tuple[F64, F64]:
        found, errors, left = np.empty_like(values), np.empty_like(values), values.copy()
        self._library.qs_round_columns(
            _pointer(left),
            _pointer(factor),
            *(ctypes.c_int64(size) for size in values.shape),
            *(ctypes.c_double(end) for end in ends),
            _pointer(found),
            _pointer(errors),
        )
        return found, errors
