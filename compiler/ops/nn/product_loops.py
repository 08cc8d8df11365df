"""Loops of convolutions and matrix products: operands widened, one reduction block.

Integers are multiplied and added in the dtype of the result and wrap there; float16 in float32. A
bool result says whether the sum is not zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compiler.ir.ty import TensorType
from compiler.lir import index
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Axis, Bin, Cast, Scalar, literal
from compiler.ops.nn.window_loops import LOOP_NAMES, Image, tap_position


def accumulator(dtype: str) -> str:
    """The dtype in which products of a result of ``dtype`` are summed."""
    return {"float16": "float32", "bool": "int64"}.get(dtype, dtype)


def product_of(a: Scalar, b: Scalar, dtype: str) -> Scalar:
    """a * b in an accumulator of ``dtype``."""
    return Bin("*", _wide(a, dtype), _wide(b, dtype))


def _wide(value: Scalar, dtype: str) -> Scalar:
    if value.dtype == dtype:
        return value
    return Cast(dtype, value)


def turned(view: TensorView) -> TensorView:
    """The last two axes exchanged."""
    shape = (*view.shape[:-2], view.shape[-1], view.shape[-2])
    return TensorView.of(shape, lambda at: view.at((*at[:-2], at[-1], at[-2])))


def matmul_loops(
    builder: LirBuilder, left: TensorView, right: TensorView, out: TensorType
) -> TensorView:
    """sum over k of left[..., i, k] * right[..., k, j].

    Args:
        builder: of the function.
        left: (..., M, K), or (K,).
        right: (..., K, N).
        out: of the result.
    """
    acc = accumulator(out.dtype)
    shape = out.concrete_shape
    reads = max(shape[-2:], default=1)
    a, b = (builder.for_reduction(view, reads) for view in (left, right))
    names = [*"ijlmnpq"[: len(shape) - 1], "u"][-max(len(shape), 1) :]
    return builder.reduce(
        shape,
        Reduction("sum", literal(0, acc), dtype=out.dtype),
        [("k", left.shape[-1])],
        lambda at, r: product_of(
            a.broadcast_at((*at[:-1], r[0])), b.broadcast_at((*at[:-2], r[0], at[-1])), acc
        ),
        names=names,
    )


def convolution_loops(
    builder: LirBuilder, data: TensorView, kernel: TensorView, attrs: Any, out: TensorType
) -> TensorView:
    """Grouped 2-D convolution.

    Groups are a loop of their own, inside of which the channels of a group run; a depthwise
    convolution has one loop over its channels.

    Args:
        builder: of the function.
        data: image tensor.
        kernel: with the letters O, I, H, W.
        attrs: of the convolution.
        out: of the result.
    """
    acc = accumulator(out.dtype)
    shape = out.concrete_shape
    groups = attrs.groups
    weight = Image(kernel, attrs.kernel_layout)
    filters = weight.sizes["O"]
    depth = weight.sizes["I"]
    rows, columns = weight.sizes["H"], weight.sizes["W"]
    reads = filters // groups * rows * columns
    image = Image(builder.for_reduction(data, reads), attrs.data_layout)
    per_group = filters // groups
    layout = attrs.out_layout or attrs.data_layout
    axes, out_index, group, channel = channel_loops(shape, layout, groups, per_group)
    letters = {axis.name: axis for axis in axes}
    taps = [("i", rows), ("j", columns)]
    if groups > 1 and depth == 1:
        raxes = taps
    else:
        raxes = [("c", depth), *taps]
    zero = literal(0, image.dtype)

    def body(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        within_group, (i, j) = r[0] if len(r) == 3 else index.imm(0), r[-2:]
        y = tap_position(letters["y"], i, attrs, 0)
        x = tap_position(letters["x"], j, attrs, 1)
        source = index.plus(index.times(group, depth), within_group)
        value = image.inside(zero, y, x, N=letters["n"], C=source)
        return product_of(value, weight.at(O=channel, I=within_group, H=i, W=j), acc)

    return builder.reduce_into(
        shape, axes, out_index, Reduction("sum", literal(0, acc), dtype=out.dtype), raxes, body
    )


def channel_loops(
    shape: Sequence[int], layout: str, groups: int, per_group: int
) -> tuple[tuple[Axis, ...], tuple[Scalar, ...], Scalar, Scalar]:
    """Loops over the result of a grouped convolution.

    Returns:
        The loops; where their point goes in the result; the group; the channel of the result.
    """
    axes: list[Axis] = []
    out_index: list[Scalar] = []
    group: Scalar = index.imm(0)
    channel: Scalar = index.imm(0)
    for letter, extent in zip(layout, shape):
        if letter == "C":
            if groups == 1 or per_group == 1:
                own = Axis(LOOP_NAMES["C"], extent)
                group = own if groups > 1 else index.imm(0)
                channel = own
                axes.append(own)
            else:
                group = Axis("g", groups)
                inner = Axis(LOOP_NAMES["C"], per_group)
                channel = index.plus(index.times(group, per_group), inner)
                axes += [group, inner]
            out_index.append(channel)
        else:
            loop = Axis(LOOP_NAMES[letter], extent)
            axes.append(loop)
            out_index.append(loop)
    return tuple(axes), tuple(out_index), group, channel
