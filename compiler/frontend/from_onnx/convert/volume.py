"""Three spatial axes, composed of two-dimensional operators.

A pool is separable: over height and width first, then over depth; the count of elements under an
averaging window is a product of counts per axis, so its mean is separable too. A convolution is a
sum over the taps of the kernel's depth, each a two-dimensional convolution of all depth slices.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from compiler.frontend.from_onnx.convert.window import Window
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.ir.expr import Expr

Pool = Callable[[Expr, Window], Expr]


def pool_volume(node: OnnxNode, data: Expr, window: Window, pool: Pool) -> Expr:
    """``pool`` over three axes of (N, C, D, H, W); ``pool(data, window)`` pools (N, C, H, W)."""
    n, c, depth, height, width = node.shape(data)
    planes = node.call("reshape", data, newshape=(n, c * depth, height, width))
    planes = pool(planes, _axes_of(window, slice(1, 3)))
    height, width = node.shape(planes)[2:]
    columns = node.call("reshape", planes, newshape=(n, c, depth, height * width))
    columns = pool(columns, _with_unit_width(_axes_of(window, slice(0, 1))))
    return node.call("reshape", columns, newshape=(n, c, node.shape(columns)[2], height, width))


def _axes_of(window: Window, axes: slice) -> Window:
    return Window(
        window.kernel[axes],
        window.strides[axes],
        window.dilations[axes],
        window.begins[axes],
        window.ends[axes],
    )


def _with_unit_width(window: Window) -> Window:
    return Window(
        (*window.kernel, 1),
        (*window.strides, 1),
        (*window.dilations, 1),
        (*window.begins, 0),
        (*window.ends, 0),
    )


def _plane_weight(node: OnnxNode, tap: int) -> Expr:
    """Weight of one tap of the kernel's depth: (O, I, kh, kw)."""
    derived = node.weight(1, f"depth_{tap}", lambda w: w[:, :, tap].copy())
    if derived is not None:
        return derived
    cut = node.call(
        "strided_slice", node.arg(1), begin=(tap,), end=(tap + 1,), strides=(1,), axes=(2,)
    )
    return node.call("squeeze", cut, axis=(2,))


def _depth_first(node: OnnxNode, data: Expr) -> Expr:
    """(N, C, D, H, W) as (N, D, C, H, W)."""
    return node.call("transpose", data, axes=(0, 2, 1, 3, 4))


def _slices_as_batch(node: OnnxNode, data: Expr) -> Expr:
    """(N, D, C, H, W) as (N·D, C, H, W)."""
    n, d, *rest = node.shape(data)
    return node.call("reshape", data, newshape=(n * d, *rest))


def _pad_depth(node: OnnxNode, data: Expr, before: int, after: int) -> Expr:
    """Zeros along axis 1."""
    if not before and not after:
        return data
    width = tuple((before, after) if axis == 1 else (0, 0) for axis in range(node.rank(data)))
    return node.call("nn.pad", data, node.scalar_like(0, data), pad_width=width)


def _sum(node: OnnxNode, terms: list[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = node.call("add", total, term)
    return total


def convolve_volume(node: OnnxNode, data: Expr, window: Window, groups: int) -> Expr:
    """Conv of (N, C, D, H, W) without bias."""
    kd, sd, dd = window.kernel[0], window.strides[0], window.dilations[0]
    stack = _pad_depth(node, _depth_first(node, data), window.begins[0], window.ends[0])
    n, depth = node.shape(stack)[:2]
    out_depth = (depth - (kd - 1) * dd - 1) // sd + 1
    if out_depth < 1:
        raise node.error(f"the kernel is deeper than the data: {kd} with dilation {dd}")
    planes = _axes_of(window, slice(1, 3))
    terms: list[Expr] = []
    for tap in range(kd):
        begin = tap * dd
        chosen = node.call(
            "strided_slice",
            stack,
            begin=(begin,),
            end=(begin + (out_depth - 1) * sd + 1,),
            strides=(sd,),
            axes=(1,),
        )
        weight = _plane_weight(node, tap)
        terms.append(
            node.call(
                "nn.conv2d",
                _slices_as_batch(node, chosen),
                weight,
                strides=planes.strides,
                padding=planes.padding,
                dilation=planes.dilations,
                groups=groups,
                channels=node.shape(weight)[0],
                kernel_size=planes.kernel,
            )
        )
    total = _sum(node, terms)
    unfolded = node.call("reshape", total, newshape=(n, out_depth, *node.shape(total)[1:]))
    return _depth_first(node, unfolded)


def convolve_volume_transposed(
    node: OnnxNode, data: Expr, window: Window, extra: tuple[int, ...], groups: int
) -> Expr:
    """ConvTranspose of (N, C, D, H, W) without bias; ``extra`` is the output padding per axis."""
    kd, sd, dd = window.kernel[0], window.strides[0], window.dilations[0]
    stack = _depth_first(node, data)
    n, depth = node.shape(stack)[:2]
    planes = _axes_of(window, slice(1, 3))
    terms: list[Expr] = []
    for tap in range(kd):
        weight = _plane_weight(node, tap)
        term = node.call(
            "nn.conv2d_transpose",
            _slices_as_batch(node, stack),
            weight,
            strides=planes.strides,
            padding=planes.padding,
            dilation=planes.dilations,
            groups=groups,
            channels=node.shape(weight)[1] * groups,
            kernel_size=planes.kernel,
            output_padding=extra[1:],
        )
        spread = _interleave_zeros(node, term, n, depth, sd)
        terms.append(_pad_depth(node, spread, tap * dd, (kd - 1 - tap) * dd + extra[0]))
    total = _sum(node, terms)
    full = node.shape(total)[1]
    begin, end = window.begins[0], full - window.ends[0]
    if (begin, end) != (0, full):
        total = node.call(
            "strided_slice", total, begin=(begin,), end=(end,), strides=(1,), axes=(1,)
        )
    return _depth_first(node, total)


def _interleave_zeros(node: OnnxNode, data: Expr, n: int, depth: int, stride: int) -> Expr:
    """(N·D, C, H, W) as (N, (D - 1)·stride + 1, C, H, W) with zeros between the slices."""
    rest = node.shape(data)[1:]
    if stride == 1:
        return node.call("reshape", data, newshape=(n, depth, *rest))
    apart = node.call("reshape", data, newshape=(n * depth, 1, math.prod(rest)))
    padded = _pad_depth(node, apart, 0, stride - 1)
    joined = node.call("reshape", padded, newshape=(n, depth * stride, *rest))
    return node.call(
        "strided_slice",
        joined,
        begin=(0,),
        end=((depth - 1) * stride + 1,),
        strides=(1,),
        axes=(1,),
    )
