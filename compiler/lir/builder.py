"""TensorView and LirBuilder: what lowering rules build loops with.

    x = TensorView of a buffer
    y = TensorView.of(x.shape, lambda at: Bin("*", x.at(at), x.at(at)))      nothing is emitted
    s = builder.reduce((n,), Reduction("sum", zero), [("j", k)], lambda at, r: y.at((*at, *r)))

A view holds its expression over loop variables of its own, so ``at`` is a substitution and a chain
of 256 views needs no deep call stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compiler.errors import LoweringError
from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.lowered_function import Array
from compiler.lir.index import imm
from compiler.lir.nodes import Block, Combiner, Compute, Extern
from compiler.lir.scalars import (
    INDEX_DTYPE,
    TRANSCENDENTAL,
    Acc,
    Axis,
    Buffer,
    Cast,
    Intrin,
    Load,
    Scalar,
)
from compiler.lir.walk import loads, post_order, with_axes

Indices = Sequence[Scalar]
PointBody = Callable[[tuple[Scalar, ...]], Scalar]
"""``body(indices)``: the value at one point."""
ReductionBody = Callable[[tuple[Scalar, ...], tuple[Scalar, ...]], Scalar]
"""``body(indices, reduction indices)``."""

AXIS_NAMES = "ijklmnpquvwabdefgh"
RECOMPUTED_COST = 8
"""A view used more than once is stored when an element takes more operations than this."""
REREAD = 4
"""A transcendental read more often than this inside a reduction is stored."""


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """Way in which a reduction combines values.

    Attributes:
        combiner: of COMBINERS.
        init: the accumulator's first value; its dtype is that of the accumulator.
        post: ``post(acc, indices)`` is stored in place of the accumulator.
        dtype: of the result; None is that of the accumulator (after ``post``).
    """

    combiner: Combiner
    init: Scalar
    post: Callable[[Scalar, tuple[Scalar, ...]], Scalar] | None = None
    dtype: str | None = None


def axes_named(names: Sequence[str], shape: Sequence[int]) -> tuple[Axis, ...]:
    """One loop variable per axis."""
    return tuple(Axis(name, extent) for name, extent in zip(names, shape))


def at_own_point(indices: Indices, axes: Sequence[Axis]) -> bool:
    """True when the indices are these loop variables, in order."""
    return len(indices) == len(axes) and all(
        isinstance(index, Axis) and index.name == axis.name for index, axis in zip(indices, axes)
    )


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class TensorView:
    """A tensor that need not be stored: an expression over loop variables.

    Attributes:
        axes: one per axis of the tensor.
        expr: the element at ``axes``.
        buffer: the buffer whose content this is, element by element, if there is one.
    """

    axes: tuple[Axis, ...]
    expr: Scalar
    buffer: Buffer | None = None

    @staticmethod
    def of(shape: Sequence[int], body: PointBody) -> TensorView:
        """The tensor whose element at ``indices`` is ``body(indices)``."""
        axes = axes_named(AXIS_NAMES, shape)
        return TensorView(axes, body(axes))

    @staticmethod
    def of_buffer(buffer: Buffer) -> TensorView:
        """The content of a buffer."""
        axes = axes_named(AXIS_NAMES, buffer.shape)
        return TensorView(axes, Load(buffer, axes), buffer)

    @property
    def shape(self) -> tuple[int, ...]:
        """Elements per axis."""
        return tuple(axis.extent for axis in self.axes)

    @property
    def dtype(self) -> str:
        """Dtype of an element."""
        return self.expr.dtype

    @property
    def cost(self) -> int:
        """Operations an element takes."""
        if self.buffer is not None:
            return 0
        return self.expr.operations

    def at(self, indices: Indices) -> Scalar:
        """The element at ``indices``, one index expression per axis."""
        if len(indices) != len(self.axes):
            raise LoweringError(f"{len(indices)} indices for a tensor of rank {len(self.axes)}")
        if at_own_point(indices, self.axes):
            return self.expr
        return with_axes(self.expr, self.axes, indices)

    def broadcast_at(self, indices: Indices) -> Scalar:
        """The element that numpy's broadcasting reads at ``indices`` of a larger shape."""
        own = indices[len(indices) - len(self.axes) :]
        return self.at([_within(axis, index) for axis, index in zip(self.axes, own)])

    def cast(self, dtype: str) -> TensorView:
        """Every element in another dtype; itself where it is that already."""
        if dtype == self.dtype:
            return self
        return TensorView(self.axes, Cast(dtype, self.expr))

    def has_transcendental(self) -> bool:
        """True when computing an element calls one of TRANSCENDENTAL."""
        return any(
            isinstance(node, Intrin) and node.name in TRANSCENDENTAL
            for node in post_order(self.expr)
        )


def _within(axis: Axis, index: Scalar) -> Scalar:
    # A loop of one step may stay: only a longer one has to be kept out of an axis of size 1.
    single = isinstance(index, Axis) and index.extent == 1
    if axis.extent == 1 and not single:
        return imm(0)
    return index


class LirBuilder:
    """Collects the blocks and buffers of one function."""

    def __init__(self) -> None:
        self.blocks: list[Block] = []
        self.temps: list[Buffer] = []
        self.consts: list[tuple[Buffer, Array]] = []
        self._sums: set[str] = set()
        self._constants: dict[int, tuple[Array, TensorView]] = {}

    def temp(self, shape: Sequence[int], dtype: str) -> Buffer:
        """A new buffer that lives during one call."""
        made = Buffer(f"t{len(self.temps)}", tuple(shape), dtype, "temp")
        self.temps.append(made)
        return made

    def constant(self, array: Array) -> TensorView:
        """A read-only array of the function; the same array object is held once."""
        held = self._constants.get(id(array))
        if held is None:
            made = Buffer(f"c{len(self.consts)}", array.shape, str(array.dtype), "const")
            self.consts.append((made, array))
            # The array beside its view: an id may be used again once its object is gone.
            held = self._constants[id(array)] = (array, TensorView.of_buffer(made))
        return held[1]

    def store(self, view: TensorView) -> TensorView:
        """The view in a buffer: itself when it is one already, else a block that fills a temp."""
        if view.buffer is not None:
            return view
        made = self.temp(view.shape, view.dtype)
        self.blocks.append(Compute(made, view.axes, view.expr, view.axes))
        return TensorView.of_buffer(made)

    def reusable(self, view: TensorView) -> TensorView:
        """The view for a rule that reads an element more than once: stored if that takes work."""
        if view.cost > RECOMPUTED_COST:
            return self.store(view)
        return view

    def for_reduction(self, view: TensorView, reads: int) -> TensorView:
        """The view for a reduction that reads each element ``reads`` times."""
        if reads > REREAD and view.has_transcendental():
            return self.store(view)
        return view

    def finished(self, view: TensorView) -> TensorView:
        """The view for an operator with loops of its own: an epilogue so far is stored.

        It joins the reduction it finishes, whose wider sums then need no buffer.
        """
        if view.buffer is None and any(
            load.buffer.name in self._sums
            and load.buffer.shape == view.shape
            and at_own_point(load.index, view.axes)
            for load in loads(view.expr)
        ):
            return self.store(view)
        return view

    def reduce(
        self,
        shape: Sequence[int],
        reduction: Reduction,
        raxes: Sequence[tuple[str, int]],
        body: ReductionBody,
        *,
        names: Sequence[str] = AXIS_NAMES,
    ) -> TensorView:
        """One reduction block into a temp.

        Args:
            shape: of the result; one loop per axis.
            reduction: how values are combined.
            raxes: name and extent of the reduction loops.
            body: what is combined.
            names: of the loop variables.
        """
        axes = axes_named(names, shape)
        return self.reduce_into(shape, axes, axes, reduction, raxes, body)

    def reduce_into(
        self,
        shape: Sequence[int],
        axes: tuple[Axis, ...],
        out_index: tuple[Scalar, ...],
        reduction: Reduction,
        raxes: Sequence[tuple[str, int]],
        body: ReductionBody,
    ) -> TensorView:
        """``reduce`` with loops that differ from the axes of the result.

        Args:
            axes: the loops.
            out_index: where the point at ``axes`` goes, one index per axis of ``shape``.
        """
        combiner = reduction.combiner
        init = reduction.init
        post = reduction.post
        inner = tuple(Axis(name, extent) for name, extent in raxes)
        acc = Acc(INDEX_DTYPE if combiner in ("argmax", "argmin") else init.dtype)
        end = None if post is None else post(acc, axes)
        made = self.temp(shape, reduction.dtype or (acc if end is None else end).dtype)
        block = Compute(made, axes, body(axes, inner), out_index, inner, combiner, init, end)
        self.blocks.append(block)
        self._sums.add(made.name)
        return TensorView.of_buffer(made)

    def extern(
        self,
        symbol: str,
        inputs: Sequence[TensorView],
        outs: Sequence[tuple[Sequence[int], str]],
        attrs: Mapping[str, Any] | None = None,
    ) -> list[TensorView]:
        """A library routine on stored inputs; its results are stored views.

        Args:
            symbol: of ``compiler.lir.routines``.
            inputs: stored first where they are not.
            outs: shape and dtype per result.
            attrs: numbers, strings, bools and tuples of them.
        """
        ins = tuple(self.store(view).buffer for view in inputs)
        made = tuple(self.temp(shape, dtype) for shape, dtype in outs)
        held = DictAttrs(attrs) if attrs else NO_ATTRS
        self.blocks.append(Extern(symbol, tuple(b for b in ins if b), made, held))
        return [TensorView.of_buffer(b) for b in made]
