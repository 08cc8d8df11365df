"""scatter_nd: a copy of data with updates written at given places.

The reduction (mode) says what happens to the old value: "update" replaces it, "add", "mul", "min"
and "max" combine. Updates are applied in row-major order, so of several updates of one place
"update" keeps the last one. Indices outside are clipped to the nearest place.

The word is scatter_nd of rows: data (n, w), indices (1, e), updates (e, w). Every other form has
a body in it. Time and memory are linear in the data and the updates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError, legal_names
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.arg_types import Types, index_tensor, same_dtype, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.reduce.sum import added_up
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.integer_calls import scalar
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views, library_routine
from compiler.ops.rules.never_negative import FNeverNegative
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import in_integers
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr
from compiler.ops.rules.unify_scales import unify_for_concatenate
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint
from compiler.ops.transform.take import flat_places, kept_inside
from compiler.qtypes.context import QuantizeContext

_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_MODES = ("update", *_COMBINE)


class ScatterNDAttrs(OpAttrs):
    """The reduction."""

    mode: str = "update"


def _check_mode(op: str, mode: str) -> None:
    if mode not in _MODES:
        raise TypeInferenceError(f"{op}: mode {mode!r} is unknown", fix=legal_names(mode, _MODES))


@define_op("scatter_nd", arg_names=("data", "indices", "updates"), pattern=OpPattern.OPAQUE)
def scatter_nd(types: Types, attrs: ScatterNDAttrs) -> Type:
    """Type of the data; index tuples run along axis 0 of the indices (M, …).

    Raises:
        TypeInferenceError: tuples do not index the data, or the updates do not fit.
    """
    op = "scatter_nd"
    data = tensor(op, types, 0, "data")
    indices = index_tensor(op, types, 1, "indices")
    updates = tensor(op, types, 2, "updates")
    same_dtype(op, data, updates)
    _check_mode(op, attrs.mode)
    length = indices.shape[0] if indices.shape else None
    if not isinstance(length, int) or not 0 < length <= len(data.shape):
        raise TypeInferenceError(f"{op}: tuples of {length} components do not index {data}")
    if updates.shape != (*indices.shape[1:], *data.shape[length:]):
        raise TypeInferenceError(
            f"{op}: updates {updates} do not fit indices {indices} into data {data}"
        )
    _check_room(op, data.shape[:length], updates)
    return data


def _check_room(op: str, sizes: Sequence[Dim], updates: TensorType) -> None:
    if 0 in sizes and 0 not in updates.shape:
        raise TypeInferenceError(f"{op}: updates {updates} have no place in sizes {tuple(sizes)}")


def _write(out: NDArray[Any], index: tuple[Any, ...], updates: NDArray[Any], mode: str) -> None:
    if mode == "update":
        out[index] = updates
    else:
        _COMBINE[mode].at(out, index, updates)


@FNumpyCompute.register(scatter_nd)
def scatter_nd_numpy(attrs: ScatterNDAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Indices outside are clipped."""
    data, indices, updates = args
    index = tuple(kept_inside(indices[k], data.shape[k], "clip") for k in range(len(indices)))
    out = data.copy()
    _write(out, index, updates, attrs.mode)
    return [out]


_ROUTINE = library_routine("scatter_nd", scatter_nd_numpy)


@FLower.register(scatter_nd)
def scatter_nd_lower(
    call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder
) -> Lowered | None:
    """A routine for rows; other forms have the loops of their words."""
    rows = is_of_rows(inputs[0].shape, inputs[1].shape)
    if rows:
        return _ROUTINE(call, inputs, out_types, b)
    return None


def is_of_rows(data: tuple[int, ...], indices: tuple[int, ...]) -> bool:
    """Return whether shapes of data and indices are those of the word."""
    return len(data) == len(indices) == 2 and indices[0] == 1


def most_updates(indices: NDArray[Any] | None, shape: tuple[int, ...], rows: int) -> int:
    """Return the most updates of one row: all of them, unless the indices are known.

    Args:
        indices: of rows, where they are known.
        shape: of the indices.
        rows: number of rows; indices outside are clipped.
    """
    if indices is None or not indices.size:
        return math.prod(shape)
    return int(np.bincount(kept_inside(indices, rows, "clip").reshape(-1)).max())


@FBody.register("scatter_nd")
def scatter_nd_body(step: Step, words: Words) -> Value | None:
    """Rows of the axes that tuples do not name."""
    data, indices, updates = step.args
    shape = shape_of(data)
    tuples = shape_of(indices)
    if is_of_rows(shape, tuples):
        return None
    named = shape[: tuples[0]]
    places = flat_places(words, indices, named)
    return _rows_scattered(words, data, math.prod(named), places, updates, step.attrs.mode)


def _rows_scattered(
    words: Words, data: Value, rows: int, places: Value, updates: Value, mode: str
) -> Value:
    """Updates at the numbers of rows, in the shape of the data."""
    count = math.prod(shape_of(places))
    width = math.prod(shape_of(data)) // max(rows, 1)
    sides = [
        words.reshape(data, (rows, width)),
        words.reshape(places, (1, count)),
        words.reshape(updates, (count, width)),
    ]
    made = words.word("scatter_nd", sides, (rows, width), data.type.dtype, mode=mode)
    return words.reshape(made, shape_of(data))


# ---- quantization ------------------------------------------------------------------------------

_SAME_SCALE = ("update", "max", "min")


@FQAnnotateRewrite.register(scatter_nd, needs_tables=True)
def scatter_nd_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Sums of narrow updates that begin with 0 are accumulators; other modes choose between values
    at one scale. Products, and sums that begin elsewhere, stay in float."""
    data, indices, updates = args
    mode = ScatterNDAttrs.of(ref_call).mode
    first = ref_call.args[0]
    if ctx.check_to_skip(ref_call) or kind_of(indices) is not None:
        return None
    sides: tuple[Expr, ...]
    if mode == "add" and isinstance(first, Constant) and not first.data.any():
        sides = first, indices, as_input(updates, ctx)
    elif mode in _SAME_SCALE and (
        any(kind_of(arg) is not None for arg in (data, updates))
        or all(isinstance(arg, Constant) for arg in (data, updates))
    ):
        kept, new = (
            as_input(arg, ctx) if kind_of(arg) is None else unannotated(arg)
            for arg in (data, updates)
        )
        sides = kept, indices, new
    else:
        return None
    return annotated(ref_call, sides)


@FQRealizeRewrite.register(scatter_nd, needs_tables=True)
def scatter_nd_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Sums in the accumulator dtype, at the scale of the updates; else both sides at one scale."""
    data, indices, updates = args
    first, places, _ = (arg.tensor_type.concrete_shape for arg in ref_call.args)
    if ScatterNDAttrs.of(ref_call).mode == "add":
        if not isinstance(data, Constant):
            return None
        known = indices.data if isinstance(indices, Constant) else None
        count = most_updates(known, places, first[0])

        def total(terms: Expr, dtype: str) -> Expr:
            zeros = op_call("full", scalar(0, dtype), shape=first, dtype=dtype)
            return with_args(ref_call, (zeros, indices, terms))

        return added_up(ref_call, updates, count, ctx, total, ref_call.args[2])
    if not isinstance(data, QRealizeIntExpr) or not isinstance(updates, QRealizeIntExpr):
        return None
    pair = in_integers(data, ctx), in_integers(updates, ctx)
    kept, new = unify_for_concatenate((ref_call.args[0], ref_call.args[2]), pair, ctx.qconfig)
    return kept.like(with_args(ref_call, (kept.data, indices, new.data)))


@FQZeroPoint.register(scatter_nd)
def scatter_nd_zero_point(call: Call, place: int) -> ZeroPoint | None:
    """Sums are centred; other modes bring both sides to one zero point."""
    if ScatterNDAttrs.of(call).mode == "add":
        return ZeroPoint.CENTRES
    return ZeroPoint.TAKES


@FNeverNegative.register(scatter_nd)
def scatter_nd_sign(call: Call, operands: tuple[bool, ...]) -> bool:
    """True if neither the data nor the updates are negative."""
    return operands[0] and operands[2]
