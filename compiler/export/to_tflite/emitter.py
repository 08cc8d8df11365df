"""What a rule sees: the forms of values, and the operators that it writes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from compiler.errors import TfliteExportError
from compiler.export.to_tflite.file import FileWriter, Grid
from compiler.export.to_tflite.values import (
    Form,
    Ints,
    Narrow,
    Operand,
    Padded,
    Product,
    Raw,
    Scaled,
    Sum,
)
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import TensorType
from compiler.ops.rules.fixed_point import SUM_SHIFT, multiplier_and_small_shift
from compiler.ops.tensor.fixed_point_rescale import rescaled_twice

_ACTIVATIONS = {"NONE": 0, "RELU": 1, "RELU6": 3}
_SAME, _VALID = 0, 1
_LOWEST, _HIGHEST = -128, 127
_MOST_AXES = 5
"""Of what TFLM pads and transposes."""
Limits = tuple[int | None, int | None]


class TfliteEmitter:
    """Writes operators, and keeps the form of every value."""

    def __init__(self, writer: FileWriter) -> None:
        self.writer = writer
        self._forms: dict[Value, Form] = {}
        self._written: dict[tuple[int, int], tuple[Scaled, Narrow | None]] = {}

    def form(self, value: Value) -> Form | None:
        """What a value is; None for constants."""
        return self._forms.get(value)

    def bind(self, value: Value, form: Form) -> None:
        """Say what a value is."""
        self._forms[value] = form

    # ---- tensors ---------------------------------------------------------------------------

    def new(self, like: Narrow, shape: Sequence[int]) -> Narrow:
        """A tensor of another shape whose integers mean the same."""
        name = f"value_{len(self.writer.tensors)}"
        tensor = self.writer.tensor(name, shape, "int8", like.grid)
        return Narrow(tensor, tuple(shape), like.scale, like.zero, like.offset)

    def tensor(self, form: Narrow | Padded) -> Narrow:
        """The tensor; padding is written."""
        if isinstance(form, Narrow):
            return form
        top, left, bottom, right = form.padding
        width = ((0, 0), (top, bottom), (left, right), (0, 0))
        return self.padded(form.source, width, form.source.zero - form.source.offset)

    def unpadded(
        self, form: Narrow | Padded, padding: Sequence[int]
    ) -> tuple[Narrow, tuple[int, ...]]:
        """The tensor that a window of this padding reads, and all the padding."""
        if isinstance(form, Narrow):
            return form, tuple(padding)
        return form.source, tuple(a + b for a, b in zip(form.padding, padding, strict=True))

    def padded(self, source: Narrow, width: Sequence[tuple[int, int]], value: int) -> Narrow:
        """PAD with the file's zero, PADV2 with another of its integers."""
        if not any(map(any, width)):
            return source
        shape = [n + a + b for n, (a, b) in zip(source.shape, width, strict=True)]
        if len(shape) > _MOST_AXES:
            merged = _merged(source.shape, width)
            if len(merged) < len(shape):
                whole = self.reshaped(source, [n for n, _ in merged])
                return self.reshaped(self.padded(whole, [ends for _, ends in merged], value), shape)
        made = self.new(source, shape)
        inputs = [source.tensor, self._list(width)]
        if value == source.grid.zero:
            self.writer.operator("PAD", inputs, made.tensor, "PadOptions")
        else:
            filled = self.writer.constant(np.array([value]), "int8", source.grid)
            self.writer.operator("PADV2", [*inputs, filled], made.tensor, "PadV2Options")
        return made

    def reshaped(self, source: Narrow, shape: Sequence[int]) -> Narrow:
        """RESHAPE, where the shape is another."""
        if source.shape == tuple(shape):
            return source
        made = self.new(source, shape)
        inputs = [source.tensor, self._list(shape)]
        sizes = [int(n) for n in shape]
        self.writer.operator("RESHAPE", inputs, made.tensor, "ReshapeOptions", newShape=sizes)
        return made

    def moved(
        self,
        name: str,
        parts: Sequence[Narrow],
        ty: TensorType,
        lists: Sequence[Any],
        options: str = "",
        **fields: Any,
    ) -> Narrow:
        """An operator that moves elements, with lists of numbers as further inputs."""
        made = self.new(parts[0], ty.concrete_shape)
        inputs = [*(part.tensor for part in parts), *map(self._list, lists)]
        options = options or f"{name.title()}Options"
        self.writer.operator(name, inputs, made.tensor, options, **fields)
        return made

    def transposed(self, source: Narrow, axes: Sequence[int]) -> Narrow:
        """TRANSPOSE; of too many axes, those that stay side by side are one."""
        shape = [source.shape[axis] for axis in axes]
        runs = [[axes[0]]]
        for axis in axes[1:]:
            if axis == runs[-1][-1] + 1:
                runs[-1].append(axis)
            else:
                runs.append([axis])
        if len(runs) < len(axes) and len(axes) > _MOST_AXES:
            before = sorted(runs)
            whole = [math.prod(source.shape[axis] for axis in run) for run in before]
            order = [before.index(run) for run in runs]
            merged = self.transposed(self.reshaped(source, whole), order)
            return self.reshaped(merged, shape)
        made = self.new(source, shape)
        inputs = [source.tensor, self._list(axes)]
        self.writer.operator("TRANSPOSE", inputs, made.tensor, "TransposeOptions")
        return made

    def gathered(self, source: Narrow, entries: Ints, like: Narrow) -> Narrow:
        """The entries at the places that the integers of a tensor are, -128 the first one."""
        writer = self.writer
        wide, places = (
            writer.tensor(f"{kind}_{len(writer.tensors)}", source.shape, "int32")
            for kind in ("wide", "places")
        )
        writer.operator("CAST", [source.tensor], wide, "CastOptions")
        lowest = writer.constant(np.array([128]), "int32")
        writer.operator("ADD", [wide, lowest], places, "AddOptions")
        made = self.new(like, source.shape)
        table = writer.constant(entries, "int8", like.grid)
        writer.operator("GATHER", [table, places], made.tensor, "GatherOptions", axis=0)
        return made

    def _list(self, numbers: Any) -> int:
        return self.writer.constant(np.asarray(numbers), "int32")

    def check_zero(self, form: Raw, step: Step) -> None:
        """A tensor counts from its zero.

        Raises:
            TfliteExportError: it does not.
        """
        if form.zero != form.source.zero:
            raise TfliteExportError(
                f"{step.name} reads integers that count from {form.zero}, "
                f"not from their zero {form.source.zero}",
                span=step.span,
            )

    # ---- windows ---------------------------------------------------------------------------

    def max_pool(self, source: Narrow, attrs: Any, shape: tuple[int, ...]) -> Narrow:
        """MAX_POOL_2D; other padding than SAME is a tensor's."""
        windows = _Windows(source.shape[1:3], attrs.pool_size, attrs.strides, (1, 1), shape[1:3])
        place = _padding(attrs.padding, windows)
        if place is None:
            width = _behind(attrs.padding, windows)
            source, place = self.padded(source, width, -128), _VALID
        made = self.new(source, shape)
        self.writer.operator(
            "MAX_POOL_2D",
            [source.tensor],
            made.tensor,
            "Pool2DOptions",
            padding=place,
            strideH=attrs.strides[0],
            strideW=attrs.strides[1],
            filterHeight=attrs.pool_size[0],
            filterWidth=attrs.pool_size[1],
        )
        return made

    # ---- from wide to narrow ---------------------------------------------------------------

    def narrowed(self, form: Scaled, offset: int, ty: TensorType) -> Narrow | None:
        """The operator that gives a scaled value, as the file's int8; None where there is none.

        Raises:
            TfliteExportError: limits that no activation has.
        """
        key = id(form), offset  # two readers of one value share its operator
        if key not in self._written:
            self._written[key] = form, self._narrowed(form, offset, ty)
        return self._written[key][1]

    def _narrowed(self, form: Scaled, offset: int, ty: TensorType) -> Narrow | None:
        source, shape = form.source, ty.concrete_shape
        like = Narrow(-1, shape, form.scale, form.zero, offset)
        if isinstance(source, Raw):
            return self._again(source, form, like)
        if not form.scale:
            return None
        if isinstance(source, Sum):
            return self._sum(source, form, like)
        return self._product(source, form, like)

    def _activation(self, form: Scaled, grid: Grid) -> tuple[str, Limits]:
        """The activation of an operator, and limits that are left for operators behind it."""
        low, high = max(form.low + grid.zero, _LOWEST), min(form.high + grid.zero, _HIGHEST)
        zero = max(grid.zero, _LOWEST)
        six = grid.zero + math.floor(float(np.float32(6) / np.float32(grid.scale[0])) + 0.5)
        known = {"NONE": (_LOWEST, _HIGHEST), "RELU": (zero, _HIGHEST)}
        known["RELU6"] = zero, min(six, _HIGHEST)
        for name, held in known.items():
            if (low, high) == held:
                return name, (None, None)
        if not _LOWEST <= low <= high <= _HIGHEST:
            raise TfliteExportError(f"limits of {low} … {high} leave nothing of 8 bits")
        return "NONE", (None if low == _LOWEST else low, None if high == _HIGHEST else high)

    def _limited(self, made: Narrow, limits: Limits) -> Narrow:
        """MAXIMUM and MINIMUM with limits that no activation has."""
        for name, limit in zip(("MAXIMUM", "MINIMUM"), limits, strict=True):
            if limit is not None:
                bound = self.writer.constant(np.array([limit]), "int8", made.grid)
                inputs, made = [made.tensor, bound], self.new(made, made.shape)
                self.writer.operator(name, inputs, made.tensor, "MaximumMinimumOptions")
        return made

    def _again(self, source: Raw, form: Scaled, like: Narrow) -> Narrow | None:
        """Another scale, or other limits, of a tensor."""
        own = source.source
        if source.zero != own.zero:
            return None
        activation, limits = self._activation(form, like.grid)
        factor = 1.0
        if form.multiplier.size:
            factor = own.scale / like.scale
            if not _is(form.multiplier, form.shift, np.asarray(factor)):
                return None
        same = factor == 1 and like.grid.zero == own.grid.zero
        if same and like.offset == own.offset and activation == "NONE":
            return self._limited(own, limits)
        if activation == "NONE":
            operator, options = "QUANTIZE", "QuantizeOptions"
        elif same or (activation == "RELU" and factor == 1):
            operator, options = activation, ""
        else:
            return None
        made = self.new(like, like.shape)
        self.writer.operator(operator, [own.tensor], made.tensor, options)
        return self._limited(made, limits)

    def _sum(self, source: Sum, form: Scaled, like: Narrow) -> Narrow | None:
        sides = source.lhs, source.rhs
        if source.name == "MUL":
            lhs, rhs = (side.source for side in sides)
            factor = lhs.scale * rhs.scale / like.scale
            single = np.float32(lhs.scale) * np.float32(rhs.scale) / np.float32(like.scale)
            exact = _same_products(factor, float(single), lhs, rhs)
        else:
            twice = 2 * max(side.source.scale for side in sides)
            exact = all(
                _is(side.multiplier, side.shift, np.asarray(side.source.scale / twice))
                for side in sides
            )
            factor = twice / ((1 << SUM_SHIFT) * like.scale)
        if not exact or not _is(form.multiplier, form.shift, np.asarray(factor)):
            return None
        activation, limits = self._activation(form, like.grid)
        made = self.new(like, like.shape)
        inputs = [self._side(side, like).tensor for side in sides]
        self.writer.operator(
            source.name,
            inputs,
            made.tensor,
            f"{source.name.title()}Options",
            fusedActivationFunction=_ACTIVATIONS[activation],
        )
        return self._limited(made, limits)

    def _side(self, side: Operand, like: Narrow) -> Narrow:
        """An operand with as many axes as the sum, which kernels broadcast over four at most."""
        own = side.source
        missing = len(like.shape) - len(own.shape)
        return self.reshaped(own, (*(1,) * missing, *own.shape)) if missing else own

    def _product(self, source: Product, form: Scaled, like: Narrow) -> Narrow | None:
        data, weight = source.source, source.weight
        channels = source.bias.size
        scales = _weight_scales(form.multiplier, form.shift, data.scale, like.scale, channels)
        if scales is None:
            return None
        windows = _Windows(
            data.shape[1:3], weight.shape[1:3], source.strides, source.dilation, source.out[1:3]
        )
        place = _padding(source.padding, windows)
        if place is None:
            width = _behind(source.padding, windows)
            data = self.padded(data, width, data.zero - data.offset)
            place = _VALID
        # The kernel subtracts the zero of its input, the module's bias has it already.
        axis = 3 if source.depthwise else 0
        others = tuple(other for other in range(4) if other != axis)
        bias = source.bias + data.zero * weight.astype(np.int64).sum(axis=others)
        kernel = self.writer.constant(weight, "int8", Grid(scales, 0, axis))
        units = tuple(float(np.float32(data.scale * scale)) for scale in scales)
        more = self.writer.constant(bias.astype(np.int32), "int32", Grid(units))
        activation, limits = self._activation(form, like.grid)
        made = self.new(like, source.out)
        fields: dict[str, Any] = {
            "padding": place,
            "strideH": source.strides[0],
            "strideW": source.strides[1],
            "dilationHFactor": source.dilation[0],
            "dilationWFactor": source.dilation[1],
            "fusedActivationFunction": _ACTIVATIONS[activation],
        }
        name, options = "CONV_2D", "Conv2DOptions"
        if source.depthwise:
            name, options = "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"
            fields["depthMultiplier"] = channels // data.shape[-1]
        self.writer.operator(name, [data.tensor, kernel, more], made.tensor, options, **fields)
        return self.reshaped(self._limited(made, limits), like.shape)


def _merged(
    shape: Sequence[int], width: Sequence[tuple[int, int]]
) -> list[tuple[int, tuple[int, int]]]:
    """Axes with their padding, those side by side that have none as one."""
    merged: list[tuple[int, tuple[int, int]]] = []
    for size, ends in zip(shape, width, strict=True):
        if merged and not any(ends) and not any(merged[-1][1]):
            size *= merged.pop()[0]
        merged.append((size, ends))
    return merged


def _is(multiplier: Any, shift: Any, factor: Any) -> bool:
    """Whether TFLM prepares these numbers for a real factor (QuantizeMultiplier)."""
    wanted = multiplier_and_small_shift(np.asarray(factor, np.float64))
    return bool((multiplier == wanted[0]).all() and (shift == wanted[1]).all())


def _same_products(double: float, single: float, lhs: Narrow, rhs: Narrow) -> bool:
    """Whether no product of two tensors tells TFLM's factor from LiteRT's, computed in float32."""
    held = (np.arange(-128, 128) - side.grid.zero for side in (lhs, rhs))
    products = np.unique(np.multiply.outer(*held))
    ours, theirs = (
        rescaled_twice(products, *map(np.atleast_1d, multiplier_and_small_shift(np.asarray(real))))
        for real in (double, single)
    )
    # Beyond 255 every result ends at a limit of 8 bits.
    return bool((np.clip(ours, -255, 255) == np.clip(theirs, -255, 255)).all())


def _weight_scales(
    multiplier: Ints, shift: Ints, data: float, out: float, channels: int
) -> tuple[float, ...] | None:
    """The float32 scales of weights for which TFLM prepares these multipliers."""
    factor = np.ldexp(multiplier.astype(np.float64), (shift - 31).astype(np.int32))
    scales = (factor * out / data).astype(np.float32).astype(np.float64)
    # A factor of 0 stands for all that are too small; a scale is above 0.
    scales = np.where(multiplier == 0, np.float64(np.float32(2.0**-40 * out / data)), scales)
    if not _is(multiplier, shift, data * scales / out):
        return None
    return tuple(np.broadcast_to(scales, channels).tolist())


class _Windows(NamedTuple):
    """How windows lie over an image; a pair of numbers each, for rows and columns."""

    data: Sequence[int]
    window: Sequence[int]
    strides: Sequence[int]
    dilation: Sequence[int]
    out: Sequence[int]

    @property
    def beyond(self) -> list[int]:
        """Elements that the windows span beyond the data; below 0 where they leave some."""
        return [
            (out - 1) * stride + (taps - 1) * apart + 1 - size
            for size, taps, stride, apart, out in zip(*self, strict=True)
        ]


def _padding(padding: Sequence[int], windows: _Windows) -> int | None:
    """SAME or VALID, where one of them is this padding; None where neither is."""
    if not any(padding) and not any(_missing(padding, windows)):
        return _VALID
    for axis, (before, after) in enumerate(zip(padding[:2], padding[2:])):
        whole = max(windows.beyond[axis], 0)
        same = -(-windows.data[axis] // windows.strides[axis])
        if windows.out[axis] != same or before != whole // 2 or after < whole - before:
            return None
    return _SAME


def _missing(padding: Sequence[int], windows: _Windows) -> list[int]:
    """Elements behind the data and its leading padding that the last windows reach."""
    return [max(more - before, 0) for more, before in zip(windows.beyond, padding)]


def _behind(padding: Sequence[int], windows: _Windows) -> tuple[tuple[int, int], ...]:
    """Padding of every axis of an image that windows do not reach beyond."""
    rows, columns = _missing(padding, windows)
    return (0, 0), (padding[0], rows), (padding[1], columns), (0, 0)
