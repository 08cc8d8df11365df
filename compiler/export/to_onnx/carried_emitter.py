"""Integers carried in float tensors: what is known of each, and the table of rules that write them.

A float32 holds every integer of magnitude up to 2^24, and sums that stay below are exact in any
order. So an integer tensor whose bounds stay below is *carried* in float32; wider ones are carried
in int64. Bounds come from interval analysis with the actual weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import OnnxExportError
from compiler.export.to_onnx.emitter import Emitter
from compiler.export.to_onnx.graph_writer import GraphWriter
from compiler.export.to_onnx.ordered import larger, limited, smaller
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpRule
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array

# Every integer of magnitude <= 2^24 is a float32; one less keeps sums of two partial results safe.
FLOAT_LIMIT = 1 << 24

EXACT_ELSEWHERE: Final = "the engine runs it, and --format onnx exports it"
"""What to do with integers that floats do not carry."""

Bound = NDArray[np.int64]
"""Integer bounds that broadcast against the tensor: rank 0, or one per channel."""


@dataclass(frozen=True, slots=True, eq=False)
class Product:
    """A convolution or dense product that may still take up a constant addend or a scale.

    ``emit(weight, bias)`` writes it; bias has one value per output channel or is None.
    """

    emit: Callable[[Array, Array | None], str]
    weight: Array
    bias: Array | None
    channel_shape: tuple[int, ...]
    """Shape in which a per-channel vector broadcasts against the result, such as (C, 1, 1)."""
    partial: int
    """Bound on every partial sum without the bias."""

    def with_addend(self, addend: Array) -> Product | None:
        """The product with a constant added, when that is one value per channel."""
        shape = self.channel_shape
        if addend.ndim > len(shape):
            if any(d != 1 for d in addend.shape[: addend.ndim - len(shape)]):
                return None
            addend = addend.reshape(addend.shape[addend.ndim - len(shape) :])
        try:
            vector = np.broadcast_to(addend, shape).astype(np.int64).reshape(-1)
        except ValueError:
            return None
        bias = vector if self.bias is None else self.bias + vector
        if self.partial + int(np.abs(bias).max(initial=0)) >= FLOAT_LIMIT:
            return None
        return replace(self, bias=bias)


@dataclass(frozen=True, slots=True, eq=False)
class Carried:
    """An integer tensor in the exported graph.

    ``name`` holds the values in a tensor of dtype ``carrier``; all lie in [low, high]. The other
    fields say how the value came about, so that the next rule can write something cheaper:
    clamped(source), source + offset, or source * multiple.
    """

    name: str
    carrier: str
    low: int
    high: int
    product: Product | None = None
    clamp: tuple[Carried, Bound, Bound] | None = None
    channels: tuple[Bound, Bound] | None = None
    """Bounds per channel, where they are known better; shaped like ``Product.channel_shape``."""
    offset: tuple[Carried, Bound] | None = None
    multiple: tuple[Carried, int] | None = None

    @property
    def magnitude(self) -> int:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def reach(self) -> int:
        """Largest absolute value of the tensor and of the partial sums it is made of."""
        if self.product is None:
            return self.magnitude
        bias = 0 if self.product.bias is None else int(np.abs(self.product.bias).max(initial=0))
        return max(self.magnitude, self.product.partial + bias)


class CarriedEmitter(Emitter):
    """Emitter whose integer values are Carried; float values are plain tensors."""

    def __init__(self, writer: GraphWriter) -> None:
        super().__init__(writer)
        self._carried: dict[Value, Carried] = {}

    def carry(self, value: Value, carried: Carried, step: Step | None = None) -> None:
        """Record an integer value.

        Raises:
            OnnxExportError: the bounds leave the value's dtype, so that the reference could wrap.
        """
        low, high = integer_range(value.type.dtype)
        # No tensor of integers is wider than int64.
        high = min(high, integer_range("int64")[1])
        if carried.low < low or carried.high > high:
            raise OnnxExportError(
                f"{step.name if step else 'a value'} may reach [{carried.low}, {carried.high}], "
                f"outside {value.type.dtype}",
                where=f"result {value.type}",
                fix="QDQ has no wrapping arithmetic; requantize before this operator",
                span=step.span if step else None,
            )
        # A product with several readers is computed once, so nothing may be folded into it.
        if carried.product is not None and len(value.users) > 1:
            carried = replace(carried, product=None)
        self._carried[value] = carried

    def carried(self, value: Value) -> Carried:
        """How an integer value is carried; constants when first read."""
        held = self._carried.get(value)
        if held is None:
            assert value.data is not None, "a step was emitted before the step it reads"
            ends = value.data if value.data.size else np.zeros(1, np.int64)
            low, high = int(ends.min()), int(ends.max())
            small = max(abs(low), abs(high)) < FLOAT_LIMIT
            carrier = "float32" if small else "int64"
            held = Carried(self.writer.constant(value.data.astype(carrier)), carrier, low, high)
            self._carried[value] = held
        return held

    def as_float(self, carried: Carried) -> str:
        """The tensor as float32.

        Raises:
            OnnxExportError: values of 2^24 and more do not all fit.
        """
        if carried.carrier == "float32":
            return carried.name
        if carried.magnitude >= FLOAT_LIMIT:
            raise OnnxExportError(
                f"values in [{carried.low}, {carried.high}] cannot be carried in float32",
                fix="requantize to a narrower type before this operator",
            )
        return self.writer.cast(carried.name, "float32")

    def as_int64(self, carried: Carried) -> str:
        """The tensor as int64."""
        if carried.carrier == "int64":
            return carried.name
        return self.writer.cast(carried.name, "int64")

    def as_double(self, carried: Carried) -> str:
        """The tensor as float64; exact up to 2^53."""
        return self.writer.cast(carried.name, "float64")

    def native(self, value: Value) -> str:
        """An integer value in its own dtype, for graph outputs and operators on real integers."""
        dtype = value.type.dtype
        if value.data is not None:
            return self.writer.constant(value.data)
        carried = self.carried(value)
        return carried.name if carried.carrier == dtype else self.writer.cast(carried.name, dtype)

    def float_constant(self, value: Array | float) -> str:
        """A float32 constant."""
        return self.writer.constant(np.asarray(value, "float32"))


CarriedRule = Callable[[Step, CarriedEmitter], Carried | Sequence[Carried]]
"""``rule(step, graph)`` writes an integer-valued step and gives one Carried per result."""

FToCarried: OpRule[CarriedRule] = OpRule(
    "FToCarried", asked_by="export.to_onnx.qdq", defined_in="compiler/export/to_onnx/carried_rules"
)


def narrowed(name: str, dtype: str, low: int, high: int, graph: CarriedEmitter) -> Carried:
    """A freshly computed float64 or int64 tensor, carried in float32 where its bounds allow."""
    if max(abs(low), abs(high)) < FLOAT_LIMIT:
        return Carried(graph.writer.cast(name, "float32"), "float32", low, high)
    if dtype != "int64":
        name = graph.writer.cast(name, "int64")
    return Carried(name, "int64", low, high)


def clamped(source: Carried, low: Bound, high: Bound, graph: CarriedEmitter) -> Carried:
    """``source`` limited to [low, high] element by element; remembers that it did so.

    Bounds of a clamped source are merged, and one that cannot bind writes nothing.
    """
    if source.clamp is not None:
        inner, inner_low, inner_high = source.clamp
        # min(max(x, a), b) limited again: the later bounds win where the two do not meet.
        low, high = np.clip(inner_low, low, high), np.clip(inner_high, low, high)
        source = inner
    floor, ceiling = int(low.min()), int(high.max())
    out_low, out_high = (np.clip(end, low, high) for end in (source.low, source.high))
    binds_low, binds_high = int(low.max()) > source.low, int(high.min()) < source.high
    if not binds_low and not binds_high:
        return source
    name = source.name
    dtype = source.carrier
    if binds_low and low.ndim and low.size > 1 and low.min() != low.max():
        name = larger(graph, name, graph.writer.constant(low.astype(dtype)), dtype)
        binds_low = False
    if binds_high and high.ndim and high.size > 1 and high.min() != high.max():
        name = smaller(graph, name, graph.writer.constant(high.astype(dtype)), dtype)
        binds_high = False
    if dtype == "int64" and (binds_low or binds_high):
        name = limited(graph, name, floor, ceiling, dtype)
    elif binds_low or binds_high:
        bounds = ["", ""]
        if binds_low:
            bounds[0] = graph.writer.constant(np.asarray(floor, dtype))
        if binds_high:
            bounds[1] = graph.writer.constant(np.asarray(ceiling, dtype))
        name = graph.node("Clip", [name, *bounds])
    return Carried(name, dtype, int(out_low.min()), int(out_high.max()), clamp=(source, low, high))
