"""The kernels of calibrate.c and products.c through ctypes."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.quantize.kernels.numpy_kernels import (
    F32,
    F64,
    I16,
    I32,
    I64,
    UPPER_COUNTERS,
    Kernels,
    KeyTimes,
)
from compiler.targets.c.toolchain import build_library

_SOURCES = [Path(__file__).with_name(name) for name in ("calibrate.c", "products.c")]
_LANES = 4  # LANES and TEAM of the sources
_TEAM = 8
_TILE = 4
_PADDED = 32


class _Array:
    """Type of an argument that points to the first element of an array."""

    @classmethod
    def from_param(cls, array: NDArray[Any]) -> ctypes.c_void_p:
        """The pointer."""
        if array.flags.writeable and array.size:  # a fourth of the time; a tensor costs a dozen
            return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(array.data)))
        return ctypes.c_void_p(array.ctypes.data)


_INT = ctypes.c_int32
_LONG = ctypes.c_int64
_FLOAT = ctypes.c_float
_DOUBLE = ctypes.c_double
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "count_ranges": (_Array, _LONG, *[_Array] * 3),
    "histogram": (_Array, _LONG, _Array, _INT, _FLOAT, _Array, _Array),
    "collect_low": (_Array, _LONG, _Array, _INT, *[_Array] * 3),
    "divergences_float32": (*[_Array] * 3, _INT, _Array, _INT, _INT, _Array, _Array),
    "group_terms": (_Array, _Array, _INT, _Array, _INT, _INT, *[_Array] * 4),
    "steps": (_Array, *[_LONG] * 3, _Array, _Array),
    "products": (*[_Array] * 4, *[_LONG] * 5, *[_Array] * 5),
    "shrunk": (*[_Array] * 6, _LONG, _LONG, _INT, _INT, _Array, _Array),
    "grid_errors": (_Array, _LONG, _LONG, _Array, _FLOAT, _Array),
    "round_columns": (*[_Array] * 3, *[_LONG] * 3, _DOUBLE, _DOUBLE, _Array),
}
_RESULTS = {"collect_low": ctypes.c_int64, "steps": ctypes.c_int32}


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
        for name, arguments in _ARGUMENTS.items():
            function = getattr(library, f"qs_{name}")
            function.argtypes = arguments
            function.restype = _RESULTS.get(name)
        self._library = library
        self._lock = threading.Lock()
        self._upper_scratch = np.zeros(_LANES * UPPER_COUNTERS, np.uint32)
        self._bin_scratch = np.zeros(0, np.uint32)
        self._low = np.empty(0, np.uint16)
        self._slot = np.empty(0, np.uint8)
        self._times = np.empty(0, np.int32)
        self._columns = np.empty(0, np.int16)

    def count_ranges(self, values: F32, counts: I64, keys: I32) -> None:
        with self._lock:
            self._library.qs_count_ranges(values, values.size, self._upper_scratch, counts, keys)

    def histogram(self, values: F32, edges: F32, counts: I64) -> None:
        bins = counts.size
        width = float(edges[-1]) - float(edges[0])
        with np.errstate(over="ignore"):
            inverse = np.float32(bins / width)
        with self._lock:
            if self._bin_scratch.size != _LANES * bins:
                self._bin_scratch = np.zeros(_LANES * bins, np.uint32)
            self._library.qs_histogram(
                values, values.size, edges, bins, float(inverse), self._bin_scratch, counts
            )

    def collect_low(self, values: F32, buckets: I32) -> list[KeyTimes]:
        with self._lock:
            if self._low.size < values.size:
                # Kept, because fresh pages would cost more than the search; few are ever written.
                self._low = np.empty(values.size, np.uint16)
                self._slot = np.empty(values.size, np.uint8)
                self._times = np.empty(values.size, np.int32)
            found = self._library.qs_collect_low(
                values, values.size, buckets, buckets.size, self._low, self._slot, self._times
            )
            low, slot, times = (each[:found] for each in (self._low, self._slot, self._times))
            here = [slot == b for b in range(buckets.size)]
            return [(low[some], times[some]) for some in here]

    def divergences(self, hist: I64, prefix: I64, filled: I64, candidates: I32, levels: int) -> F32:
        out = np.empty(candidates.size, np.float32)
        work = np.empty(2 * _TEAM * hist.size, np.float32)
        self._library.qs_divergences_float32(
            hist, prefix, filled, hist.size, candidates, candidates.size, levels, work, out
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
            *whole, prefix.size - 1, candidates, candidates.size, levels, p_less, q_less, work, out
        )
        return out

    def steps(self, values: F32, units: F64) -> I16 | None:
        out = np.empty(values.shape, np.int16)
        numbers = self._library.qs_steps(values, *values.shape, units, out)
        if numbers:
            return out
        return None

    def products(
        self,
        read: Sequence[I16],
        wanted: Sequence[I16],
        layout: tuple[int, Sequence[I32]],
        products: I64,
        crossed: I64,
        sums: tuple[I64, I64],
    ) -> None:
        groups, taps, _ = products.shape
        reads = np.concatenate(layout[1], axis=1)
        places, positions = reads.shape
        ends = np.cumsum([each.shape[1] for each in layout[1]])
        data = (np.array([x.ctypes.data for x in runs], np.uintp) for runs in (read, wanted))
        sizes = len(read), layout[0], places, groups, taps
        with self._lock:
            if self._columns.size < (room := 2 * (taps + _TILE) * (positions + 2 * _PADDED)):
                self._columns = np.empty(room, np.int16)
            self._library.qs_products(
                *data, ends, reads, *sizes, self._columns, products, crossed, *sums
            )

    def shrunk(
        self,
        halves: Sequence[I64],
        sums: tuple[I64, I64],
        counts: Sequence[int],
        unit: F64,
        symmetric: bool,
        centred: bool,
    ) -> F32:
        out = np.empty(halves[0].shape, np.float32)
        numbers = np.array(counts, np.int64)
        work = np.empty(3 * unit.shape[1])
        self._library.qs_shrunk(
            *halves, *sums, numbers, unit, *unit.shape, symmetric, centred, work, out
        )
        return out

    def grid_errors(self, magnitudes: F32, scale: F32, levels: float, out: F32) -> None:
        self._library.qs_grid_errors(magnitudes, *magnitudes.shape, scale, levels, out)

    def round_columns(self, values: F64, free: F64, factor: F64, ends: tuple[int, int]) -> F64:
        found = np.empty_like(values)
        self._library.qs_round_columns(values, free, factor, *values.shape, *ends, found)
        return found
