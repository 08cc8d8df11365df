"""nn.conv2d: out[n,o,y,x] = sum_irs data[n,i,y*sh+r*dh-pt,x*sw+s*dw-pl] * weight[o,i,r,s].

With groups G, output channel o reads the C/G input channels of its group. Integers are widened to
``out_dtype`` and accumulate with wrap; padding reads 0.
nn.conv2d_transpose: the gradient of conv2d with respect to its data.

    out[n,o,y,x] = sum data[n,c,i,j] * weight[c,o,r,s]  over  y = i*sh+r*dh-pt, x = j*sw+s*dw-pl

The weight is (C, O/groups, kh, kw). ``output_padding`` adds rows and columns at the bottom right.
Integers are widened to ``out_dtype`` and accumulate with wrap. CanonicalizeOps makes a convolution
of it, over the data with zeros between the elements, so every target of convolutions runs it:

    conv2d_transpose(x, w)  =  conv2d(pad(reshape(x)), reverse(transpose(w)))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, IncompleteType, TensorType, Type, holds_float, is_dynamic, is_float
from compiler.ir.type_relation import Reporter, TypeRelation, is_known
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types, product_of, tensor_of_rank
from compiler.ops.evaluate import computes
from compiler.ops.nn.convolve import convolve
from compiler.ops.nn.matmul_like import (
    annotate_matmul_like,
    realize_matmul_like,
    weighted_scale,
    zero_point_of_data,
)
from compiler.ops.nn.product_dtype import product_dtype, weighted_op
from compiler.ops.nn.product_loops import convolution_loops
from compiler.ops.nn.window import (
    arrange,
    as_declared,
    axes_of,
    check_groups,
    extent,
    image_word,
    output_size,
    restore,
    set_geometry,
)
from compiler.ops.op_attrs import OpAttrs, Size, Sizes
from compiler.ops.op_call import op_call, scalar
from compiler.ops.rules.annotate import FQAnnotateRewrite, with_args
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, image_fields, is_natural
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import (
    FQPartitionRewrite,
    QPartitionExpr,
    is_partitioned,
    with_border,
)
from compiler.ops.rules.product_shape import FQProductShape, ProductShape
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.simplify import FCanonicalize, FDefinition
from compiler.ops.rules.zero_point import FQZeroPoint
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.errors import WeightNotConstantError

OP = "nn.conv2d"


class Conv2DAttrs(OpAttrs):
    """Sizes are (height, width) in elements; padding is kept as (top, left, bottom, right)."""

    strides: Sizes = (1, 1)
    padding: Sizes = (0, 0, 0, 0)
    dilation: Sizes = (1, 1)
    groups: Size = 1
    channels: Size | None = None
    kernel_size: Sizes | None = None
    data_layout: str = "NCHW"
    kernel_layout: str = "OIHW"
    out_layout: str = ""
    out_dtype: str = ""

    def __post_init__(self) -> None:
        OpAttrs.__post_init__(self)
        set_geometry(self, "strides", "dilation", "kernel_size")


def _convolution_rel(
    op: str, size_of: Callable[[Any, int, Dim, Dim], Dim], transposed: bool = False
) -> TypeRelation:
    """The relation of a convolution: assigns the result, and the weight when only ``channels`` and
    ``kernel_size`` are known.

    Args:
        size_of: of attributes, axis, size of the data and of the kernel: the size of the result.
        transposed: one axis of the weight counts the outputs of a group, not its inputs.
    Raises:
        TypeInferenceError: (from the relation) the channels of data and weight do not agree.
    """

    def rel(types: Types, num_inputs: int, attrs: Any, reporter: Reporter) -> bool:
        if not is_known(types[0]):
            return False
        data = tensor_of_rank(op, types, 0, "data", 4)
        data_axes = axes_of(op, attrs.data_layout, "NCHW", "data_layout")
        out_axes = axes_of(op, attrs.out_layout or attrs.data_layout, "NCHW", "out_layout")
        kernel_axes = axes_of(op, attrs.kernel_layout, "OIHW", "kernel_layout")
        n, c, h, w = arrange(data.shape, data_axes)
        fewer, groups = (attrs.groups, 1) if transposed else (1, attrs.groups)
        if isinstance(types[1], IncompleteType):
            if attrs.channels is None or attrs.kernel_size is None:
                return False
            check_groups(op, attrs.groups, c, attrs.channels)
            read: Dim = c if isinstance(c, AnyDim) else c // groups
            shape = (attrs.channels // fewer, read, *attrs.kernel_size)
            weight = TensorType(restore(shape, kernel_axes), data.dtype)
            reporter.assign(types[1], weight)
        else:
            weight = tensor_of_rank(op, types, 1, "weight", 4)
        o, i, kh, kw = arrange(weight.shape, kernel_axes)
        o, kh, kw = as_declared(op, attrs, product_of((o, fewer)), kh, kw)
        check_groups(op, attrs.groups, c, o)
        if not isinstance(c, AnyDim) and not isinstance(i, AnyDim) and i * groups != c:
            raise TypeInferenceError(
                f"{op}: data has {c} channels but weight reads {i} in each of {groups} groups",
                where=f"data {data}, weight {weight}",
                fix=f"weight should have {c // groups} input channels",
            )
        dtype = product_dtype(op, data, weight, attrs.out_dtype)
        size = size_of(attrs, 0, h, kh), size_of(attrs, 1, w, kw)
        reporter.assign(types[2], TensorType(restore((n, o, *size), out_axes), dtype))
        return True

    return rel


def _spatial(attrs: Conv2DAttrs, axis: int, size: Dim, kernel: Dim) -> Dim:
    if isinstance(kernel, AnyDim):
        return kernel
    before = attrs.padding[axis]
    after = attrs.padding[axis + 2]
    span = extent(kernel, attrs.dilation[axis])
    return output_size(OP, size, before, after, span, attrs.strides[axis])


conv2d = weighted_op(OP, attrs_type=Conv2DAttrs, rel=_convolution_rel(OP, _spatial))


@FNumpyCompute.register(conv2d)
def conv2d_numpy(attrs: Conv2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Exact on integers; floats in float32 (float16 rounds once) or float64."""
    data, weight = args
    data = data.transpose(axes_of(OP, attrs.data_layout, "NCHW", "data_layout"))
    weight = weight.transpose(axes_of(OP, attrs.kernel_layout, "OIHW", "kernel_layout"))
    assert isinstance(out_type, TensorType)
    out = convolve(
        data, weight, attrs.strides, attrs.padding, attrs.dilation, attrs.groups, out_type.dtype
    )
    # Axis k of the output layout is the canonical axis of its letter.
    return [out.transpose(["NCHW".index(c) for c in attrs.out_layout or attrs.data_layout])]


@FQPartitionRewrite.register(conv2d)
def conv2d_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    """Always starts a region: a partitioned input gets a border, the result is partitioned.

    Raises:
        WeightNotConstantError: the kernel is the output of another region.
    """
    data, kernel = args
    if is_partitioned(kernel):
        raise WeightNotConstantError(
            f"the kernel of this {OP} is computed by quantized operators",
            fix="quantization needs constant kernels; bind the parameters first",
            span=ref_call.span,
        )
    call = with_args(ref_call, (with_border(data), kernel))
    return QPartitionExpr(call, ctx.qconfig.dtype_input)


FQAnnotateRewrite.register(conv2d)(annotate_matmul_like)
FQRealizeRewrite.register(conv2d)(realize_matmul_like)
FQDomScale.register(conv2d)(weighted_scale)
FQZeroPoint.register(conv2d)(zero_point_of_data)


@FLower.register(conv2d)
def conv2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction over channels and taps; padding is a guard."""
    data, kernel = inputs
    return [convolution_loops(b, data, kernel, Conv2DAttrs.of(call), out_types[0])]


@FConvertLayout.register(conv2d, "nn.conv2d_transpose")
def convolution_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """Integers go to IMAGE_LAYOUT; what one sum reads lies side by side in the kernel, too.

    A depthwise kernel has one row of channels a tap instead.
    """
    attrs = Conv2DAttrs.of(call)
    if holds_float(call.checked_type):
        return None
    data, out, changed = image_fields(attrs, "data_layout", orders[0])
    if is_natural(orders[0]) and not changed:
        return None
    depthwise = call.args[1].tensor_type.shape[attrs.kernel_layout.index("I")] == 1
    wanted = "HWOI" if attrs.groups > 1 and depthwise else "OHWI"
    weight = tuple(attrs.kernel_layout.index(letter) for letter in wanted)
    fields: dict[str, Any] = {**changed, "kernel_layout": wanted}
    return Relaid((data, weight), out, replace(attrs, **fields))


@FBody.register("nn.conv2d")
def conv2d_body(step: Step, words: Words) -> Value | None:
    """The convolution in NCHW and OIHW; None if it has these layouts."""
    attrs = step.attrs
    dtype = step.results[0].type.dtype
    how = {name: getattr(attrs, name) for name in ("strides", "padding", "dilation", "groups")}
    orders = ((attrs.data_layout, "NCHW"), (attrs.kernel_layout, "OIHW"))
    return image_word(step, words, orders, out_dtype=dtype, **how)


# ---- transposed ----------------------------------------------------------------------------------


TRANSPOSED = "nn.conv2d_transpose"


class Conv2DTransposeAttrs(Conv2DAttrs):
    """Those of nn.conv2d, and the (height, width) that the result has more than it needs."""

    kernel_layout: str = "IOHW"
    output_padding: Sizes = (0, 0)

    def __post_init__(self) -> None:
        Conv2DAttrs.__post_init__(self)
        set_geometry(self, "output_padding", minimum=0)


def _spread_size(attrs: Conv2DTransposeAttrs, axis: int, size: Dim, kernel: Dim) -> Dim:
    if isinstance(size, AnyDim) or isinstance(kernel, AnyDim):
        return AnyDim()
    if size < 1:
        raise TypeInferenceError(f"{TRANSPOSED}: data has {size} rows or columns")
    span = extent(kernel, attrs.dilation[axis])
    before = attrs.padding[axis]
    after = attrs.padding[axis + 2]
    out = (size - 1) * attrs.strides[axis] - before - after + span + attrs.output_padding[axis]
    if out < 0:
        raise TypeInferenceError(f"{TRANSPOSED}: padding {before} and {after} leaves no output")
    return out


conv2d_transpose = weighted_op(
    TRANSPOSED,
    attrs_type=Conv2DTransposeAttrs,
    rel=_convolution_rel(TRANSPOSED, _spread_size, transposed=True),
)


def turned_kernel(weight: NDArray[Any], groups: int) -> NDArray[Any]:
    """(C, O/G, kh, kw) as the kernel (O, C/G, kh, kw) of the convolution, taps reversed."""
    c, per_group, kh, kw = weight.shape
    grouped = weight.reshape(groups, c // groups, per_group, kh, kw)
    kernel = grouped.transpose(0, 2, 1, 3, 4)[..., ::-1, ::-1]
    return kernel.reshape(groups * per_group, c // groups, kh, kw)


@FCanonicalize.register(conv2d_transpose)
def conv2d_transpose_as_convolution(ref_call: Call, new_args: Args) -> Expr:
    """The convolution of floats by a constant kernel, where no axis has to be moved."""
    attrs = Conv2DTransposeAttrs.of(ref_call)
    types = [arg.tensor_type for arg in ref_call.args]
    layouts = (attrs.data_layout, attrs.out_layout or attrs.data_layout, attrs.kernel_layout)
    floats = all(not is_dynamic(ty) and is_float(ty.dtype) for ty in types)
    if layouts == ("NCHW", "NCHW", "IOHW") and isinstance(new_args[1], Constant) and floats:
        return conv2d_transpose_definition(ref_call, new_args)
    return Call(ref_call.op, new_args, attrs, span=ref_call.span)


@FDefinition.register(conv2d_transpose)
@computes(conv2d_transpose)
def conv2d_transpose_definition(ref_call: Call, new_args: Args) -> Expr:
    """The convolution of stride 1 that computes the same, on data with zeros between them: one axis
    of its kernel holds the output channels, of groups as well."""
    attrs = Conv2DTransposeAttrs.of(ref_call)
    types = [arg.tensor_type for arg in ref_call.args]
    out = ref_call.tensor_type
    if 0 in out.shape:
        return op_call("zeros", shape=out.concrete_shape, dtype=out.dtype)
    axes = (
        axes_of(TRANSPOSED, attrs.data_layout, "NCHW", "data_layout"),
        axes_of(TRANSPOSED, attrs.kernel_layout, "IOHW", "kernel_layout"),
    )
    shape, kernel = (tuple(ty.concrete_shape[a] for a in own) for ty, own in zip(types, axes))
    data, weight = map(_transposed, new_args, axes)
    turned = _turned(weight, kernel, attrs.groups)
    spread, padding = _spread(data, attrs, shape, kernel, types[0].dtype)
    convolution = op_call(
        "nn.conv2d",
        spread,
        turned,
        padding=padding,
        dilation=attrs.dilation,
        groups=attrs.groups,
        channels=attrs.groups * kernel[1],
        kernel_size=kernel[2:],
        out_dtype=attrs.out_dtype,
        span=ref_call.span,
    )
    layout = attrs.out_layout or attrs.data_layout
    return _transposed(convolution, tuple("NCHW".index(letter) for letter in layout))


def _transposed(data: Expr, axes: tuple[int, ...]) -> Expr:
    if is_natural(axes):
        return data
    return op_call("transpose", data, axes=axes)


def _turned(weight: Expr, shape: tuple[int, ...], groups: int) -> Expr:
    """``turned_kernel`` of a constant, or as calls."""
    if isinstance(weight, Constant):
        return Constant(turned_kernel(weight.data, groups), span=weight.span)
    c, per_group, *size = shape
    kernel = op_call("reshape", weight, newshape=(groups, c // groups, per_group, *size))
    kernel = op_call("transpose", kernel, axes=(0, 2, 1, 3, 4))
    kernel = op_call("reverse", op_call("reverse", kernel, axis=3), axis=4)
    return op_call("reshape", kernel, newshape=(groups * per_group, c // groups, *size))


def _spread(
    data: Expr,
    attrs: Conv2DTransposeAttrs,
    shape: tuple[int, ...],
    kernel: tuple[int, ...],
    dtype: str,
) -> tuple[Expr, tuple[int, ...]]:
    """Every element followed by stride - 1 zeros, cut to what is read, and the padding around."""
    (n, c, h, w), (rows, columns) = shape, attrs.strides
    if rows > 1 or columns > 1:
        apart = op_call("reshape", data, newshape=(n, c, h, 1, w, 1))
        width = ((0, 0), (0, 0), (0, 0), (0, rows - 1), (0, 0), (0, columns - 1))
        padded = op_call("nn.pad", apart, scalar(0, dtype), pad_width=width)
        data = op_call("reshape", padded, newshape=(n, c, h * rows, w * columns))
    reach = np.array([extent(kernel[k + 2], attrs.dilation[k]) - 1 for k in range(2)])
    before = reach - attrs.padding[:2]
    # stride - 1 zeros already stand behind the last element.
    behind = reach - attrs.padding[2:] + attrs.output_padding - (np.array(attrs.strides) - 1)
    size = np.array((h * rows, w * columns))
    begin = np.maximum(-before, 0)
    end = size + np.minimum(behind, 0)
    if begin.any() or (end != size).any():
        cut: dict[str, Any] = {
            "begin": (0, 0, *begin),
            "end": (n, c, *end),
            "strides": (1, 1, 1, 1),
        }
        data = op_call("strided_slice", data, **cut)
    return data, (*np.maximum(before, 0), *np.maximum(behind, 0))


@FQProductShape.register(conv2d_transpose)
def conv2d_transpose_product(call: Call) -> ProductShape:
    """At most C/G * KH * KW products a sum."""
    c, _, kh, kw = call.args[1].tensor_type.concrete_shape
    return ProductShape(c // Conv2DTransposeAttrs.of(call).groups * kh * kw)
