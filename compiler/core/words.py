"""The integer words, and ``Words``, which writes bodies in them.

An executor, an export or an analysis that knows the words knows every integer operator: what is no
word has a body (``FBody``) beside its definition. Meanings, dtypes and bounds: README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Op
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, integer_range

MOVES: Final = ("reshape", "transpose", "strided_slice", "broadcast_to", "concatenate")
"""Words that hold the elements of their operands and no others."""
WORDS: Final = frozenset(
    (
        # move
        *MOVES,
        "nn.pad",
        # place
        "take",
        "scatter_nd",
        # elementwise
        "add",
        "subtract",
        "multiply",
        "minimum",
        "maximum",
        "floor_divide",
        "less",
        "equal",
        "where",
        "cast",
        "bitwise_and",
        "bitwise_or",
        "right_shift",
        "left_shift",
        "lookup",
        "isqrt",
        # products
        "nn.matmul",
        "nn.batch_matmul",
        "nn.conv2d",
        # reductions and windows
        "sum",
        "max",
        "nn.max_pool2d",
        "argmax",
    )
)
"""Operators of the IR that every integer form computes by itself."""


class Words:
    """The steps of one body, in the order in which they are written.

    Every method takes and gives values; shapes and dtypes are those of numpy, results wrap in their
    dtype. What moves or casts a constant is done here and now.
    """

    def __init__(self, step: Step) -> None:
        self.steps: list[Step] = []
        self._span = step.span

    def word(
        self, name: str, args: Sequence[Value], shape: Any, dtype: str, /, **attrs: Any
    ) -> Value:
        """One step: a word, or an operator with a body of its own."""
        op = Op.get(name)
        made = None if op.attrs_type is None else op.attrs_type(**attrs)
        step = Step(op, made, tuple(args), span=self._span)
        step.results = (Value(TensorType(tuple(int(n) for n in shape), dtype), step),)
        self.steps.append(step)
        return step.results[0]

    # ---- constants and moves ---------------------------------------------------------------

    def constant(self, data: Any, dtype: str) -> Value:
        """A constant; ``data`` are integers that the dtype holds, or that wrap to such."""
        array = np.asarray(data).astype("bool" if dtype == "bool" else dtype)
        return Value(TensorType(array.shape, dtype), data=array)

    def _moved(self, x: Value, data: NDArray[Any]) -> Value:
        return Value(TensorType(data.shape, x.type.dtype), data=np.ascontiguousarray(data))

    def reshape(self, x: Value, shape: Sequence[int]) -> Value:
        """The same elements in row-major order."""
        if shape_of(x) == tuple(shape):
            return x
        if x.data is not None:
            return self._moved(x, x.data.reshape(shape))
        return self.word("reshape", [x], shape, x.type.dtype, newshape=tuple(shape), allowzero=True)

    def transpose(self, x: Value, axes: Sequence[int]) -> Value:
        """Axis k of the result is axis ``axes[k]``."""
        if tuple(axes) == tuple(range(len(axes))):
            return x
        if x.data is not None:
            return self._moved(x, x.data.transpose(axes))
        shape = [shape_of(x)[a] for a in axes]
        return self.word("transpose", [x], shape, x.type.dtype, axes=tuple(axes))

    def slice(self, x: Value, axis: int, begin: int, end: int | None, stride: int = 1) -> Value:
        """Elements of one axis, as Python slices it."""
        size = shape_of(x)[axis]
        start, stop, by = slice(begin, end, stride).indices(size)
        count = len(range(start, stop, by))
        if count == size and by == 1:
            return x
        if stop < 0:  # as an index it would count from the end
            stop = -size - 1
        shape = [count if k == axis else n for k, n in enumerate(shape_of(x))]
        cut: dict[str, Any] = {"begin": (start,), "end": (stop,), "strides": (by,), "axes": (axis,)}
        return self.word("strided_slice", [x], shape, x.type.dtype, slice_mode="end", **cut)

    def broadcast(self, x: Value, shape: Sequence[int]) -> Value:
        """Repeated along axes of size 1, and along new ones in front."""
        if shape_of(x) == tuple(shape):
            return x
        return self.word("broadcast_to", [x], shape, x.type.dtype, shape=tuple(shape))

    def concatenate(self, parts: Sequence[Value], axis: int) -> Value:
        """One behind the other."""
        shape = list(shape_of(parts[0]))
        shape[axis] = sum(shape_of(part)[axis] for part in parts)
        return self.word("concatenate", parts, shape, parts[0].type.dtype, axis=axis)

    def pad(self, x: Value, width: Sequence[tuple[int, int]], value: Value) -> Value:
        """``value`` before and after the elements of each axis; no count is negative."""
        if not any(map(any, width)):
            return x
        shape = [n + a + b for n, (a, b) in zip(shape_of(x), width)]
        pairs = tuple((int(a), int(b)) for a, b in width)
        return self.word("nn.pad", [x, value], shape, x.type.dtype, pad_width=pairs)

    def take(
        self, x: Value, places: Any, axis: int, batch_dims: int = 0, mode: str = "clip"
    ) -> Value:
        """Elements of one axis by number, limited to the axis or counted around it ("wrap").

        Args:
            places: a value, or known integers.
            batch_dims: leading axes that data and places share: none, or all in front of the axis.
        """
        if not isinstance(places, Value):
            places = self.constant(places, "int64")
        shape = shape_of(x)
        found = (*shape[:axis], *shape_of(places)[batch_dims:], *shape[axis + 1 :])
        how = {"axis": axis, "batch_dims": batch_dims, "mode": mode}
        return self.word("take", [x, places], found, x.type.dtype, **how)

    def places(self, shape: Sequence[int], axis: int) -> Value:
        """The number of each element along one axis, in int64."""
        along = [size if k == axis else 1 for k, size in enumerate(shape)]
        return self.broadcast(self.constant(np.arange(shape[axis]).reshape(along), "int64"), shape)

    # ---- elementwise -----------------------------------------------------------------------

    def cast(self, x: Value, dtype: str) -> Value:
        """Wraps; a bool says whether the number is not 0."""
        if x.type.dtype == dtype:
            return x
        if x.data is not None:
            return self.constant(x.data, dtype)
        return self.word("cast", [x], shape_of(x), dtype, dtype=dtype)

    def binary(self, name: str, a: Value, b: Value | int) -> Value:
        """A word of two operands of one dtype, broadcast."""
        if isinstance(b, Value):
            b = b
        else:
            b = self.constant(b, a.type.dtype)
        shape = np.broadcast_shapes(shape_of(a), shape_of(b))
        dtype = "bool" if name in ("less", "equal") else a.type.dtype
        return self.word(name, [a, b], shape, dtype)

    def add(self, a: Value, b: Value | int) -> Value:
        """a + b."""
        return self.binary("add", a, b)

    def subtract(self, a: Value, b: Value | int) -> Value:
        """a - b."""
        return self.binary("subtract", a, b)

    def multiply(self, a: Value, b: Value | int) -> Value:
        """a * b."""
        return self.binary("multiply", a, b)

    def minimum(self, a: Value, b: Value | int) -> Value:
        """The smaller one."""
        return self.binary("minimum", a, b)

    def maximum(self, a: Value, b: Value | int) -> Value:
        """The larger one."""
        return self.binary("maximum", a, b)

    def clip(self, x: Value, low: int, high: int) -> Value:
        """max(min(x, high), low)."""
        return self.maximum(self.minimum(x, high), low)

    def less(self, a: Value, b: Value | int) -> Value:
        """Return whether a < b."""
        return self.binary("less", a, b)

    def equal(self, a: Value, b: Value | int) -> Value:
        """Return whether a = b."""
        return self.binary("equal", a, b)

    def negation(self, x: Value) -> Value:
        """Return whether a bool is false."""
        return self.equal(x, 0)

    def where(self, condition: Value, a: Value, b: Value) -> Value:
        """a where the bool says so, else b."""
        shape = np.broadcast_shapes(*map(shape_of, (condition, a, b)))
        return self.word("where", [condition, a, b], shape, a.type.dtype)

    def mirrored(self, x: Value) -> Value:
        """-1 - x, or the largest value less x: the order of all values turned around."""
        low, high = (0, 1) if x.type.dtype == "bool" else integer_range(x.type.dtype)
        return self.subtract(self.constant(low + high, x.type.dtype), x)

    def truncated(self, x: Value, divisor: Value) -> Value:
        """x / divisor toward zero, for divisors above 0."""
        rest = self.subtract(divisor, 1)
        bump = self.where(self.less(x, 0), rest, self.constant(0, x.type.dtype))
        return self.binary("floor_divide", self.add(x, bump), divisor)

    def isqrt(self, x: Value) -> Value:
        """floor(sqrt(x)) of int64 in [0, 2^62)."""
        return self.word("isqrt", [x], shape_of(x), "int64")

    # ---- reductions ------------------------------------------------------------------------

    def reduce(self, name: str, x: Value, axes: Sequence[int], **attrs: Any) -> Value:
        """ "sum", "max" or "argmax" along axes, which stay with one element."""
        if not axes and name != "argmax":
            return x
        shape = [1 if k in axes else n for k, n in enumerate(shape_of(x))]
        dtype = attrs.get("dtype", x.type.dtype)
        return self.word(name, [x], shape, dtype, axis=tuple(axes), keepdims=True, **attrs)


def shape_of(x: Value) -> tuple[int, ...]:
    """Elements per axis."""
    return x.type.concrete_shape


Body = Callable[[Step, Words], Value | Sequence[Value] | None]
"""``body(step, words)``: the results of an operator, written in words; None where the step is a
word as it stands, or has no integer meaning."""

FBody: OpRule[Body] = OpRule("FBody", asked_by="core.legalize")


def operand(step: Step, words: Words) -> Value:
    """The body of what changes no integer."""
    return step.args[0]


def reshaped(step: Step, words: Words) -> Value:
    """The body of what gives the same elements another shape."""
    return words.reshape(step.args[0], shape_of(step.results[0]))
