"""The plan of a module: kernel steps, host steps between them, constants and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from compiler.errors import PlanError
from compiler.ir.dataflow import Dataflow, Step
from compiler.ir.ty import TensorType
from compiler.targets.engine.layouts import MOST_IMAGES, axis_order, wanted_padding
from compiler.targets.engine.library import Library
from compiler.targets.engine.steps import Blob, number, row, row_fields
from compiler.targets.engine.values import Item
from compiler.targets.engine.views import (
    Address,
    Buffer,
    Memory,
    Shape,
    View,
    merged_axes,
    positions,
    row_major,
)

Array = NDArray[Any]

MOST_ARENA: Final = 1 << 30
"""Bytes of one run; bytes of padding and scratch can be many times those of the values."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What people want to know of a kernel step.

    Attributes:
        kind: "gemm", "depthwise", …
        name: the operator of the module.
        onnx: the ONNX nodes it came from, or "".
        macs: multiplications and additions.
        bytes: constants it reads.
        out_shape: of its result.
    """

    kind: str
    name: str
    onnx: str
    macs: int
    bytes: int
    out_shape: Shape


@dataclass(slots=True, eq=False)
class Action:
    """One entry of a plan: a kernel step, or something that Python does.

    Attributes:
        kind: a step of step.h; "host", "read", "write", "constant", "input" or "output".
        reads, writes: buffers, and numbers of host values.
        fields: of the kernel step.
        compute: of a host action: arrays of ``reads`` to arrays of ``writes``.
        view: that is read or written.
        dtype: of the values that are read; the number of an input; the operator of "host".
    """

    kind: str
    reads: tuple[Any, ...]
    writes: tuple[Any, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    compute: Callable[[list[Array]], list[Array]] | None = None
    view: View | None = None
    dtype: str = ""
    info: StepInfo | None = None

    @property
    def is_kernel(self) -> bool:
        """Whether the kernels run it."""
        return bool(self.fields)


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What an executor runs.

    Attributes:
        rows: the step table, [steps, QK_FIELDS] int64.
        blob, blob_bytes: constants, and their bytes without the slack.
        arena_bytes: memory of one run.
        actions: in order; of neighbouring kernel steps the numbers (first, behind the last).
        infos: of every kernel step.
        input_types, output_types: of the function.
        host_values: how many numbers of host values there are.
    """

    rows: Array
    blob: Array
    blob_bytes: int
    arena_bytes: int
    actions: tuple[Action | tuple[int, int], ...]
    infos: tuple[StepInfo, ...]
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]
    host_values: int

    @property
    def is_kernels_only(self) -> bool:
        """Whether one call runs everything."""
        return all(isinstance(action, tuple) for action in self.actions)


class Emitter:
    """Collects ``actions``; ``finish`` makes a plan of those that are needed: ``kept``."""

    def __init__(self, library: Library, flow: Dataflow) -> None:
        self.library = library
        self.flow = flow
        self.actions: list[Action] = []
        self.kept: list[Action] = []
        self.span: Step | None = None
        self.copies: set[Buffer] = set()
        self._blob = Blob()
        self._constants: set[Buffer] = set()
        self._hosts = 0
        self._raw_hosts: dict[int, str] = {}

    # ---- memory ----------------------------------------------------------------------------

    def put(self, array: Array) -> int:
        """Offset of a constant in the blob."""
        return self._blob.put(array)

    def constant_view(self, item: Item) -> View:
        """A constant in the blob, as int32 or int64."""
        assert item.data is not None
        data = np.ascontiguousarray(item.data.astype(np.int32 if item.fits_int32 else np.int64))
        buffer = Buffer(data.nbytes, "S32" if item.fits_int32 else "S64", place=self.put(data))
        self._constants.add(buffer)
        return View(buffer, 0, item.data.shape, row_major(item.data.shape, buffer.item))

    def is_constant(self, view: View) -> bool:
        """Whether the view lies in the blob."""
        return view.buffer in self._constants

    def scratch(self, size: int) -> Buffer:
        """Memory of one step."""
        return Buffer(max(size, 1))

    def allocate(self, item: Item, order: Shape | None = None) -> View:
        """Memory for an item, in an order of axes, by default what its readers want.

        What convolutions read beyond the borders of an image is part of the buffer and written
        here; ``item.border`` then says so.
        """
        rank = len(item.shape)
        order = axis_order(item) if order is None else order
        pads, value = wanted_padding(item)
        byte = value + item.storage[1]
        allowed = 0 <= byte <= {"U8": 255, "S16": 0}.get(item.storage[0], -1)
        allowed &= rank == 4 and item.shape[order[0]] <= MOST_IMAGES
        if not allowed or any(sum(pads[axis]) for axis in (order[0], order[3])):
            pads = [(0, 0)] * rank
        # Said anew: an item that found no program in one order gets memory in another.
        item.border = (tuple(pads), value) if any(map(any, pads)) else None
        return self.bordered(item.storage, item.shape, order, pads, byte)

    def bordered(
        self,
        storage: tuple[str, int],
        shape: Shape,
        order: Shape,
        pads: Sequence[tuple[int, int]],
        byte: int,
    ) -> View:
        """Memory for ``shape`` with borders of ``byte``, which a step writes."""
        rank = len(shape)
        sizes = tuple(shape[a] + sum(pads[a]) for a in order)
        buffer = Buffer(0, *storage)
        steps = row_major(sizes, buffer.item)
        buffer.size = max(1, prod(sizes)) * buffer.item
        strides = [0] * rank
        for place, axis in enumerate(order):
            strides[axis] = steps[place]
        view = View(
            buffer, sum(pads[a][0] * strides[a] for a in range(rank)), shape, tuple(strides)
        )
        if any(map(any, pads)):
            (top, bottom), (left, right) = pads[order[1]], pads[order[2]]
            pixel = steps[2]
            for image in range(sizes[0]):
                self.step(
                    "fill",
                    [],
                    [buffer],
                    out=Address(buffer, image * steps[0]),
                    height=shape[order[1]],
                    row_bytes=shape[order[2]] * pixel,
                    row_pitch=steps[1],
                    top=top,
                    bottom=bottom,
                    left=left * pixel,
                    right=right * pixel,
                    value=byte,
                )
        return view

    def contiguous(self, view: View, always: bool = False) -> View:
        """The view with its elements in row-major order, one behind the other."""
        if view.is_row_major and not always:
            return view
        buffer = Buffer(
            max(1, prod(view.shape)) * view.buffer.item, view.buffer.type, view.buffer.zero
        )
        made = View(buffer, 0, view.shape, row_major(view.shape, buffer.item))
        self.copy(view, made)
        self.copies.add(buffer)
        return made

    def copy(self, source: View, target: View) -> None:
        """Copy elements; both views have one shape and one type."""
        order = target.axis_order
        s, t = source.permuted(order), target.permuted(order)
        loops = merged_axes(s.shape, [s.strides, t.strides])
        item = source.buffer.item
        run = item
        if loops[-1][1] == (item, item):
            run *= loops[-1][0]
            loops = loops[:-1]
        elif len(loops) > 1 and loops[-1][0] < loops[-2][0]:
            loops[-2:] = loops[:-3:-1]  # the longer one inside
        loops = [(1, (0, 0))] * (6 - len(loops)) + loops
        fields: dict[str, Any] = {}
        for axis, (size, (si, so)) in enumerate(loops[-6:]):
            fields |= {f"size_{axis}": size, f"in_stride_{axis}": si, f"out_stride_{axis}": so}
        constant = self.is_constant(source)
        for at in positions(loops[:-6]):
            moved = [sum(index * strides[side] for index, strides in at) for side in (0, 1)]
            self.step(
                "copy",
                [] if constant else [source.buffer],
                [target.buffer],
                source=Address(source.buffer, source.offset + moved[0]),
                out=Address(target.buffer, target.offset + moved[1]),
                bytes=run,
                in_blob=int(constant),
                **fields,
            )

    # ---- kernel steps ----------------------------------------------------------------------

    def step(
        self,
        kind: str,
        reads: Sequence[Buffer | View],
        writes: Sequence[Buffer | View | str],
        macs: int = 0,
        constants: int = 0,
        **fields: Any,
    ) -> None:
        """Append a kernel step; fields as in step.h, addresses where memory is meant.

        The first view that is read is ``source``, the first that is written ``out``.
        """
        for name, sides in (("source", reads), ("out", writes)):
            if sides and isinstance(sides[0], View):
                fields.setdefault(name, sides[0].address)
        read, written = ([_buffer(each) for each in sides] for sides in (reads, writes))
        span = self.span
        info = StepInfo(
            kind,
            span.name if span else "",
            str(span.span) if span and span.span else "",
            macs,
            constants,
            span.results[0].type.concrete_shape if span else (),
        )
        self.actions.append(Action(kind, tuple(read), tuple(written), fields, info=info))

    def quantize(
        self, source: int, item: Item, scale: Array | None, bounds: tuple[int, int] = (0, 0)
    ) -> View | None:
        """Write an input of the function into the arena.

        Args:
            source: number of the input.
            scale: float32 factors for all or for axis 1; None for integers, which are copied.
            bounds: of the integers before the storage's zero is added.
        Returns:
            None where the kernel has no such loops.
        """
        view = self.allocate(item)
        given = row_major(item.shape, 1)
        axis = [0] * len(item.shape)
        if scale is not None and scale.size > 1:
            axis[1] = 1
        order = range(len(item.shape))
        loops = merged_axes(tuple(item.shape[a] for a in order), [given, view.strides, tuple(axis)])
        if len(loops) == 2:  # the colours of an image without a border
            loops.insert(1, (1, (0, 0, 0)))
        loops = [(1, (0, 0, 0))] * (3 - len(loops)) + loops
        planes, rows, items = loops[-3:]
        if len(loops) > 3 or (any(axis) and (rows[1][2] or items[1][2] or not planes[1][2])):
            self.actions = [a for a in self.actions if view.buffer not in a.writes]
            return None
        zero = view.buffer.zero
        self.step(
            "quantize",
            [],
            [view],
            input=source,
            rows=rows[0],
            row_items=items[0],
            planes=planes[0],
            out_plane=planes[1][1],
            out_row=rows[1][1],
            out_item=items[1][1],
            scale=0 if scale is None else self.put(scale.astype(np.float32)),
            per_plane=int(any(axis)),
            low=bounds[0],
            high=bounds[1],
            zero=zero,
            type=number(view.buffer.type),
            raw=int(scale is None),
        )
        return view

    def dequantize(self, output: int, view: View, scale: Array | None) -> None:
        """Write an output of the function: integers, or float32 with a factor for each or all."""
        view = self.contiguous(view)
        self.step(
            "dequantize",
            [view],
            [f"output{output}"],  # never left out
            output=output,
            type=number(view.buffer.type),
            zero=view.buffer.zero,
            count=prod(view.shape),
            scale=0 if scale is None else self.put(scale.astype(np.float32)),
            per_item=int(scale is not None and scale.size > 1),
            raw=int(scale is None),
        )

    # ---- host ------------------------------------------------------------------------------

    def new_host(self) -> int:
        """A number for a value that Python keeps."""
        self._hosts += 1
        return self._hosts - 1

    def host(
        self,
        kind: str,
        reads: Sequence[Any],
        writes: Sequence[Any],
        compute: Callable[[list[Array]], list[Array]] | None = None,
        view: View | None = None,
        dtype: str = "",
    ) -> None:
        """Append an action of Python."""
        self.actions.append(
            Action(kind, tuple(reads), tuple(writes), compute=compute, view=view, dtype=dtype)
        )

    # ---- end -------------------------------------------------------------------------------

    def finish(self) -> Plan:
        """The plan: actions that nobody needs left out, memory placed."""
        live: set[Any] = set()
        kept: list[Action] = []
        for action in reversed(self.actions):
            if action.kind == "output" or any(
                w in live or isinstance(w, str) for w in action.writes
            ):
                kept.append(action)
                live.update(action.reads)
        kept.reverse()
        self.kept = kept
        memory = Memory()
        for place, action in enumerate(kept):
            for buffer in (*action.reads, *action.writes):
                if isinstance(buffer, Buffer) and buffer not in self._constants:
                    memory.touch(buffer, place)
        arena = memory.place()
        if arena > MOST_ARENA:
            raise PlanError(
                f"the engine would need {arena / 2**30:.1f} GiB for one run",
                fix='run it with executor="reference", or with a smaller batch',
            )
        rows: list[list[int]] = []
        actions: list[Action | tuple[int, int]] = []
        infos: list[StepInfo] = []
        for action in kept:
            if not action.is_kernel:
                actions.append(action)
                continue
            fields = {name: self._resolved(value) for name, value in action.fields.items()}
            rows.append(row(action.kind, **fields))
            assert action.info is not None
            infos.append(action.info)
            if actions and isinstance(actions[-1], tuple):
                actions[-1] = (actions[-1][0], len(rows))
            else:
                actions.append((len(rows) - 1, len(rows)))
        blob, size = self._blob.array()
        table = np.array(rows, np.int64).reshape(len(rows), row_fields())
        return Plan(
            table,
            blob,
            size,
            arena,
            tuple(actions),
            tuple(infos),
            tuple(v.type for v in self.flow.inputs),
            tuple(v.type for v in self.flow.outputs),
            self._hosts,
        )

    def _resolved(self, value: Any) -> int:
        if isinstance(value, Address):
            return value.buffer.place + value.offset
        if isinstance(value, list):
            numbers = [[self._resolved(v) for v in operation] for operation in value]
            return self.put(np.array(numbers, np.int64))
        return int(value)


def _buffer(place: Buffer | View | str) -> Buffer | str:
    return place.buffer if isinstance(place, View) else place


class Planning(Protocol):
    """A planner as those see it who emit single steps for it."""

    emitter: Emitter
    library: Library

    def materialise(self, item: Item) -> View:
        """The view of a value, computed now if it is not there yet."""
