"""What planning knows of every value: its bounds, and how it is computed.

Dtypes do not matter to kernels: a value is stored in the narrowest type that holds its bounds, and
a cast that changes no value is no work. Bounds hold for every input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.dataflow import Step
from compiler.ops.tensor.fixed_point_multiply import scaled
from compiler.targets.engine.views import Shape, View

Array = NDArray[Any]

INT32 = (-(1 << 31), (1 << 31) - 1)


@dataclass(slots=True, eq=False)
class Item:
    """A value.

    Attributes:
        shape: elements per axis.
        low, high: bounds.
        data: of a constant.
        view: where it lies, once it was computed.
        chain: the elementwise operator that computes it, not yet run.
        product: the product that computes it, not yet run.
        uses: how often it is read.
        host: number under which Python keeps it, where no kernel can.
        readers: the steps that read it.
        border: what lies around it in memory: elements before and after every axis, their value.
        is_wide: a kernel writes it as int32, however small its bounds are.
        image_layout: where an operator on images computes it: "NCHW".
        waiting: elementwise operators behind ``chain`` that have not run.
    """

    shape: Shape
    low: int
    high: int
    data: Array | None = None
    view: View | None = None
    chain: Chain | None = None
    product: Product | None = None
    uses: int = 0
    host: int | None = None
    readers: list[Step] = field(default_factory=list)
    image_layout: str = ""
    border: tuple[tuple[tuple[int, int], ...], int] | None = None
    is_wide: bool = False
    waiting: int = 0

    @property
    def is_stored_type(self) -> bool:
        """Whether a buffer can hold it."""
        return INT32[0] <= self.low and self.high <= INT32[1]

    @property
    def storage(self) -> tuple[str, int]:
        """Type and zero of the buffer that holds it."""
        if self.is_wide:
            return "S32", 0
        if self.low >= 0 and self.high <= 255:
            return "U8", 0
        if self.low >= -128 and self.high <= 127:
            return "U8", 128
        if self.low >= -(1 << 15) and self.high < 1 << 15:
            return "S16", 0
        return "S32", 0


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """An elementwise operator.

    Attributes:
        op: "ADD", "SUB", "MUL", "MIN", "MAX", "CLIP", "RESCALE", "SHIFT".
        args: operands, broadcast to the result's shape.
        params: CLIP: (low, high); SHIFT: bits to the right; RESCALE: (multiplier, shift, axis or
            None).
    """

    op: str
    args: tuple[Item, ...]
    params: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A convolution, dense layer or matrix product.

    Attributes:
        emit: writes its steps; takes the item to store into and what happens to the sums.
        channel_axis: axis of the result along which weights differ.
        low, high: bounds of the sums a channel.
        takes_bias: a constant may be added to the sums.
    """

    emit: Callable[[Item, Epilogue], View]
    channel_axis: int
    low: Array
    high: Array
    takes_bias: bool = True


@dataclass(slots=True, eq=False)
class Epilogue:
    """out = clip(rescale(sum + bias)), integers; see qk_requantize."""

    bias: Array
    multiplier: Array | None = None
    shift: Array | None = None
    bits: int = 0
    added: int = 0
    low: int = INT32[0]
    high: int = INT32[1]


def chain_bounds(op: str, args: Sequence[Item], params: tuple[Any, ...]) -> tuple[int, int]:
    """Bounds of an elementwise operator, before any wrap."""
    a = args[0]
    if op == "CLIP":
        low, high = params
        return max(min(a.low, high), low), max(min(a.high, high), low)
    if op == "SHIFT":
        return a.low >> params[0], a.high >> params[0]
    if op == "RESCALE":
        multiplier, shift, _ = params
        ends = [rescaled(x, multiplier, shift) for x in (a.low, a.high)]
        return min(e.min() for e in ends), max(e.max() for e in ends)
    b = args[1]
    if op == "ADD":
        return a.low + b.low, a.high + b.high
    if op == "SUB":
        return a.low - b.high, a.high - b.low
    if op == "MIN":
        return min(a.low, b.low), min(a.high, b.high)
    if op == "MAX":
        return max(a.low, b.low), max(a.high, b.high)
    ends_of = [x * y for x in (a.low, a.high) for y in (b.low, b.high)]
    return min(ends_of), max(ends_of)


def rescaled(x: int, multiplier: Array, shift: Array) -> Any:
    """floor(x * multiplier * 2^(shift - 31) + 1/2) of one x, exactly, an int a factor."""
    made = []
    for m, s in set(zip(multiplier.tolist(), shift.tolist())):
        right = 31 - s
        if right <= 0:
            made.append((x * m) << -right)
        else:
            made.append((x * m + (1 << (right - 1))) >> right)
    return np.array(made, object)


def compute_chain(chain: Chain, arrays: Sequence[Array]) -> Array:
    """The operator on int64 arrays; the meaning of the programs, for chains that have none."""
    if chain.op == "CLIP":
        low, high = chain.params
        return np.asarray(np.maximum(np.minimum(arrays[0], high), low))
    if chain.op == "SHIFT":
        return np.asarray(arrays[0] >> chain.params[0])
    if chain.op == "RESCALE":
        multiplier, shift, axis = chain.params
        places = [1] * arrays[0].ndim
        if axis is not None:
            places[axis] = -1
        factor = multiplier.reshape(places), shift.reshape(places)
        return np.asarray(scaled(arrays[0], *factor))
    functions = {
        "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "MIN": np.minimum, "MAX": np.maximum
    }  # fmt: skip
    return np.asarray(functions[chain.op](arrays[0], arrays[1]))


def is_integer(dtype: str) -> bool:
    """Whether a dtype holds integers that buffers may hold."""
    return dtype in (
        "int4",
        "uint4",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
    )
