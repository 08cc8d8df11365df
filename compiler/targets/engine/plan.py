"""The plan of a module: kernel steps, constants and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

import numpy as np

from compiler.errors import PlanError
from compiler.ir.dataflow import Dataflow, Step
from compiler.ir.ty import TensorType
from compiler.ops.number_format import Array
from compiler.targets.c.memory_plan import Lifetime, plan_memory
from compiler.targets.engine.layouts import MOST_IMAGES, axis_order, wanted_padding
from compiler.targets.engine.library import Library
from compiler.targets.engine.steps import Blob, number, row, row_fields
from compiler.targets.engine.values import Item
from compiler.targets.engine.views import (
    ALIGN,
    Address,
    Buffer,
    Shape,
    View,
    compact,
    merged_axes,
    positions,
    row_major,
)

MOST_ARENA: Final = 1 << 30
"""Bytes of one run; bytes of padding and scratch can be many times those of the values."""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Facts of a kernel step for people.

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


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """A kernel step.

    Attributes:
        kind: a step of step.h.
        reads, writes: buffers; an output by its name.
        fields: of the step, with addresses.
    """

    kind: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer | str, ...]
    fields: dict[str, Any]
    info: StepInfo


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """Steps, buffers and constants of an executor.

    Attributes:
        rows: the step table, [steps, QK_FIELDS] int64.
        blob, blob_bytes: constants, and their bytes without the slack.
        arena_bytes: memory of one run.
        infos: of every step.
        input_types, output_types: of the function.
    """

    rows: Array
    blob: Array
    blob_bytes: int
    arena_bytes: int
    infos: tuple[StepInfo, ...]
    input_types: tuple[TensorType, ...]
    output_types: tuple[TensorType, ...]


class Emitter:
    """Collects ``actions``; ``finish`` makes a plan of those that are needed: ``kept``.

    ``turns`` is how often the steps to come are run.
    """

    def __init__(self, library: Library, flow: Dataflow) -> None:
        self.library = library
        self.flow = flow
        self.actions: list[Action] = []
        self.kept: list[Action] = []
        self.span: Step | None = None
        self.turns = 1
        self.copies: set[Buffer] = set()
        self._blob = Blob()
        self._constants: set[Buffer] = set()

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
        """Return whether the view lies in the blob."""
        return view.buffer in self._constants

    def type_of(self, view: View) -> int:
        """The number of its type, and 16 where it lies in the blob."""
        return number(view.buffer.type) | (16 if self.is_constant(view) else 0)

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
        if any(map(any, pads)):
            item.border = (tuple(pads), value)
        else:
            item.border = None
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
        whole = compact(storage, tuple(n + sum(pair) for n, pair in zip(shape, pads)), order)
        buffer = whole.buffer
        strides = whole.strides
        start = sum(before * stride for (before, _), stride in zip(pads, strides))
        view = View(buffer, start, shape, strides)
        if any(map(any, pads)):
            (top, bottom), (left, right) = pads[order[1]], pads[order[2]]
            image, line, pixel = (strides[axis] for axis in order[:3])
            for number_of in range(shape[order[0]]):
                self.step(
                    "fill",
                    [],
                    [buffer],
                    out=Address(buffer, number_of * image),
                    height=shape[order[1]],
                    row_bytes=shape[order[2]] * pixel,
                    row_pitch=line,
                    top=top,
                    bottom=bottom,
                    left=left * pixel,
                    right=right * pixel,
                    value=byte,
                )
        return view

    def contiguous(self, view: View, always: bool = False, order: Shape | None = None) -> View:
        """The view with its elements one behind the other, by default in row-major order."""
        if view.is_row_major and not always:
            return view
        made = compact(view.buffer.storage, view.shape, order)
        self.copy(view, made)
        self.copies.add(made.buffer)
        return made

    def copy(self, source: View, target: View) -> None:
        """Copy elements; both views have one shape and one type."""
        order = target.axis_order
        s = source.permuted(order)
        t = target.permuted(order)
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
        read = tuple(each.buffer if isinstance(each, View) else each for each in reads)
        written = tuple(each.buffer if isinstance(each, View) else each for each in writes)
        span = self.span
        info = StepInfo(
            kind,
            span.name if span else "",
            str(span.span) if span and span.span else "",
            macs * self.turns,
            constants,
            span.results[0].type.concrete_shape if span else (),
        )
        self.actions.append(Action(kind, read, written, fields, info))

    def quantize(
        self,
        source: int,
        view: View,
        scale: Array | None = None,
        axis: int = 0,
        bounds: tuple[int, int] = (0, 0),
        offset: int = 0,
    ) -> bool:
        """Write an input of the function into the arena, a view of the input's shape.

        Args:
            source: number of the input.
            scale: float32 factors for all or for one axis; None for integers, which are copied.
            bounds: of the integers before the storage's zero is added.
            offset: of them, added behind the rounding; NaN gives 0.
        Returns:
            Whether the kernel has such loops.
        """
        scaled = scale is not None and scale.size > 1
        places = tuple(int(scaled and a == axis) for a in range(len(view.shape)))
        loops = merged_axes(view.shape, [row_major(view.shape, 1), view.strides, places])
        if len(loops) == 2:  # the colours of an image without a border
            loops.insert(1, (1, (0, 0, 0)))
        loops = [(1, (0, 0, 0))] * (3 - len(loops)) + loops
        planes, rows, items = loops[-3:]
        if scaled and (len(loops) > 3 or rows[1][2] or items[1][2] or not planes[1][2]):
            return False
        if len(loops) > 3:
            made = compact(view.buffer.storage, view.shape)
            self.quantize(source, made, scale, axis, bounds, offset)
            self.copy(made, view)
            return True
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
            per_plane=int(scaled),
            low=bounds[0] - offset,
            high=bounds[1] - offset,
            zero=zero + offset,
            none=-offset,
            type=number(view.buffer.type),
            raw=int(scale is None),
        )
        return True

    def dequantize(self, output: int, view: View, scale: Array | None) -> None:
        """Write an output of the function: integers, or float32 with a factor for each or all."""
        view = self.contiguous(view, always=self.is_constant(view))
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

    # ---- end -------------------------------------------------------------------------------

    def finish(self) -> Plan:
        """The plan: actions that nobody needs left out, memory placed."""
        live: set[Any] = set()
        kept: list[Action] = []
        for action in reversed(self.actions):
            if any(w in live or isinstance(w, str) for w in action.writes):
                kept.append(action)
                live.update(action.reads)
        kept.reverse()
        self.kept = kept
        begun = {last: first for first, last in _loops(kept)}
        arena = self._placed(kept, begun)
        if arena > MOST_ARENA:
            raise PlanError(
                f"the engine would need {arena / 2**30:.1f} GiB for one run",
                fix='run it with executor="reference", or with a smaller batch',
            )
        rows: list[list[int]] = []
        for place, action in enumerate(kept):
            fields = {name: self._resolved(value) for name, value in action.fields.items()}
            if place in begun:
                fields["rows"] = place - begun[place]
            rows.append(row(action.kind, **fields))
        blob, size = self._blob.array()
        table = np.array(rows, np.int64).reshape(len(rows), row_fields())
        return Plan(
            table,
            blob,
            size,
            arena,
            tuple(action.info for action in kept),
            tuple(v.type for v in self.flow.inputs),
            tuple(v.type for v in self.flow.outputs),
        )

    def _placed(self, actions: Sequence[Action], begun: Mapping[int, int]) -> int:
        """Give every buffer its place, and return the bytes of the arena.

        Args:
            begun: where each loop begins, by its end. What lives across an end of a loop lives as
                long as the loop, whose steps are run again.
        """
        spans: dict[Buffer, tuple[int, int]] = {}
        for place, action in enumerate(actions):
            for buffer in (*action.reads, *action.writes):
                if isinstance(buffer, Buffer) and buffer not in self._constants:
                    spans[buffer] = spans.get(buffer, (place,))[0], place
        for last, first in begun.items():
            for buffer, (begin, end) in spans.items():
                if end >= first and begin <= last and (begin < first or end > last):
                    spans[buffer] = min(begin, first), max(end, last)
        plan = plan_memory([Lifetime(b.size, *span) for b, span in spans.items()], ALIGN)
        for buffer, offset in zip(spans, plan.offsets):
            buffer.place = offset
        return -(-plan.arena_bytes // ALIGN) * ALIGN

    def _resolved(self, value: Any) -> int:
        if isinstance(value, Address):
            return value.buffer.place + value.offset
        if isinstance(value, list):
            numbers = [[self._resolved(v) for v in operation] for operation in value]
            return self.put(np.array(numbers, np.int64))
        return int(value)


def _loops(actions: Sequence[Action]) -> Iterator[tuple[int, int]]:
    """Places where each loop begins and ends."""
    begun = 0
    for place, action in enumerate(actions):
        if action.kind == "loop":
            begun = place
        elif action.kind == "repeat":
            yield begun, place


class Planning(Protocol):
    """A planner as those see it who emit single steps for it."""

    emitter: Emitter
    library: Library

    def materialise(self, item: Item) -> View:
        """The view of a value, computed now if it is not there yet."""
