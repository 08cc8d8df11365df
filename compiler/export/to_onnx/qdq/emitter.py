"""The emitter of QDQ files: integers in 8 bits, and sums of them that wait for their
requantization.

A QDQ graph computes in float between DequantizeLinear and QuantizeLinear, and a runtime replaces
such groups by 8 bit kernels. The unit of every tensor is the module's own integer: a tensor of 8
bits is dequantized with scale 1, and a requantization multiplies the scales of the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.export.to_onnx.integer.emitter import IntegerEmitter
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import OP
from compiler.ops.rules.float_product import EXACT
from compiler.ranges.analysis import RangeContext

Floats = NDArray[np.float64]

LEVELS = 256
_NARROW = ("int8", "uint8")
_SIGNED_TOP = 127
_OF_A_LEVEL = 1e-6
"""Share of a level by which an addend may miss a whole number of levels."""
_ONE = 64
"""Weight of a product by 1, of 7 bits."""
_WIDENED = 32
"""Sums of sums before one of them becomes a tensor: the text of a chain is written once."""


@dataclass(frozen=True, slots=True, eq=False)
class Quantized:
    """An 8 bit tensor: (element - zero_point) * scale is the integer, or near it."""

    name: str
    zero_point: int
    scale: float
    dtype: str

    @property
    def range(self) -> tuple[float, float]:
        """Smallest and largest integer that it can hold."""
        least, most = integer_range(self.dtype)
        return (least - self.zero_point) * self.scale, (most - self.zero_point) * self.scale

    def moved(self, addend: Floats) -> Quantized | None:
        """The same elements for the integers with a constant added; None where no zero point is."""
        if addend.size != 1:
            return None
        zero = self.zero_point - float(addend.reshape(())) / self.scale
        least, most = integer_range(self.dtype)
        fits = zero.is_integer() and least <= zero <= most and self.zero_point != 0
        if fits:
            return replace(self, zero_point=int(zero))
        return None


Write = Callable[[Floats, Floats | None], str]
"""``write(scale, addend)`` writes (value + addend) * scale as a float tensor; both broadcast
against the value, of whose leading axes they may leave out some."""


@dataclass(frozen=True, slots=True, eq=False)
class Real:
    """(value + addend) * scale, to be written once its reader is known.

    Attributes:
        write: writes the value.
        clip: limits that were asked for and are not written yet, in units of the result.
        depth: sums of sums that it is made of.
        written: tensors by what they are multiplied by; equal ones are shared.
        settled: the 8 bit tensors made of it, by their limits.
    """

    write: Write
    scale: Floats
    addend: Floats | None = None
    clip: tuple[float, float] | None = None
    depth: int = 0
    written: dict[tuple[bytes, tuple[int, ...]], str] = field(default_factory=dict)
    settled: dict[tuple[int, int], Quantized] = field(default_factory=dict)
    source: str | None = None
    """A float tensor that ``scale`` makes the value of."""
    tensor: Quantized | None = None
    """An 8 bit tensor whose integers ``scale`` makes the value of."""
    like: Quantized | None = None
    """An 8 bit tensor whose zero point and scale the result shall have."""

    @staticmethod
    def of(write: Write, depth: int = 0) -> Real:
        """The value itself."""
        return Real(write, np.ones(()), depth=depth)

    def _changed(self, **fields: Any) -> Real:
        forgotten = dict.fromkeys(("source", "tensor", "like"))
        return replace(self, **{**forgotten, **fields}, written={}, settled={})

    def times(self, factor: Array | float) -> Real:
        """Multiplied by positive numbers; there is no limit to be written."""
        scale = self.scale * np.asarray(factor, np.float64)
        return self._changed(scale=scale, tensor=self.tensor)

    def plus(self, addend: Array | float) -> Real:
        """With a constant added; with one number where a limit waits, which moves along."""
        more = np.asarray(addend, np.float64) / self.scale
        clip = self.clip
        if clip is not None:
            clip = clip[0] + float(np.asarray(addend)), clip[1] + float(np.asarray(addend))
        whole = more if self.addend is None else self.addend + more
        return self._changed(addend=whole, clip=clip)

    def limited(self, low: float, high: float) -> Real:
        """Limited; the reader may do that itself."""
        if self.tensor is not None and self.scale.size == 1:
            ends = [float(self.scale.reshape(())) * end for end in self.tensor.range]
            if low <= ends[0] and ends[1] <= high:
                return self
        return self._changed(clip=(low, high))

    def emit(self, graph: QdqEmitter, factor: Floats) -> str:
        """The float tensor of the value times ``factor``, limits included."""
        key = (factor.tobytes(), factor.shape)
        if key not in self.written:
            name = self.write(self.scale * factor, self.addend)
            if self.clip is not None:
                ends = [graph.float_constant(end * float(factor)) for end in self.clip]
                name = graph.node("Clip", [name, *ends])
            self.written[key] = name
        return self.written[key]


class QdqEmitter:
    """Tensors of 8 bits and reals, by value.

    Integers that have no QDQ form are written in their own dtypes, by ``words``, once something
    reads them.

    Args:
        writer: receives the nodes.
        ranges: bounds of every integer.
        reduce_range: weights have 7 bits, for kernels that add pairs of products in 16 bits.
    """

    def __init__(
        self,
        writer: GraphWriter,
        ranges: RangeContext,
        reduce_range: bool = False,
    ) -> None:
        self.writer = writer
        self.node = writer.node
        self.words = IntegerEmitter(writer, ranges)
        self.reduce_range = reduce_range
        self.products: dict[str, Step] = {}
        """Tensor → the product that a runtime may compute in 8 bits."""
        self._quantized: dict[Value, Quantized] = {}
        self._reals: dict[Value, Real] = {}
        self._dequantized: dict[tuple[str, float, int], str] = {}

    def native(self, value: Value) -> str:
        """The tensor of an integer value in its own dtype, with all that it needs."""
        waiting = [value]
        while waiting:
            last = waiting[-1]
            step = last.producer
            if last.data is not None or step is None or self.words.is_bound(last):
                waiting.pop()
                continue
            rounded = self._rounded(last)
            if rounded is not None:
                self.words.bind(last, rounded)
                continue
            needed = [arg for arg in step.args if arg.data is None and not self.words.is_bound(arg)]
            if needed:
                waiting += needed
            else:
                self.words.emit(step)
        return self.words.name(value)

    def _rounded(self, value: Value) -> str | None:
        """A real as integers of its value's dtype; None where float32 does not hold them."""
        real = self._reals.get(value)
        low, high = self.words.ends(value)
        if real is None or max(-low, high) > EXACT:
            return None
        name = replace(real, clip=None, written={}).emit(self, np.ones(()))
        self.products.pop(name, None)  # kernels of 8 bits take a product that is quantized
        held = real.tensor
        if held is None or held.scale != 1 or np.any(real.scale != 1):
            name = self.node("Round", [name])
            name = self.node("Clip", [name, self.float_constant(low), self.float_constant(high)])
        return self.writer.cast(name, value.type.dtype)

    def whole(self, value: Value) -> Real:
        """An integer value as it is, in float32."""
        name = self.writer.cast(self.native(value), "float32")
        return Real.of(lambda scale, addend: scaled(name, scale, addend, self))

    def float_constant(self, value: Array | float) -> str:
        """A float32 constant."""
        return self.writer.constant(np.asarray(value, "float32"))

    def quantized(self, value: Value) -> Quantized | None:
        """The 8 bit tensor of a value; None where there is none."""
        return self._quantized.get(value)

    def real(self, value: Value) -> Real | None:
        """The value as a real; None where it is integers only."""
        return self._reals.get(value)

    def set_real(self, value: Value, real: Real) -> None:
        """Record how a value is computed."""
        self._reals[value] = self._shared(value, real)

    def _shared(self, value: Value, real: Real) -> Real:
        """Written once where several readers would write it anew, or where it grows."""
        narrow = all(user.name == "cast" and self.is_held(user.result) for user in value.users)
        made_by = value.producer
        narrow |= made_by is not None and made_by.name in ("cast", OP) and self.is_held(value)
        narrow |= {user.name for user in value.users} == {"maximum", "minimum"}  # of one PRelu
        if real.depth < _WIDENED and (len(value.users) < 2 or narrow):
            return real
        name: list[str] = []

        def write(scale: Floats, addend: Floats | None) -> str:
            if not name:
                name.append(real.emit(self, np.ones(())))
            return scaled(name[0], scale, addend, self)

        return Real.of(write)

    def is_held(self, value: Value) -> bool:
        """Return whether an integer value is an 8 bit tensor."""
        return value.type.dtype in _NARROW

    def settle(self, value: Value) -> None:
        """An 8 bit value becomes an 8 bit tensor, which its readers dequantize."""
        real = self._reals.get(value) or self.whole(value)
        low, high = self.words.ends(value)
        made = real.settled.get((low, high))
        if made is None:
            made = real.settled[low, high] = self._quantize(real, low, high)
        self.set_quantized(value, made)

    def set_quantized(self, value: Value, made: Quantized) -> None:
        """Record the 8 bit tensor of a value."""
        self._quantized[value] = made
        self._reals[value] = self.of_tensor(made)

    def of_tensor(self, made: Quantized) -> Real:
        """The integers of an 8 bit tensor."""

        def write(scale: Floats, addend: Floats | None) -> str:
            moved = made if addend is None else made.moved(addend)
            if scale.size > 1 or moved is None:
                return scaled(self.dequantized(made, 1.0), scale, addend, self)
            return self.dequantized(moved, float(scale.reshape(())))

        return replace(Real.of(write), tensor=made, scale=np.ones(()))

    def plus(self, real: Real, addend: float) -> Real:
        """With a constant added; an 8 bit tensor has another zero point then, where it can."""
        if real.tensor is None:
            moved = None
        else:
            moved = real.tensor.moved(addend / real.scale)
        if moved is None:
            return real.plus(addend)
        return self.of_tensor(moved).times(real.scale)

    def window_sums(
        self, name: str, units: Floats, window: tuple[int, int], **attrs: object
    ) -> str:
        """Sums of windows of each channel times its factor, by a convolution, whose kernels have
        one for each channel.

        Args:
            units: one number for each channel.
        """
        kernels = np.full((units.size, 1, *window), _ONE, "int8")
        weight = self.of_constants(kernels, units.reshape(-1) / _ONE, 0)
        return self.node("Conv", [name, weight], group=units.size, **attrs)

    def of_constants(self, levels: Array, units: Floats, axis: int) -> str:
        """DequantizeLinear of constants, of one scale for each channel."""
        inputs = [
            self.writer.constant(levels),
            self.float_constant(units),
            self.writer.constant(np.zeros(units.shape, levels.dtype)),
        ]
        return self.node("DequantizeLinear", inputs, axis=axis)

    def _quantize(self, real: Real, low: int, high: int) -> Quantized:
        held = real.tensor
        if held is not None and real.scale.size == 1:
            # Rounding again would lose levels: the readers take the tensor with another scale.
            return replace(held, scale=held.scale * float(real.scale.reshape(())))
        levels = self.levels(low, high)
        one = np.ones(())
        if real.like is not None:
            levels = real.like
        saturates = self._saturates(levels, low, high)
        clip = real.clip
        if clip is not None:
            real = replace(real, clip=None, written={})
            if not saturates:
                return self._limited(self._quantize(real, low, high), clip)
        real, written = self._moved(real, levels) or (real, levels)
        if real.source is not None and real.clip is None and real.addend is None:
            name = real.source
            step = levels.scale / float(real.scale)
            written = replace(written, scale=step)
        else:
            name = real.emit(self, one)
        return replace(levels, name=self.quantize(name, written).name)

    def _moved(self, real: Real, levels: Quantized) -> tuple[Real, Quantized] | None:
        """Without its addend, and the levels that add it: kernels take sums of tensors."""
        if real.addend is None or real.clip is not None:
            return None
        addends = real.addend * real.scale / levels.scale
        whole = round(float(addends.reshape(-1)[0]))
        least, most = integer_range(levels.dtype)
        fits = least <= levels.zero_point + whole <= most
        if not fits or np.abs(addends - whole).max() > _OF_A_LEVEL:
            return None
        moved = replace(levels, zero_point=levels.zero_point + whole)
        return replace(real, addend=None, written={}), moved

    def _limited(self, tensor: Quantized, limits: tuple[float, float]) -> Quantized:
        """Clip of an 8 bit tensor, to limits in the unit of its integers."""
        zero = tensor.zero_point
        dtype = tensor.dtype
        ends = [
            int(np.clip(round(end / tensor.scale) + zero, *integer_range(dtype))) for end in limits
        ]
        constants = [self.writer.constant(np.asarray(end, dtype)) for end in ends]
        return replace(tensor, name=self.node("Clip", [tensor.name, *constants]))

    def quantize(self, name: str, levels: Quantized) -> Quantized:
        """QuantizeLinear of a float tensor, to the zero point, scale and dtype of ``levels``."""
        zero = self.writer.constant(np.asarray(levels.zero_point, levels.dtype))
        inputs = [name, self.float_constant(levels.scale), zero]
        return replace(levels, name=self.node("QuantizeLinear", inputs))

    def levels(self, low: int, high: int) -> Quantized:
        """Zero point, scale and dtype of 8 bit integers within [low, high]."""
        if low >= 0:
            return Quantized("", 0, 1.0, "uint8")
        return Quantized("", LEVELS // 2 if high <= _SIGNED_TOP else -low, 1.0, "uint8")

    def _saturates(self, levels: Quantized, low: int, high: int) -> bool:
        """Return whether 8 bits limit to [low, high] themselves, but for one level."""
        least, most = levels.range
        return low - 1 <= least and most <= high + levels.scale

    def dequantized(self, tensor: Quantized, factor: float) -> str:
        """DequantizeLinear, of the integers times ``factor``; equal ones are shared."""
        key = (tensor.name, tensor.scale * factor, tensor.zero_point)
        if key not in self._dequantized:
            zero = self.writer.constant(np.asarray(tensor.zero_point, tensor.dtype))
            scale = self.float_constant(key[1])
            self._dequantized[key] = self.node("DequantizeLinear", [tensor.name, scale, zero])
        return self._dequantized[key]


def scaled(name: str, scale: Floats, addend: Floats | None, graph: QdqEmitter) -> str:
    """(tensor + addend) * scale."""
    if np.any(scale != 1):
        name = graph.node("Mul", [name, graph.float_constant(scale)])
    if addend is not None:
        name = graph.node("Add", [name, graph.float_constant(addend * scale)])
    return name


def of_operand(
    write: Callable[[Floats], str], graph: QdqEmitter, depth: int = 0, *, channels: bool = False
) -> Real:
    """Write an operator of one operand, where a factor may stand before it or behind it.

    Args:
        write: writes it for the operand times a factor.
        channels: the factor may have several numbers; else these are multiplied behind.
    """
    one = np.ones(())

    def whole(scale: Floats, addend: Floats | None) -> str:
        if scale.size > 1 and not channels:
            return scaled(write(one), scale, addend, graph)
        return scaled(write(scale), one, None if addend is None else addend * scale, graph)

    return Real.of(whole, depth)


QdqRule = Callable[[Step, QdqEmitter], Real | None]
"""``rule(step, graph)`` gives the result of an integer step as a real, or None: it is
written in words."""

FToQdq: OpRule[QdqRule] = OpRule(
    "FToQdq", asked_by="export.to_onnx.qdq", defined_in="compiler/export/to_onnx/qdq/rules"
)
