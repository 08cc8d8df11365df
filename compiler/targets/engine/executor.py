"""EngineExecutor: a module's integers by the kernels of the engine, without a compiler per module.

The GIL is released while kernels run.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from math import prod
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import compiler.targets.engine.general
import compiler.targets.engine.loops
import compiler.targets.engine.moves
import compiler.targets.engine.products
import compiler.targets.engine.reals
import compiler.targets.engine.rules
import compiler.targets.engine.windows  # noqa: F401  # the seven register their rules
from compiler.errors import EvaluationError, PlanError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array, storage_dtype
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.targets.engine.library import Library, load_library
from compiler.targets.engine.plan import Plan
from compiler.targets.engine.planner import plan_function
from compiler.targets.engine.steps import SLACK, aligned
from compiler.targets.engine.views import ALIGN, STORED, View
from compiler.targets.reference.inputs import checked_inputs

_LANE_MACS: Final = 20_000_000
"""Multiplications for each thread of a sample; with fewer it takes longer to begin than to run."""


class EngineExecutor:
    """One function of a module; implements ``runtime.executor.Executor``.

    One executor may be used from several threads at the same time.

    Args:
        mod: static shapes, no control flow.
        function: name of the function.
        isa: instruction set of ``isa.ISAS``, or its kernels; None for the best one of this
            processor.
    Attributes:
        input_names: names of the parameters, in order.
        isa: the instruction set of the kernels.
        plan, steps: the step table, and what people want to know of its steps.
    Raises:
        CodegenError: no kernel library and no compiler.
        PlanError: the function has control flow; it needs far more memory than its values take, or
            sizes that the kernels do not have.
    """

    def __init__(
        self, mod: IRModule, function: str = "main", isa: str | Library | None = None
    ) -> None:
        if mod[function].checked_type_or_none is None:
            mod = infer_module(mod)
        self._function = mod[function]
        self.input_names = tuple(p.name_hint for p in self._function.params)
        if isinstance(isa, Library):
            self._library = isa
        else:
            self._library = load_library(isa)
        self.isa = self._library.isa
        self.plan = self._planned(mod, function)
        self.steps = self.plan.infos
        self._lanes: deque[_Lane] = deque()
        self._steps = len(self.plan.rows)
        self._rows_at, self._blob_at = _address(self.plan.rows), _address(self.plan.blob)
        self._pool: tuple[int, ThreadPoolExecutor] | None = None
        self._work = sum(info.macs for info in self.plan.infos)
        self._together = threading.Lock()
        self._lane_arenas: Arena | None = None
        self._in = [(t.concrete_shape, storage_dtype(t.dtype)) for t in self.plan.input_types]
        self._out = [(t.concrete_shape, storage_dtype(t.dtype)) for t in self.plan.output_types]
        ins, outs = ([prod(s) * d.itemsize for s, d in side] for side in (self._in, self._out))
        self._sizes = ins, outs
        self._check()

    def run(self, inputs: Inputs) -> list[Array]:
        """The results, tuples flattened from left to right; arrays in row-major order are not
        copied.

        Raises:
            EvaluationError: an input does not fit.
        """
        return self.run_arrays(self._checked(inputs))

    def run_arrays(self, arrays: Sequence[Array], threads: int = 1) -> list[Array]:
        """The results of arrays that are known to fit, in order."""
        if threads > 1:  # asked first: how many cores there are takes microseconds to find out
            lanes = min(threads, os.cpu_count() or 1, self._work // _LANE_MACS)
            if lanes > 1:
                return self.run_together(arrays, lanes)
        held = [a if a.flags.c_contiguous else np.ascontiguousarray(a) for a in arrays]
        made = [np.empty(shape, dtype) for shape, dtype in self._out]
        lane = self._lane()
        try:
            lane.batch.fill(held, made)
            self._library.run(lane.call)
        finally:
            self._lanes.append(lane)
        return made

    def run_together(self, arrays: Sequence[Array], lanes: int) -> list[Array]:
        """Run as ``run_arrays``: one sample in ``lanes`` threads, each with its share of every
        step."""
        held = [np.ascontiguousarray(array) for array in arrays]
        made = [np.empty(shape, dtype) for shape, dtype in self._out]
        batch = Batch(*self._sizes).fill(held, made)
        come = ctypes.c_size_t(0)
        pitch = self.plan.arena_bytes + -self.plan.arena_bytes % ALIGN + SLACK
        span = (0, self._steps)
        at = ctypes.addressof(come)
        with self._together:
            if self._lane_arenas is None or len(self._lane_arenas.bytes) < pitch * lanes:
                self._lane_arenas = Arena(pitch * lanes)
            own, *calls = (
                self._call(span, batch, self._lane_arenas, lane=(lane, lanes, pitch, at))
                for lane in range(lanes)
            )
            others = [threading.Thread(target=self._library.run, args=(call,)) for call in calls]
            for other in others:
                other.start()
            self._library.run(own)
            for other in others:
                other.join()
        return made

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
        batch = Batch(*self._sizes, samples).fill(whole, made)
        others = [
            self._threads().submit(self._in_lane, batch) for _ in range(1, min(threads, samples))
        ]
        try:
            self._in_lane(batch)
        finally:
            # Who has not begun by now finds nothing left.
            others = [other for other in others if not other.cancel()]
            wait(others)
        for other in others:
            other.result()
        return made

    def profile(self, inputs: Inputs, rounds: int = 5) -> NDArray[np.float64]:
        """CPU seconds of every kernel step, the least of some rounds."""
        held = [np.ascontiguousarray(array) for array in self._checked(inputs)]
        outputs = [np.empty(*each) for each in self._out]  # a batch has their addresses only
        batch = Batch(*self._sizes).fill(held, outputs)
        arena = Arena(self.plan.arena_bytes)
        best = np.full(self._steps, np.inf)
        for _ in range(rounds):
            seconds = np.zeros(self._steps)
            self.kernels((0, self._steps), batch, arena, seconds)
            best = np.minimum(best, seconds)
        return best

    def _planned(self, mod: IRModule, function: str) -> Plan:
        return plan_function(mod, function, self._library)[1]

    # ---- one run ---------------------------------------------------------------------------

    def _checked(self, inputs: Inputs) -> list[Array]:
        arrays = ordered_inputs(self.input_names, inputs)
        for array, (shape, dtype) in zip(arrays, self._in):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return checked_inputs(self._function, arrays)
        return arrays

    def _threads(self) -> ThreadPoolExecutor:
        """The threads of this process, which wait for work as long as the executor lives."""
        if self._pool is None or self._pool[0] != os.getpid():
            pool = ThreadPoolExecutor(os.cpu_count() or 1, "qsearch-engine")
            self._pool = os.getpid(), pool
        return self._pool[1]

    def _in_lane(self, batch: Batch) -> None:
        """Take samples of a batch until none is left."""
        lane = self._lane()
        try:
            self.kernels((0, self._steps), batch, lane.arena)
        finally:
            self._lanes.append(lane)

    def _lane(self) -> _Lane:
        """Memory that no other thread uses now; it is kept for later runs."""
        try:
            return self._lanes.pop()
        except IndexError:
            arena = Arena(self.plan.arena_bytes)
            batch = Batch(*self._sizes)
            return _Lane(arena, batch, self._call((0, self._steps), batch, arena))

    def _check(self) -> None:
        """Have the kernels check every step, once: the table stays as it is."""
        self.plan.rows.flags.writeable = self.plan.blob.flags.writeable = False
        batch = Batch(*self._sizes)  # a call has its addresses only
        failed = self._library.check(self._call((0, self._steps), batch))
        if failed:
            raise PlanError(
                "the kernels have no such sizes",
                where=f"{self.plan.infos[failed - 1]}",
                fix='run it with executor="reference"',
            )

    def kernels(
        self, span: tuple[int, int], batch: Batch, arena: Arena, seconds: Array | None = None
    ) -> None:
        """Run the steps of ``span`` on what is left of a batch."""
        self._library.run(self._call(span, batch, arena, seconds))

    def _call(
        self,
        span: tuple[int, int],
        batch: Batch,
        arena: Arena | None = None,
        seconds: Array | None = None,
        lane: tuple[int, int, int, int] = (0, 1, 0, 0),
    ) -> Any:
        """The arguments of the kernels, which say nothing about how long they live."""
        first, last = span
        return (ctypes.c_int64 * 19)(
            self._rows_at + first * self.plan.rows.strides[0], last - first,
            arena.address if arena else 0, self.plan.arena_bytes,
            self._blob_at, self.plan.blob_bytes, *batch.tables, batch.samples, batch.taken,
            0 if seconds is None else seconds.ctypes.data + 8 * first, *lane,
        )  # fmt: skip


class Arena:
    """Memory of one run: its bytes, with SLACK behind them, and where they are."""

    __slots__ = ("address", "bytes")

    def __init__(self, size: int) -> None:
        self.bytes = aligned(size)
        self.address = _address(self.bytes)


class Batch:
    """Inputs and outputs as the kernels take them.

    Args:
        inputs, outputs: bytes of one sample of each.
        samples: that threads take one after another, so that none waits for one that began late.

    Attributes:
        tables: addresses of places and of bytes of one sample, and how many; of both sides.
        taken: address of how many samples the kernels have begun; 0 for an only sample.
    """

    __slots__ = ("_begun", "_places", "_sizes", "samples", "tables", "taken")

    def __init__(self, inputs: Sequence[int], outputs: Sequence[int], samples: int = 1) -> None:
        self.samples = samples
        self._begun = ctypes.c_size_t(0)
        self.taken = ctypes.addressof(self._begun) if samples > 1 else 0
        self._sizes = [(ctypes.c_int64 * len(sizes))(*sizes) for sizes in (inputs, outputs)]
        self._places = [(ctypes.c_void_p * len(sizes))() for sizes in (inputs, outputs)]
        self.tables: list[int] = []
        for places, sizes in zip(self._places, self._sizes):
            self.tables += [ctypes.addressof(places), ctypes.addressof(sizes), len(sizes)]

    def fill(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Batch:
        """Set the arrays: contiguous, and ``samples`` times as long as the function's."""
        for arrays, places in zip((inputs, outputs), self._places):
            places[:] = [_address(array) for array in arrays]
        return self


class _Lane(NamedTuple):
    """Buffers of one thread."""

    arena: Arena
    batch: Batch
    call: Any


_start: Final[Any] = (ctypes.c_char * 0).from_buffer


def _address(array: Array) -> int:
    """Return the address of a contiguous array; its own fields take five times as long to say
    so."""
    try:
        return ctypes.addressof(_start(array))
    except (TypeError, ValueError):  # read-only
        return int(array.ctypes.data)


def array_of(view: View, arena: Array) -> Array:
    """The elements of a view in the arena, as they are stored."""
    dtype = STORED[view.buffer.type]
    start = view.buffer.place + view.offset
    last = sum((n - 1) * s for n, s in zip(view.shape, view.strides)) + dtype.itemsize
    flat = arena[start : start + last]
    base: Array = np.frombuffer(flat.data, np.uint8)
    return as_strided(base[: dtype.itemsize].view(dtype), view.shape, view.strides)
