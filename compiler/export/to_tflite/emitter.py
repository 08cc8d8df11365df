"""The emitter of LiteRT files: forms of values, and the operators that are written."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from compiler.errors import TfliteExportError
from compiler.export.to_tflite.file import FileWriter, Grid
from compiler.export.to_tflite.tensors import TensorWriter, Windows
from compiler.export.to_tflite.values import (
    ANY,
    Form,
    Matmul,
    Operand,
    Padded,
    Product,
    Raw,
    Scaled,
    Sum,
    Tensor,
    Total,
)
from compiler.ir.dataflow import Value
from compiler.ir.ty import TensorType, integer_range
from compiler.ops.qnn.requantize import TFLM, rescaled
from compiler.ops.rules.requantize import SUM_SHIFT, tflm_multiplier

_ACTIVATIONS = {"NONE": 0, "RELU": 1, "RELU6": 3}
_MOST_FINER = 64
"""Factor by which int16 is finer than 8 bits with their zero point."""
_MOST = integer_range("int32")[1]
Limits = tuple[int | None, int | None]


class TfliteEmitter(TensorWriter):
    """Writes operators, and keeps the form of every value."""

    def __init__(self, writer: FileWriter) -> None:
        super().__init__(writer)
        self._forms: dict[Value, Form] = {}
        self._written: dict[tuple[int, str], tuple[Form, Tensor | None]] = {}
        self._filled: dict[Padded, Tensor] = {}

    def form(self, value: Value) -> Form | None:
        """Return the form of a value; None for constants."""
        return self._forms.get(value)

    def form_of(self, value: Value) -> Form | None:
        """The same; a constant is a tensor."""
        if value.data is None:
            return self.form(value)
        dtype = value.type.dtype
        if dtype not in ANY:
            return None
        return Tensor(self.writer.constant(value.data, dtype), value.data.shape, dtype=dtype)

    def bind(self, value: Value, form: Form) -> None:
        """Say what a value is."""
        self._forms[value] = form

    def read(self, value: Value, *dtypes: str) -> Tensor | None:
        """The tensor that a value is, of one of these dtypes; None where it is none."""
        form = self.form(value)
        if not isinstance(form, (Tensor, Padded)):
            return None
        held = self.tensor(form)
        if held.dtype in dtypes:
            return held
        return None

    def tensor(self, form: Tensor | Padded) -> Tensor:
        """The tensor; padding is written."""
        if isinstance(form, Tensor):
            return form
        if form not in self._filled:
            top, left, bottom, right = form.padding
            width = ((0, 0), (top, bottom), (left, right), (0, 0))
            self._filled[form] = self.padded(form.source, width, form.source.grid.zero)
        return self._filled[form]

    # ---- wide tensors --------------------------------------------------------------------------

    def wide(self, value: Value) -> Tensor | None:
        """The module's integers as a tensor of int32; None where no operator gives them."""
        if value.data is not None:
            lowest, highest = integer_range("int32")
            fits = not value.data.size or lowest <= value.data.min() <= value.data.max() <= highest
            if fits:
                return self.constant(value.data.astype(np.int64))
            return None
        form = self.form(value)
        if form is None:
            return None
        key = id(form), "int32"
        if key not in self._written:
            self._written[key] = form, self._wide(form, value.type)
        return self._written[key][1]

    def _wide(self, form: Form, ty: TensorType) -> Tensor | None:
        if isinstance(form, Scaled):
            narrow = self.fitting(form, ty)
            if narrow is not None:
                return self._wide(narrow, ty)
            centred = self.fitting(replace(form, zero=0), ty)  # int16 takes no zero point
            if centred is None:
                return None
            return self.moved_by(centred, centred.offset + form.zero)
        if isinstance(form, Sum) and form.name == "MUL":
            lhs, rhs = (self._raw(Raw(s.source, s.source.zero)) for s in (form.lhs, form.rhs))
            return self.limited(self.arithmetic("MUL", lhs, rhs), form.low, form.high)
        if isinstance(form, (Tensor, Padded)):
            held = self.tensor(form)
            if held.dtype == "int32":
                return held
            form = Raw(held)
        if isinstance(form, Raw):
            return self._raw(form)
        return None

    def _raw(self, form: Raw) -> Tensor:
        made = self.moved_by(form.source, form.source.offset - form.zero)
        if form.factor == 1:
            return made
        return self.arithmetic("MUL", made, self.number(form.factor))

    def finer(self, form: Raw) -> Tensor | None:
        """A multiple of a tensor of int8 that int16 holds."""
        own = form.source
        exact = form.zero == own.zero and form.factor & (form.factor - 1) == 0
        if not exact or own.dtype != "int8" or not 0 < form.factor <= _MOST_FINER:
            return None
        like = Tensor(-1, (), own.scale / form.factor, dtype="int16")
        return self.operator("QUANTIZE", [own], like, own.shape)

    # ---- from wide to narrow -------------------------------------------------------------------

    def fitting(self, form: Scaled, ty: TensorType) -> Tensor | None:
        """A scaled value that stayed wide although it fits 8 or 16 bits, as a tensor of these."""
        low, high = form.low + form.zero, form.high + form.zero
        for dtype in ("uint8", "int8", "int16"):
            lowest, highest = integer_range(dtype)
            if lowest <= low <= high <= highest:
                return self.narrowed(form, dtype, ty)
        return None

    def narrowed(self, form: Scaled, dtype: str, ty: TensorType) -> Tensor | None:
        """The operator that gives a scaled value as int8, uint8 or int16; None where none does.

        Raises:
            TfliteExportError: limits that no activation has.
        """
        key = id(form), dtype  # two readers of one value share its operator
        if key not in self._written:
            made = self._narrowed(form, dtype, ty)
            if made is not None and form.floor is not None:
                lowest, highest = integer_range(made.dtype)
                floor = np.clip(form.floor + made.grid.zero, lowest, highest)
                made = self.limited(made, floor, None)
            self._written[key] = form, made
        return self._written[key][1]

    def _narrowed(self, form: Scaled, dtype: str, ty: TensorType) -> Tensor | None:
        source = form.source
        shape = ty.concrete_shape
        offset, held = (128, "int8") if dtype == "uint8" else (0, dtype)
        if held == "int16" and form.zero:
            return None  # TFLM's kernels take none
        like = Tensor(-1, shape, form.scale, form.zero, offset, held)
        if isinstance(source, Raw) and source.factor == 1:
            return self._again(source, form, like)
        if form.scale and isinstance(source, Product) and held == source.source.dtype:
            return self._product(source, form, like)
        if not form.scale or form.multiplier.size != 1:
            return None
        if isinstance(source, Total):
            return self._mean(source, form, like)
        if isinstance(source, Matmul) and held == source.lhs.dtype:
            return self._matmul(source, form, like)
        if isinstance(source, Sum) and held == source.lhs.source.dtype == source.rhs.source.dtype:
            made = self._sum(source, form, like)
            if made is not None:
                return made
        wide = self._wide(source, ty)
        if wide is None:
            return None
        return self._rescaled(wide, form, like)

    def _activation(self, form: Scaled, like: Tensor) -> tuple[str, Limits]:
        """The activation of an operator, and limits that are left for operators behind it."""
        limits = _limits(form, like)
        six = math.floor(float(np.float32(6) / np.float32(like.scale)) + 0.5)
        relu, relu6 = (_limits(replace(form, low=0, high=high), like) for high in (_MOST, six))
        known = {relu6: "RELU6", relu: "RELU", (None, None): "NONE"}
        if limits in known:
            return (known[limits], (None, None))
        return ("NONE", limits)

    def _again(self, source: Raw, form: Scaled, like: Tensor) -> Tensor | None:
        """Another scale, or other limits, of a tensor."""
        own = source.source
        if source.zero != own.zero:
            return None
        if form.multiplier.size:
            if own.dtype == like.dtype == "int16" and own.grid.zero:
                own = self._raw(source)  # TFLM brings such a tensor to 8 bits only
            return self._rescaled(own, form, like)
        activation, limits = self._activation(form, like)
        if like.kind != own.kind:
            return self._quantized(own, form, like)
        if activation != "NONE":
            return self.operator(activation, [own], like, like.shape)
        return self.limited(own, *limits)

    def _quantized(self, source: Tensor, form: Scaled, like: Tensor) -> Tensor:
        """QUANTIZE, and its limits."""
        made = self.operator("QUANTIZE", [source], like, source.shape)
        return self.limited(made, *_limits(form, like))

    def _rescaled(self, source: Tensor, form: Scaled, like: Tensor) -> Tensor | None:
        """QUANTIZE by one factor, the quotient of both scales."""
        if not _is(form, form.units / like.scale):
            return None
        return self._quantized(self.worth(source, float(form.units[0])), form, like)

    def _mean(self, source: Total, form: Scaled, like: Tensor) -> Tensor | None:
        """MEAN, whose factor is cut off after 31 bits."""
        own = source.source
        if like.dtype != "int16" or form.zero:
            return None
        multiplier, shift = tflm_multiplier(np.asarray(own.scale / like.scale))
        count = math.prod(own.shape[axis] for axis in source.axes)
        more = min(count.bit_length() - 1, 31 + int(shift))
        wanted = (int(multiplier) << more) // count, int(shift) - more
        if wanted != (int(form.multiplier[0]), int(form.shift[0])):
            return None
        inputs: list[Tensor | int] = [own, self.list_of(source.axes)]
        kept = len(like.shape) == len(own.shape)
        made = self.operator("MEAN", inputs, like, like.shape, keepDims=kept)
        return self.limited(made, *_limits(form, like))

    def _matmul(self, source: Matmul, form: Scaled, like: Tensor) -> Tensor | None:
        """BATCH_MATMUL; a factor behind it is the scale of its first operand."""
        lhs = source.lhs
        rhs = source.rhs
        scale = (form.units / rhs.scale).astype(np.float32)
        # The kernel multiplies the two scales in float32.
        if not _is(form, (scale * np.float32(rhs.scale)) / np.float64(like.scale)):
            return None
        lhs = self.worth(lhs, float(scale[0]))
        made = self.operator("BATCH_MATMUL", [lhs, rhs], like, source.out, adjY=source.adjoint)
        return self.reshaped(self.limited(made, *_limits(form, like)), like.shape)

    def _sum(self, source: Sum, form: Scaled, like: Tensor) -> Tensor | None:
        sides = source.lhs, source.rhs
        lhs, rhs = (side.source for side in sides)
        if source.name == "MUL":
            lhs = self.worth(lhs, float(np.float32(form.units[0] / rhs.scale)))
            factor = lhs.scale * rhs.scale / like.scale
            single = np.float32(lhs.scale) * np.float32(rhs.scale) / np.float32(like.scale)
            exact = _same_products(factor, float(single), lhs, rhs)
        else:
            lhs, rhs = (self.worth(side.source, side.scale) for side in sides)
            twice = 2 * max(side.scale for side in sides)
            exact = all(_is(side, side.scale / twice) for side in sides)
            factor = twice / ((1 << SUM_SHIFT) * like.scale)
        if not exact or not _is(form, factor):
            return None
        activation, limits = self._activation(form, like)
        fields: dict[str, Any] = {"fusedActivationFunction": _ACTIVATIONS[activation]}
        inputs = self.sides(lhs, rhs, like.shape)
        made = self.operator(source.name, inputs, like, like.shape, **fields)
        return self.limited(made, *limits)

    def _product(self, source: Product, form: Scaled, like: Tensor) -> Tensor | None:
        data = source.source
        weight = source.weight
        channels = source.bias.size
        own = (form.units / data.scale).astype(np.float32).astype(np.float64)
        if not _is(form, data.scale * own / like.scale):
            return None
        scales = tuple(np.broadcast_to(own, channels).tolist())
        windows = Windows(
            data.shape[1:3], weight.shape[1:3], source.strides, source.dilation, source.out[1:3]
        )
        data, place = self.covered(data, source.padding, windows, data.grid.zero)
        # The kernel subtracts the zero of its input, the module's bias has it already.
        axis = 3 if source.depthwise else 0
        others = tuple(other for other in range(4) if other != axis)
        bias = source.bias + data.zero * weight.astype(np.int64).sum(axis=others)
        units = tuple(float(np.float32(data.scale * scale)) for scale in scales)
        more = self.writer.constant(bias, "int32", Grid(units))
        activation, limits = self._activation(form, like)
        fields: dict[str, Any] = {"fusedActivationFunction": _ACTIVATIONS[activation]}
        name = "DEPTHWISE_CONV_2D" if source.depthwise else "CONV_2D"
        kernel = self.writer.constant(weight, "int8", Grid(scales, 0, axis))
        fields |= {
            "padding": place,
            "strideH": source.strides[0],
            "strideW": source.strides[1],
            "dilationHFactor": source.dilation[0],
            "dilationWFactor": source.dilation[1],
        }
        if source.depthwise:
            fields["depthMultiplier"] = channels // data.shape[-1]
        made = self.operator(name, [data, kernel, more], like, source.out, **fields)
        return self.reshaped(self.limited(made, *limits), like.shape)


def _limits(form: Scaled, like: Tensor) -> Limits:
    """Limits in the integers of a tensor; None where its dtype ends there itself.

    Raises:
        TfliteExportError: they leave nothing of the dtype.
    """
    lowest, highest = integer_range(like.dtype)
    low = max(form.low + like.grid.zero, lowest)
    high = min(form.high + like.grid.zero, highest)
    if low > high:
        raise TfliteExportError(f"limits of {low} … {high} leave nothing of {like.dtype}")
    return None if low == lowest else low, None if high == highest else high


def _is(form: Scaled | Operand, factor: Any) -> bool:
    """True if TFLM prepares the multiplier and shift for a real factor (QuantizeMultiplier)."""
    wanted = tflm_multiplier(np.asarray(factor, np.float64))
    return bool(np.all(form.multiplier == wanted[0]) and np.all(form.shift == wanted[1]))


def _same_products(double: float, single: float, lhs: Tensor, rhs: Tensor) -> bool:
    """Return whether no product of two tensors tells TFLM's factor from LiteRT's, computed in
    float32."""
    held = (np.arange(-128, 128) - side.grid.zero for side in (lhs, rhs))
    products = np.unique(np.multiply.outer(*held))
    ours, theirs = (
        rescaled(products, *tflm_multiplier(np.asarray(real)), TFLM) for real in (double, single)
    )
    # Beyond 255 every result ends at a limit of 8 bits.
    return bool((np.clip(ours, -255, 255) == np.clip(theirs, -255, 255)).all())
