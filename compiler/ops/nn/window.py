"""Geometry of sliding windows: padding, output sizes, layouts. Shared by convolutions and pools."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any as AnyValue

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import Words, shape_of
from compiler.errors import AttrError, TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import Any, Dim, Shape
from compiler.ops.arg_types import merge_dim
from compiler.ops.op_attrs import OpAttrs

Array = NDArray[AnyValue]


def full_padding(record: str, padding: tuple[int, ...]) -> tuple[int, ...]:
    """Padding as (top, left, bottom, right): 1 value = all sides; 2 = (height, width) both sides.

    Raises:
        AttrError: another count, or a negative value.
    """
    if any(p < 0 for p in padding):
        raise AttrError(f"{record}: padding {list(padding)} has a negative value")
    if len(padding) not in (1, 2, 4):
        raise AttrError(
            f"{record}: padding {list(padding)} has {len(padding)} values",
            fix="give 1, 2 or 4 values",
        )
    return padding * (4 // len(padding))


@cache
def axes_of(op: str, layout: str, wanted: str, what: str) -> tuple[int, ...]:
    """Positions of the letters ``wanted`` (such as "NCHW") in ``layout`` (such as "NHWC").

    Raises:
        TypeInferenceError: ``layout`` is no permutation of these letters.
    """
    if sorted(layout) != sorted(wanted):
        raise TypeInferenceError(
            f"{op}: {what} {layout!r} is not supported", fix=f"use a permutation of {wanted!r}"
        )
    return tuple(layout.index(letter) for letter in wanted)


def arrange(shape: Shape, axes: tuple[int, ...]) -> tuple[Dim, ...]:
    """The sizes at ``axes``: from a layout's order to the canonical one."""
    return tuple(shape[a] for a in axes)


def restore(dims: tuple[Dim, ...], axes: tuple[int, ...]) -> tuple[Dim, ...]:
    """Inverse of ``arrange``."""
    found: list[Dim] = [0] * len(dims)
    for dim, axis in zip(dims, axes):
        found[axis] = dim
    return tuple(found)


def extent(kernel: int, dilation: int) -> int:
    """Input elements one window spans."""
    return (kernel - 1) * dilation + 1


def output_size(
    op: str, size: Dim, before: int, after: int, span: int, stride: int, ceil_mode: bool = False
) -> Dim:
    """Number of windows along one axis.

    ``ceil_mode`` counts a last incomplete window, unless it would start in the padding behind the
    data (the rule of ONNX and PyTorch).

    Raises:
        TypeInferenceError: the window is larger than the padded input.
    """
    if isinstance(size, Any):
        return size
    room = size + before + after - span
    if room < 0:
        raise TypeInferenceError(
            f"{op}: a window of {span} does not fit in {size} elements with padding "
            f"{before} and {after}"
        )
    if not ceil_mode:
        return room // stride + 1
    count = -(-room // stride) + 1
    if (count - 1) * stride >= size + before:
        count -= 1
    return count


def full_pair(record: str, name: str, value: tuple[int, ...], minimum: int = 1) -> tuple[int, int]:
    """An attribute as (height, width); one value stands for both.

    Raises:
        AttrError: another count, or a value below ``minimum``.
    """
    pair = value * 2 if len(value) == 1 else value
    if len(pair) != 2 or min(pair) < minimum:
        raise AttrError(
            f"{record}: {name} {list(value)} is not a pair of ints of at least {minimum}"
        )
    return pair[0], pair[1]


def set_geometry(attrs: OpAttrs, *pairs: str, minimum: int = 1) -> None:
    """For ``__post_init__``: padding in its four-value form, the named fields as pairs.

    Args:
        attrs: the record under construction.
        pairs: fields that hold (height, width), or None.
        minimum: smallest legal value of these.

    Raises:
        AttrError: a count or value that has no such form.
    """
    record = attrs.type_key
    fields = dict(attrs.items())
    object.__setattr__(attrs, "padding", full_padding(record, fields["padding"]))
    for name in pairs:
        if fields[name] is not None:
            object.__setattr__(attrs, name, full_pair(record, name, fields[name], minimum))


def pad_spatial(
    data: Array, padding: tuple[int, ...], fill: AnyValue, extra: tuple[int, int] = (0, 0)
) -> Array:
    """(N, C, H, W) with ``fill`` around it; ``extra`` more rows and columns at the end."""
    top, left, bottom, right = padding
    bottom = bottom + extra[0]
    right = right + extra[1]
    if not (top or left or bottom or right):
        return data
    n, c, h, w = data.shape
    padded = np.full((n, c, h + top + bottom, w + left + right), fill, data.dtype)
    padded[:, :, top : top + h, left : left + w] = data
    return padded


def tap(padded: Array, r: int, s: int, out: tuple[int, int], strides: tuple[int, ...]) -> Array:
    """The view (N, C, OH, OW) of what tap (r, s), dilation included, reads at every output."""
    sh = strides[0]
    sw = strides[1]
    return padded[:, :, r : r + (out[0] - 1) * sh + 1 : sh, s : s + (out[1] - 1) * sw + 1 : sw]


def check_groups(op: str, groups: int, inputs: Dim, outputs: Dim | None) -> None:
    """Refuse numbers of channels that the groups do not divide; unknown numbers pass.

    Raises:
        TypeInferenceError: names the channels.
    """
    for size, what in ((inputs, "input"), (outputs, "output")):
        if groups < 1 or (isinstance(size, int) and size % groups):
            raise TypeInferenceError(
                f"{op}: groups={groups} does not divide {size} {what} channels"
            )


def as_declared(op: str, attrs: AnyValue, o: Dim, kh: Dim, kw: Dim) -> tuple[Dim, Dim, Dim]:
    """Output channels and kernel size of the weight, merged with what the attributes declare.

    Raises:
        TypeInferenceError: the two differ.
    """
    if attrs.channels is not None:
        o = merge_dim(op, attrs.channels, o, "number of output channels (channels, weight)")
    if attrs.kernel_size is not None:
        kh = merge_dim(op, attrs.kernel_size[0], kh, "kernel height (kernel_size, weight)")
        kw = merge_dim(op, attrs.kernel_size[1], kw, "kernel width (kernel_size, weight)")
    return o, kh, kw


def image_word(
    step: Step, words: Words, orders: Sequence[tuple[str, str]], **how: AnyValue
) -> Value | None:
    """The word of a step on images, with operands and result in their natural layouts; None if they
    have these.

    Args:
        orders: layout of each operand, and its natural one.
        how: attributes of the word but for layouts.
    """
    result = step.results[0]
    out = step.attrs.out_layout or orders[0][0]
    if all(layout == natural for layout, natural in (*orders, (out, "NCHW"))):
        return None
    args = [
        words.transpose(value, [layout.index(c) for c in natural])
        for value, (layout, natural) in zip(step.args, orders)
    ]
    shape = [shape_of(result)[out.index(c)] for c in "NCHW"]
    found = words.word(step.name, args, shape, result.type.dtype, **how)
    return words.transpose(found, ["NCHW".index(c) for c in out])
