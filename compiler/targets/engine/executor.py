"""EngineExecutor: a module's integers by the kernels of the engine, without a compiler per module.

The GIL is released while kernels run.
"""

from __future__ import annotations

import ctypes
import os
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import compiler.targets.engine.convolutions
import compiler.targets.engine.general
import compiler.targets.engine.moves
import compiler.targets.engine.products
import compiler.targets.engine.reals
import compiler.targets.engine.rules
import compiler.targets.engine.windows  # noqa: F401  # the seven register their rules
from compiler.errors import EvaluationError, PlanError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.targets.engine.library import load_library
from compiler.targets.engine.plan import Plan, StepInfo
from compiler.targets.engine.planner import plan_function
from compiler.targets.engine.steps import SLACK, aligned
from compiler.targets.engine.views import View
from compiler.targets.reference.inputs import checked_inputs

Array = NDArray[Any]


class EngineExecutor:
    """One function of a module; implements ``runtime.executor.Executor``.

    One executor may be used from several threads at the same time.

    Args:
        mod: static shapes, no control flow.
        function: name of the function.
        isa: instruction set of ``isa.ISAS``; None for the best one of this processor.
    Raises:
        CodegenError: no kernel library and no compiler.
        PlanError: the function has control flow; it needs far more memory than its values take, or
            sizes that the kernels do not have.
    """

    def __init__(self, mod: IRModule, function: str = "main", isa: str | None = None) -> None:
        if mod[function].checked_type_or_none is None:
            mod = infer_module(mod)
        self._function = mod[function]
        self._names = tuple(p.name_hint for p in self._function.params)
        self._library = load_library(isa)
        self.plan = self._planned(mod, function)
        self._arenas: deque[Array] = deque()
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._in = [(t.concrete_shape, np.dtype(t.dtype)) for t in self.plan.input_types]
        self._out = [(t.concrete_shape, np.dtype(t.dtype)) for t in self.plan.output_types]
        self._check()

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the parameters, in order."""
        return self._names

    @property
    def isa(self) -> str:
        """The instruction set of the kernels."""
        return self._library.isa

    @property
    def steps(self) -> tuple[StepInfo, ...]:
        """Every kernel step, in order."""
        return self.plan.infos

    def run(self, inputs: Inputs) -> list[Array]:
        """The results, tuples flattened from left to right; arrays in row-major order are not
        copied.

        Raises:
            EvaluationError: an input does not fit.
        """
        return self._run(self._checked(inputs))

    def run_batch(self, inputs: Sequence[Array], samples: int, threads: int = 1) -> list[Array]:
        """Results of a batch of any size; every thread takes the next sample, in its own arena."""
        whole = [np.ascontiguousarray(array) for array in inputs]
        for array, (shape, dtype) in zip(whole, self._in, strict=True):
            if array.shape != (shape[0] * samples, *shape[1:]) or array.dtype != dtype:
                raise EvaluationError(
                    f"an input of {samples} runs is {array.dtype}{list(array.shape)}",
                    fix=f"it should be {dtype}{[shape[0] * samples, *shape[1:]]}",
                )
        made = [np.empty((s[0] * samples, *s[1:]), dtype) for s, dtype in self._out]
        batch = _Batch(whole, made, samples)
        others = [
            self._threads().submit(self._in_own_arena, batch)
            for _ in range(1, min(threads, samples))
        ]
        try:
            self._in_own_arena(batch)
        finally:
            # Who has not begun by now finds nothing left.
            others = [other for other in others if not other.cancel()]
            wait(others)
        for other in others:
            other.result()
        return made

    def profile(self, inputs: Inputs, rounds: int = 5) -> NDArray[np.float64]:
        """CPU seconds of every kernel step, the least of some rounds."""
        arrays = self._checked(inputs)
        best = np.full(len(self.plan.rows), np.inf)
        for _ in range(rounds):
            seconds = np.zeros(len(self.plan.rows))
            self._run(arrays, seconds)
            best = np.minimum(best, seconds)
        return best

    def _planned(self, mod: IRModule, function: str) -> Plan:
        return plan_function(mod, function, self._library)[1]

    # ---- one run ---------------------------------------------------------------------------

    def _checked(self, inputs: Inputs) -> list[Array]:
        arrays = ordered_inputs(self._names, inputs)
        for array, (shape, dtype) in zip(arrays, self._in):
            fits = isinstance(array, np.ndarray) and array.shape == shape
            if not fits or array.dtype != dtype:
                arrays = checked_inputs(self._function, arrays)
                break
        return [np.ascontiguousarray(a) for a in arrays]

    def _threads(self) -> ThreadPoolExecutor:
        """The threads of this process, which wait for work as long as the executor lives."""
        if self._pool is None or self._pool[0] != os.getpid():
            pool = ThreadPoolExecutor(os.cpu_count() or 1, "qsearch-engine")
            self._pool = os.getpid(), pool
        return self._pool[1]

    def _run(self, arrays: list[Array], seconds: Array | None = None) -> list[Array]:
        made = [np.empty(shape, dtype) for shape, dtype in self._out]
        self._in_own_arena(_Batch(arrays, made, 1), seconds)
        return made

    def _in_own_arena(self, batch: _Batch, seconds: Array | None = None) -> None:
        """Run in an arena that no other thread uses now; arenas are kept for later runs."""
        try:
            arena = self._arenas.pop()
        except IndexError:
            arena = aligned(self.plan.arena_bytes)
        try:
            self._in_arena(batch, arena, seconds)
        finally:
            self._arenas.append(arena)

    def _in_arena(self, batch: _Batch, arena: Array, seconds: Array | None) -> None:
        if len(self.plan.rows):
            self._kernels((0, len(self.plan.rows)), batch, arena, seconds)

    def _check(self) -> None:
        """Have the kernels check every step, which they do before they run any."""
        rows, blob = self.plan.rows, self.plan.blob
        ins, outs = ([_nbytes(each) for each in side] for side in (self._in, self._out))
        failed = self._library.run(
            rows.ctypes.data, len(rows), None, self.plan.arena_bytes,
            blob.ctypes.data, self.plan.blob_bytes, None, (ctypes.c_int64 * len(ins))(*ins),
            len(ins), None, (ctypes.c_int64 * len(outs))(*outs), len(outs), 0, None, None,
        )  # fmt: skip
        if failed:
            raise PlanError(
                "the kernels have no such sizes",
                where=f"{self.plan.infos[failed - 1]}",
                fix='run it with executor="reference"',
            )

    def _kernels(
        self, span: tuple[int, int], batch: _Batch, arena: Array, seconds: Array | None
    ) -> None:
        plan = self.plan
        first, last = span
        rows = plan.rows
        failed = self._library.run(
            rows.ctypes.data + first * rows.strides[0], last - first,
            arena.ctypes.data, len(arena) - SLACK, plan.blob.ctypes.data, plan.blob_bytes,
            *batch.input_table, *batch.output_table, batch.samples, ctypes.byref(batch.taken),
            None if seconds is None else seconds.ctypes.data + 8 * first,
        )  # fmt: skip
        if failed:
            raise EvaluationError(
                f"step {first + failed - 1} would leave its memory",
                where=f"{plan.infos[first + failed - 1]}" if failed > 0 else "memory not aligned",
                fix="this is a defect of the engine; executor='reference' does not use it",
            )


class _Batch:
    """Samples that threads take one after another, so that none waits for one that began late.

    Args:
        inputs, outputs: contiguous, ``samples`` times as long as the function's.
        samples: how many runs.

    Attributes:
        input_table, output_table: as the kernels take them.
        taken: how many samples the kernels have begun.
    """

    def __init__(self, inputs: list[Array], outputs: list[Array], samples: int) -> None:
        self.samples = samples
        self.input_table, self.output_table = (_table(a, samples) for a in (inputs, outputs))
        self.taken = ctypes.c_size_t(0)


def batch_of(inputs: list[Array], outputs: list[Array]) -> _Batch:
    """One sample."""
    return _Batch(inputs, outputs, 1)


def _table(arrays: Sequence[Array], samples: int) -> tuple[Any, Any, int]:
    """Addresses, bytes of one sample, and how many there are, as the kernels take them."""
    places = (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
    sizes = (ctypes.c_int64 * max(len(arrays), 1))(*(a.nbytes // samples for a in arrays))
    return places, sizes, len(arrays)


def _nbytes(tensor: tuple[tuple[int, ...], np.dtype[Any]]) -> int:
    return prod(tensor[0]) * tensor[1].itemsize


_STORED: dict[str, np.dtype[Any]] = {
    "U8": np.dtype(np.uint8),
    "S16": np.dtype(np.int16),
    "S32": np.dtype(np.int32),
    "S64": np.dtype(np.int64),
}


def array_of(view: View, arena: Array) -> Array:
    """The elements of a view in the arena, as they are stored."""
    dtype = _STORED[view.buffer.type]
    start = view.buffer.place + view.offset
    last = sum((n - 1) * s for n, s in zip(view.shape, view.strides)) + dtype.itemsize
    flat = arena[start : start + last]
    base: Array = np.frombuffer(flat.data, np.uint8)
    return as_strided(base[: dtype.itemsize].view(dtype), view.shape, view.strides)
