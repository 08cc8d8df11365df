"""Building operator calls by name, for the rules and passes that make new nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Op
from compiler.ir.span import AnySpan


def op_call(name: str, *args: Expr, span: AnySpan | None = None, **attrs: Any) -> Call:
    """A call of operator ``name``; attributes not given have their defaults.

    Raises:
        UnknownOpError: no such operator.
        AttrError: an attribute it does not have.
    """
    op = Op.get(name)
    record = op.attrs_type.make(**attrs) if op.attrs_type is not None else None
    return Call(op, args, record, span=span)


def scalar(value: float, dtype: str, span: AnySpan | None = None) -> Constant:
    """A rank-0 constant: ``value`` rounded to float32, then to ``dtype``."""
    return Constant(np.asarray(np.float32(value)).astype(dtype), span=span)


def expand_to_axis(vector: Expr, axis: int, ndim: int, span: AnySpan | None = None) -> Expr:
    """A rank-1 vector with trailing 1-axes, so that it broadcasts along ``axis`` of ``ndim`` axes.

    ``axis`` is not negative. The vector itself when it is the last axis.
    """
    num_newaxis = ndim - axis - 1
    if num_newaxis == 0:
        return vector
    return op_call("expand_dims", vector, axis=1, num_newaxis=num_newaxis, span=span)


def reshape_to_axes(
    values: Expr, axes: Sequence[int], shape: Sequence[int], span: AnySpan | None = None
) -> Expr:
    """``values`` reshaped to ``shape`` on ``axes`` and to 1 on all others."""
    newshape = tuple(size if i in axes else 1 for i, size in enumerate(shape))
    return op_call("reshape", values, newshape=newshape, span=span)
