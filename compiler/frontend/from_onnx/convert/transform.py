"""Shape and layout: reshape, transpose, concatenate, split, pad, tile and their kin."""

from __future__ import annotations

import math

import numpy as np

from compiler.frontend.from_onnx.node import MAX_CONSTANT, OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr


@from_onnx("Reshape", since=5)
def reshape(node: OnnxNode, data: Expr, shape: list[int], *, allowzero: bool = False) -> Expr:
    """Reshape to a constant shape; 0 copies a dimension unless allowzero is set."""
    if allowzero:
        return node.call("reshape", data, newshape=tuple(shape), allowzero=True)
    source = data.tensor_type.shape
    if any(d == 0 and axis >= len(source) for axis, d in enumerate(shape)):
        raise node.error(f"shape {shape} copies a dimension that {source} does not have")
    return node.call("reshape", data, newshape=tuple(shape))


@from_onnx("Flatten")
def flatten(node: OnnxNode, data: Expr, *, axis: int = 1) -> Expr:
    """To two dimensions, split at ``axis``."""
    rank = node.rank(data)
    axis = axis + rank if axis < 0 else axis
    if axis == 1 and rank >= 2:
        return node.call("nn.batch_flatten", data)
    shape = node.shape(data)
    return node.call("reshape", data, newshape=(math.prod(shape[:axis]), math.prod(shape[axis:])))


@from_onnx("Squeeze")
def squeeze_before_opset_13(node: OnnxNode, data: Expr, *, axes: list[int] | None = None) -> Expr:
    """The axes are an attribute."""
    return squeeze(node, data, axes)


@from_onnx("Squeeze", since=13)
def squeeze(node: OnnxNode, data: Expr, axes: list[int] | None = None) -> Expr:
    """Without the given axes, or all of one element."""
    rank = node.rank(data)
    if axes is None:
        axes = [i for i, d in enumerate(node.shape(data)) if d == 1]
    chosen = sorted({node.axis(a, rank) for a in axes})
    if chosen:
        return node.call("squeeze", data, axis=tuple(chosen))
    return data


@from_onnx("Unsqueeze")
def unsqueeze_before_opset_13(node: OnnxNode, data: Expr, *, axes: list[int]) -> Expr:
    """The axes are an attribute."""
    return unsqueeze(node, data, axes)


@from_onnx("Unsqueeze", since=13)
def unsqueeze(node: OnnxNode, data: Expr, axes: list[int]) -> Expr:
    """With axes of one element at the given places."""
    rank = node.rank(data) + len(axes)
    for axis in sorted(node.axis(a, rank) for a in axes):
        data = node.call("expand_dims", data, axis=axis)
    return data


@from_onnx("Transpose")
def transpose(node: OnnxNode, data: Expr, *, perm: list[int] | None = None) -> Expr:
    """Permutation of axes; reversed when none is given."""
    axes = perm or list(range(node.rank(data)))[::-1]
    return node.call("transpose", data, axes=tuple(axes))


@from_onnx("Concat", since=4)
def concat(node: OnnxNode, *data: Expr, axis: int) -> Expr:
    """Concatenation along one axis."""
    return node.joined(data, axis)


@from_onnx("Split", since=2)
def split_before_opset_13(
    node: OnnxNode, data: Expr, *, axis: int = 0, split: list[int] | None = None
) -> list[Expr]:
    """The section sizes are an attribute."""
    return sections(node, data, split, axis=axis)


@from_onnx("Split", since=13)
def sections(
    node: OnnxNode,
    data: Expr,
    split: list[int] | None = None,
    *,
    axis: int = 0,
    num_outputs: int | None = None,
) -> list[Expr]:
    """Sections of the given sizes, or of equal ones."""
    axis = node.axis(axis, node.rank(data))
    length = node.size(data, axis)
    if split is None:
        if num_outputs is None:
            count = len(node.proto.output)
        else:
            count = num_outputs
        each = -(-length // count)
        split = [min(each, length - i * each) for i in range(count)]
    if sum(split) != length or any(s < 0 for s in split):
        raise node.error(f"sections {list(split)} do not add up to {length}")
    if len(split) == 1:
        return [data]
    cuts = tuple(int(c) for c in np.cumsum(split)[:-1])
    parts = node.call("split", data, indices_or_sections=cuts, axis=axis)
    return [node.field(parts, i) for i in range(len(split))]


@from_onnx("Expand", since=8)
def expand(node: OnnxNode, data: Expr, shape: list[int]) -> Expr:
    """Broadcast to the joint shape of data and a constant shape."""
    wanted = tuple(shape)
    try:
        joint = np.broadcast_shapes(node.shape(data), wanted)
    except ValueError as error:
        raise node.error(f"{node.shape(data)} does not broadcast with {wanted}") from error
    if joint == node.shape(data):
        return data
    return node.call("broadcast_to", data, shape=joint)


@from_onnx("Tile", since=6)
def tile(node: OnnxNode, data: Expr, repeats: list[int]) -> Expr:
    """Repeat along every axis, a constant number of times."""
    return node.call("tile", data, reps=tuple(repeats))


@from_onnx("Pad", since=2)
@from_onnx("Pad", since=11)
def pad(node: OnnxNode) -> Expr:
    """Padding as attributes, from opset 11 as inputs, from 18 for chosen axes."""
    data = node.arg(0)
    rank = node.rank(data)
    if node.opset < 11:
        given = node.attr("pads")
    else:
        given = node.ints(1, "the padding")
    pads = given
    fill: Expr = node.scalar_like(node.attr("value", 0.0), data)
    if node.has_input(3):
        axes = [node.axis(a, rank) for a in node.ints(3, "the axes")]
        pads = [0] * (2 * rank)
        for i, axis in enumerate(axes):
            pads[axis], pads[axis + rank] = given[i], given[i + len(axes)]
    if node.has_input(2):
        known = node.known(2)
        if known is not None:
            fill = node.const(known.reshape(()))
        else:
            fill = node.arg(2)
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
def depth_to_space(node: OnnxNode, data: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Channels to pixels, in DCR or CRD order."""
    return node.call("nn.depth_to_space", data, block_size=blocksize, mode=mode)


@from_onnx("SpaceToDepth")
def space_to_depth(node: OnnxNode, data: Expr, *, blocksize: int, mode: str = "DCR") -> Expr:
    """Pixels to channels."""
    return node.call("nn.space_to_depth", data, block_size=blocksize, mode=mode)
