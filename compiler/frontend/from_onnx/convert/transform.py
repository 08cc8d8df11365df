"""Shape and layout: reshape, transpose, concatenate, split, pad, tile and their kin."""

from __future__ import annotations

import math

import numpy as np

from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("Reshape", since=5)
def reshape(node: OnnxNode) -> Expr:
    """Reshape to a constant shape; 0 copies a dimension unless allowzero is set."""
    data = node.arg(0)
    wanted = node.ints(1, "the shape")
    if not node.attr("allowzero", 0):
        source = data.tensor_type.shape
        if any(d == 0 and axis >= len(source) for axis, d in enumerate(wanted)):
            raise node.error(f"shape {wanted} copies a dimension that {source} does not have")
        return node.call("reshape", data, newshape=tuple(wanted))
    return node.call("reshape", data, newshape=tuple(wanted), allowzero=True)


@from_onnx("Flatten")
def flatten(node: OnnxNode) -> Expr:
    """To two dimensions, split at ``axis``."""
    data = node.arg(0)
    rank = node.rank(data)
    axis = node.attr("axis", 1)
    axis = axis + rank if axis < 0 else axis
    if axis == 1 and rank >= 2:
        return node.call("nn.batch_flatten", data)
    shape = node.shape(data)
    return node.call("reshape", data, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])))


@from_onnx("Squeeze")
@from_onnx("Squeeze", since=13)
def squeeze(node: OnnxNode) -> Expr:
    """Without the given axes, or all of one element."""
    data = node.arg(0)
    axes = node.ints_since(13, 1, "axes", "the axes")
    shape = node.shape(data) if axes is None else ()
    rank = node.rank(data)
    chosen = [i for i, d in enumerate(shape) if d == 1] if axes is None else axes
    chosen = sorted({node.axis(a, rank) for a in chosen})
    if chosen:
        return node.call("squeeze", data, axis=tuple(chosen))
    return data


@from_onnx("Unsqueeze")
@from_onnx("Unsqueeze", since=13)
def unsqueeze(node: OnnxNode) -> Expr:
    """With axes of one element at the given places."""
    result = node.arg(0)
    axes = node.ints_since(13, 1, "axes", "the axes") or ()
    rank = node.rank(result) + len(axes)
    for axis in sorted(node.axis(a, rank) for a in axes):
        result = node.call("expand_dims", result, axis=axis)
    return result


@from_onnx("Transpose")
def transpose(node: OnnxNode) -> Expr:
    """Permutation of axes; reversed when none is given."""
    data = node.arg(0)
    axes = node.attr("perm", None) or list(range(node.rank(data)))[::-1]
    return node.call("transpose", data, axes=tuple(axes))


@from_onnx("Concat", since=4)
def concat(node: OnnxNode) -> Expr:
    """Concatenation along one axis."""
    return node.joined(node.args(), node.attr("axis"))


@from_onnx("Split", since=2)
@from_onnx("Split", since=13)
def split(node: OnnxNode) -> list[Expr]:
    """Sections of the given sizes, or of equal ones."""
    data = node.arg(0)
    sizes = node.ints_since(13, 1, "split", "the section sizes")
    axis = node.axis(node.attr("axis", 0), node.rank(data))
    length = node.size(data, axis)
    if sizes is None:
        count = node.attr("num_outputs", len(node.proto.output))
        each = -(-length // count)
        sizes = [min(each, length - i * each) for i in range(count)]
    if sum(sizes) != length or any(s < 0 for s in sizes):
        raise node.error(f"sections {list(sizes)} do not add up to {length}")
    if len(sizes) == 1:
        return [data]
    cuts = tuple(int(c) for c in np.cumsum(sizes)[:-1])
    parts = node.call("split", data, indices_or_sections=cuts, axis=axis)
    return [node.field(parts, i) for i in range(len(sizes))]


@from_onnx("Expand", since=8)
def expand(node: OnnxNode) -> Expr:
    """Broadcast to the joint shape of data and a constant shape."""
    data = node.arg(0)
    wanted = tuple(node.ints(1, "the shape"))
    try:
        shape = np.broadcast_shapes(node.shape(data), wanted)
    except ValueError as error:
        raise node.error(f"{node.shape(data)} does not broadcast with {wanted}") from error
    if shape == node.shape(data):
        return data
    return node.call("broadcast_to", data, shape=shape)


@from_onnx("Tile", since=6)
def tile(node: OnnxNode) -> Expr:
    """Repeat along every axis, a constant number of times."""
    return node.call("tile", node.arg(0), reps=tuple(node.ints(1, "the repeats")))


@from_onnx("Pad", since=2)
@from_onnx("Pad", since=11)
def pad(node: OnnxNode) -> Expr:
    """Padding as attributes, from opset 11 as inputs, from 18 for chosen axes."""
    data = node.arg(0)
    rank = node.rank(data)
    given = node.attr("pads") if node.opset < 11 else node.ints(1, "the padding")
    pads = given
    fill: Expr = node.scalar_like(node.attr("value", 0.0), data)
    if node.has_input(3):
        axes = [node.axis(a, rank) for a in node.ints(3, "the axes")]
        pads = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            pads[axis], pads[axis + rank] = given[i], given[i + len(axes)]
    if node.has_input(2):
        known = node.known(2)
        fill = node.const(known.reshape(())) if known is not None else node.arg(2)
    mode = node.choice("mode", ("constant", "edge", "reflect", "wrap"))
    width = tuple((int(pads[i]), int(pads[i + rank])) for i in range(rank))
    return _padded(node, width, fill, mode)


def _padded(node: OnnxNode, width: tuple[tuple[int, int], ...], fill: Expr, mode: str) -> Expr:
    """The first input with so many elements more, or fewer, at the ends of each axis."""
    data = node.arg(0)
    if any(p < 0 for pair in width for p in pair):
        data, width = _crop(node, data, width)
    if not any(p for pair in width for p in pair):
        return data
    if mode == "wrap":
        return _wrap(node, data, width)
    return node.call("nn.pad", data, fill, pad_width=width, pad_mode=mode)


def _wrap(node: OnnxNode, data: Expr, width: tuple[tuple[int, int], ...]) -> Expr:
    """The data repeated endlessly, cut where the padding ends."""
    for axis, (size, (low, high)) in enumerate(zip(node.shape(data), width)):
        if size < 1 or low + high > MAX_CONSTANT:
            raise node.error(f"axis {axis} of size {size} cannot be padded by {low} and {high}")
        if low or high:
            indices = np.arange(-low, size + high, dtype=np.int64) % size
            data = node.call("take", data, node.const(indices), axis=axis)
    return data


def _crop(
    node: OnnxNode, data: Expr, width: tuple[tuple[int, int], ...]
) -> tuple[Expr, tuple[tuple[int, int], ...]]:
    """Negative padding cuts elements off."""
    shape = node.shape(data)
    begin = tuple(max(-low, 0) for low, _ in width)
    end = tuple(d - max(-high, 0) for d, (_, high) in zip(shape, width))
    cut = node.call("strided_slice", data, begin=begin, end=end, strides=(1,) * len(shape))
    return cut, tuple((max(low, 0), max(high, 0)) for low, high in width)


@from_onnx("DepthToSpace")
def depth_to_space(node: OnnxNode) -> Expr:
    """Channels to pixels, in DCR or CRD order."""
    return _with_blocks(node, "nn.depth_to_space")


@from_onnx("SpaceToDepth")
def space_to_depth(node: OnnxNode) -> Expr:
    """Pixels to channels."""
    return _with_blocks(node, "nn.space_to_depth")


def _with_blocks(node: OnnxNode, op: str) -> Expr:
    block = node.attr("blocksize")
    mode = node.attr("mode", "DCR")
    return node.call(op, node.arg(0), block_size=block, mode=mode)
