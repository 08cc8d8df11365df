"""nn.pad in front of a convolution or pooling becomes the padding of that operator.

    nn.conv2d(nn.pad(%x, 0f, pad_width=[[0, 0], [0, 0], [1, 1], [1, 1]]), %w)
    nn.conv2d(%x, %w, padding=[1, 1, 1, 1])

The pad must be constant, on spatial axes only, with the value the operator pads with itself: 0 for
convolutions and averages that count it, minus infinity for maxima. Source: Relay v0.10
transforms/fold_explicit_padding.cc.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, is_op_call
from compiler.ops.rules.simplify import FSimplifyExpr, TypeOf


def _spatial_padding(pad: Expr, layout: str, value: float) -> tuple[int, ...] | None:
    """All amounts before, then all behind, along the spatial axes; None where not mergeable."""
    if not is_op_call(pad, "nn.pad"):
        return None
    assert isinstance(pad, Call)
    attrs: Any = pad.attrs
    filler = pad.args[1]
    if attrs.pad_mode != "constant":
        return None
    if not isinstance(filler, Constant) or not bool(np.all(filler.data == value)):
        return None
    before, after = [], []
    for letter, (low, high) in zip(layout, attrs.pad_width):
        if letter in "HW":
            before.append(low)
            after.append(high)
        elif low or high:
            return None
    amounts = (*before, *after)
    return amounts if min(amounts, default=-1) >= 0 else None


def _padded(call: Call, amounts: tuple[int, ...], **changed: Any) -> Call:
    attrs: Any = call.attrs
    padding = tuple(old + more for old, more in zip(attrs.padding, amounts, strict=True))
    pad = call.args[0]
    assert isinstance(pad, Call)
    return call.with_fields(
        args=(pad.args[0], *call.args[1:]), attrs=attrs.with_values(padding=padding, **changed)
    )


def _fits_window(call: Call, amounts: tuple[int, ...]) -> bool:
    # Runtimes refuse a pooling window that can lie in the padding altogether.
    attrs: Any = call.attrs
    sums = [old + more for old, more in zip(attrs.padding, amounts)]
    return all(p < k for p, k in zip(sums, attrs.pool_size * 2))


@FSimplifyExpr.register("nn.conv2d")
def merge_pad_into_conv(call: Call, type_of: TypeOf) -> Expr | None:
    """Zeros around the data."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.data_layout, 0.0)
    return None if amounts is None else _padded(call, amounts)


@FSimplifyExpr.register("nn.max_pool2d")
def merge_pad_into_max_pool(call: Call, type_of: TypeOf) -> Expr | None:
    """Minus infinity around the data."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.layout, -np.inf)
    if amounts is None or attrs.ceil_mode or not _fits_window(call, amounts):
        return None
    return _padded(call, amounts)


@FSimplifyExpr.register("nn.avg_pool2d")
def merge_pad_into_avg_pool(call: Call, type_of: TypeOf) -> Expr | None:
    """Zeros around the data that count as elements, like the zeros of the pad."""
    attrs: Any = call.attrs
    amounts = _spatial_padding(call.args[0], attrs.layout, 0.0)
    if amounts is None or attrs.ceil_mode or not _fits_window(call, amounts):
        return None
    if any(attrs.padding) and not attrs.count_include_pad:
        return None
    return _padded(call, amounts, count_include_pad=True)
