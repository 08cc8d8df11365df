"""Facts of planning about every value: its bounds, and the operator that computes it.

Dtypes do not matter to kernels: a value is stored in the narrowest type that holds its bounds, and
a cast that changes no value is no work. Bounds hold for every input.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import isqrt
from typing import Any, Final

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.lir.ranges import arithmetic_range
from compiler.ops.number_format import Array
from compiler.targets.engine.views import Shape, View

INT32 = (-(1 << 31), (1 << 31) - 1)
INT64 = (-(1 << 63), (1 << 63) - 1)
RAW_DTYPES: Final = {
    "bool": ("U8", 0),
    "int4": ("U8", 128),
    "uint4": ("U8", 0),
    "int8": ("U8", 128),
    "uint8": ("U8", 0),
    "int16": ("S16", 0),
    "uint16": ("S16", 0),
    "int32": ("S32", 0),
    "uint32": ("S32", 0),
    "float32": ("S32", 0),
    "int64": ("S64", 0),
}
"""Dtypes of inputs and outputs, and the type and zero of what their bytes are copied to."""


_ARITHMETIC: Final = {"ADD": "+", "SUB": "-", "MUL": "*", "MIN": "min", "MAX": "max"}


@dataclass(slots=True, eq=False)
class Item:
    """A value; a float32 is the integer that its bits are.

    Attributes:
        shape: elements per axis.
        low, high: bounds.
        data: of a constant.
        view: where it lies, once it was computed.
        chain: the elementwise operator that computes it, not yet run.
        product: the product that computes it, not yet run.
        uses: how often it is read.
        readers: the steps that read it.
        border: what lies around it in memory: elements before and after every axis, their value.
        stored: type and zero of its buffer, where a kernel or a reader decides them; None for the
            smallest that holds the bounds.
        image_layout: where an operator on images computes it: "NCHW".
        depth: elementwise operators behind each other that wait to be run.
    """

    shape: Shape
    low: int
    high: int
    data: Array | None = None
    view: View | None = None
    chain: Chain | None = None
    product: Product | None = None
    uses: int = 0
    readers: list[Step] = field(default_factory=list)
    image_layout: str = ""
    border: tuple[tuple[tuple[int, int], ...], int] | None = None
    stored: tuple[str, int] | None = None
    depth: int = 0

    def as_scalar(self) -> Item:
        """A constant of equal elements as one element."""
        if self.data is None or not self.shape or self.low != self.high:
            return self
        return Item((), self.low, self.high, data=np.array(self.low, np.int64))

    @property
    def bounds(self) -> tuple[int, int]:
        """The least and the largest value."""
        return self.low, self.high

    @property
    def fits_int32(self) -> bool:
        """Return whether fast kernels can hold it."""
        return INT32[0] <= self.low and self.high <= INT32[1]

    @property
    def storage(self) -> tuple[str, int]:
        """Type and zero of the buffer that holds it."""
        if self.stored is not None:
            return self.stored
        if self.low >= 0 and self.high <= 255:
            return "U8", 0
        if self.low >= -128 and self.high <= 127:
            return "U8", 128
        if self.low >= -(1 << 15) and self.high < 1 << 15:
            return "S16", 0
        if self.fits_int32:
            return ("S32", 0)
        return ("S64", 0)


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """An elementwise operator.

    Attributes:
        op: "ADD", "SUB", "MUL", "MIN", "MAX", "CLIP", "RESCALE", "SHIFT", "TO_EVEN", "TABLE" have
            fast kernels, the last one no other; "AND", "OR", "LEFT", "RIGHT", "LESS", "EQUAL",
            "FLOORED", "ROOT", "SELECT", "WRAP" are those of general.h, and for floats "FADD",
            "FSUB", "FMUL", "FMIN", "FMAX", "FROUND", "FEVEN", "TO_REAL", "TO_INT".
        args: operands, broadcast to the result's shape.
        params: CLIP: (low, high); SHIFT: bits to the right; RESCALE: (multiplier, shift, axis or
            None); TO_EVEN: (bits to the right, axis or None); TABLE: entries, where the last
            bits of an operand say; WRAP: the dtype; TO_INT: the dtype,
            and bounds that are known.
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
    """out = clip(scale(sum + bias) + added), integers; see qk_requantize.

    ``scale`` is a RESCALE, a SHIFT or a TO_EVEN. ``low`` and ``high`` are for all channels, or for
    each of them.
    """

    bias: Array
    scale: Chain | None = None
    added: int = 0
    low: Array = field(default_factory=lambda: np.array(INT32[0]))
    high: Array = field(default_factory=lambda: np.array(INT32[1]))


def constant(value: int) -> Item:
    """One integer, for every element."""
    return Item((), value, value, data=np.array(value, np.int64))


def constants(data: Array) -> Item:
    """Integers that broadcast to the other operands."""
    if not data.size:
        return Item(data.shape, 0, 0, data=data)
    return Item(data.shape, int(data.min()), int(data.max()), data=data)


def spread(item: Item, shape: tuple[int, ...]) -> Item:
    """An item broadcast to a shape; constants stay as they are."""
    if item.data is not None or item.shape == shape:
        return item
    chain = Chain("ADD", (item, constant(0)))
    return Item(shape, item.low, item.high, chain=chain, uses=1, depth=item.depth + 1)


def chain_bounds(op: str, args: Sequence[Item], params: tuple[Any, ...]) -> tuple[int, int]:
    """Bounds of an elementwise operator, before any wrap."""
    a = args[0]
    if op == "CLIP":
        low, high = params
        return max(min(a.low, high), low), max(min(a.high, high), low)
    if op == "TABLE":
        return int(params[0].min()), int(params[0].max())
    if op == "SHIFT":
        return a.low >> params[0], a.high >> params[0]
    if op == "RESCALE":
        multiplier, shift, _ = params
        right = 31 - shift.astype(np.int64)
        if -INT32[0] >= max(-a.low, a.high) and right.min() > 0 and right.max() <= 62:
            wide = np.array([[a.low], [a.high]]) * multiplier.astype(np.int64)
            scaled = (wide + (np.int64(1) << (right - 1))) >> right
            return int(scaled.min()), int(scaled.max())
        factors = set(zip(multiplier.tolist(), shift.tolist()))
        ends = [rescaled(x, m, s) for x in (a.low, a.high) for m, s in factors]
        return min(ends), max(ends)
    if op == "TO_EVEN":
        bits = params[0].tolist()
        return min(to_even(a.low, n) for n in bits), max(to_even(a.high, n) for n in bits)
    if op == "ROOT":
        return isqrt(max(a.low, 0)), isqrt(max(a.high, 0))
    if (op[0] == "F" and op != "FLOORED") or op == "TO_REAL":
        return INT32
    if op == "TO_INT":
        return params[1:]
    if op == "WRAP":
        if params[0] == "bool":
            return (0, 1)
        return integer_range(params[0])
    b = args[1]
    if (found := arithmetic_range(_ARITHMETIC.get(op, op), a.bounds, b.bounds)) is not None:
        return found
    if op == "LESS":
        return int(a.high < b.low), int(a.low < b.high)
    if op == "EQUAL":
        return int(a.low == a.high == b.low == b.high), int(a.low <= b.high and b.low <= a.high)
    if op == "SELECT":
        other = args[2]
        return min(b.low, other.low), max(b.high, other.high)
    if op == "FLOORED":
        divisors = {b.low, b.high, *(n for n in (-1, 1) if b.low <= n <= b.high)} - {0}
        ends = [end // divisor for end in a.bounds for divisor in divisors]
        ends += [0] if b.low <= 0 <= b.high else []
        return min(ends), max(ends)
    if op in ("AND", "OR"):
        if op == "AND" and max(a.low, b.low) >= 0:
            return 0, min(x.high for x in (a, b) if x.low >= 0)
        bits = max(abs(x).bit_length() for x in (a.low, a.high, b.low, b.high))
        return (0 if min(a.low, b.low) >= 0 else -(1 << bits)), (1 << bits) - 1
    bits = b.low & 63, b.high & 63
    shifted = [x << n if op == "LEFT" else x >> n for x in a.bounds for n in bits]
    return min(shifted), max(shifted)


def rescaled(x: int, multiplier: int, shift: int) -> int:
    """floor(x * multiplier * 2^(shift - 31) + 1/2), exactly."""
    right = 31 - shift
    if right <= 0:
        return (x * multiplier) << -right
    return (x * multiplier + (1 << (right - 1))) >> right


def to_even(x: int, bits: int) -> int:
    """x * 2^-bits, halves to the even neighbour."""
    return (x + below_half(bits) + (x >> bits & (bits > 0))) >> bits


def below_half(bits: int) -> int:
    """Half of the last place less one; 0 for no bits."""
    if bits:
        return (1 << bits - 1) - 1
    return 0


def is_integer(dtype: str) -> bool:
    """Return whether a dtype holds integers that buffers may hold."""
    return dtype in RAW_DTYPES and dtype != "float32"


def bits_of(array: Array) -> Array:
    """Integers as they are; the bits of float32."""
    if array.dtype == np.float32:
        return np.asarray(array, order="C").view(np.int32)
    return array
