"""vision.get_valid_counts and vision.non_max_suppression: the tail of a detection network.

Boxes are rows of (B, N, E): a class id, a score, four corner coordinates and further values.
Invalid rows are filled with -1. Source: Relay's operators of these names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.ops.arg_types import Types, check_floats, integer_tensor, same_dtype, tensor_of_rank
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, library_routine
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.sort import ordering


class GetValidCountsAttrs(OpAttrs):
    """Columns of class id (-1: none) and score."""

    id_index: int = 0
    score_index: int = 1


class NonMaximumSuppressionAttrs(OpAttrs):
    """Suppression across classes, number of boxes, columns, form of the result."""

    force_suppress: bool = False
    top_k: int = -1
    coord_start: int = 2
    score_index: int = 1
    id_index: int = 0
    return_indices: bool = True
    invalid_to_bottom: bool = False


def _boxes(op: str, types: Types, *columns: int) -> TensorType:
    data = tensor_of_rank(op, types, 0, "data", 3)
    width = data.shape[2]
    check_floats(op, data)
    for column in columns:
        if column < -1 or (isinstance(width, int) and column >= width):
            raise TypeInferenceError(f"{op}: data {data} has no column {column}")
    return data


def _check_score(op: str, column: int) -> None:
    if column < 0:
        raise TypeInferenceError(f"{op}: scores and coordinates need a column, not {column}")


@define_op(
    "vision.get_valid_counts", arg_names=("data", "score_threshold"), pattern=OpPattern.OPAQUE
)
def get_valid_counts(types: Types, attrs: GetValidCountsAttrs) -> Type:
    """(count (B,), boxes (B, N, E), positions (B, N)); counts and positions are int32."""
    op = "vision.get_valid_counts"
    data = _boxes(op, types, attrs.id_index, attrs.score_index)
    _check_score(op, attrs.score_index)
    same_dtype(op, data, tensor_of_rank(op, types, 1, "score_threshold", 0))
    batch, count = data.shape[:2]
    return TupleType((TensorType((batch,), "int32"), data, TensorType((batch, count), "int32")))


@define_op(
    "vision.non_max_suppression",
    arg_names=("data", "valid_count", "indices", "max_output_size", "iou_threshold"),
    pattern=OpPattern.OPAQUE,
)
def non_max_suppression(types: Types, attrs: NonMaximumSuppressionAttrs) -> Type:
    """Boxes of the data's type, or (positions (B, N), count (B, 1)) of int32."""
    op = "vision.non_max_suppression"
    data = _boxes(op, types, attrs.id_index, attrs.score_index, attrs.coord_start + 3)
    _check_score(op, min(attrs.score_index, attrs.coord_start))
    for index, (name, rank) in enumerate((("valid_count", 1), ("indices", 2)), start=1):
        integer_tensor(op, types, index, name)
        tensor_of_rank(op, types, index, name, rank)
    integer_tensor(op, types, 3, "max_output_size")
    tensor_of_rank(op, types, 3, "max_output_size", 0)
    tensor_of_rank(op, types, 4, "iou_threshold", 0)
    if not attrs.return_indices:
        return data
    batch, count = data.shape[:2]
    return TupleType((TensorType((batch, count), "int32"), TensorType((batch, 1), "int32")))


@FNumpyCompute.register(get_valid_counts)
def get_valid_counts_numpy(attrs: GetValidCountsAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Boxes above the threshold (and of a class >= 0) move to the front, in order."""
    data, threshold = args
    counts = np.zeros(data.shape[0], np.int32)
    boxes = np.full_like(data, -1)
    positions = np.full(data.shape[:2], -1, np.int32)
    for b in range(data.shape[0]):
        valid = data[b, :, attrs.score_index] > threshold
        if attrs.id_index >= 0:
            valid &= data[b, :, attrs.id_index] >= 0
        kept = np.flatnonzero(valid)
        counts[b] = len(kept)
        boxes[b, : len(kept)] = data[b, kept]
        positions[b, : len(kept)] = kept
    return [counts, boxes, positions]


@FNumpyCompute.register(non_max_suppression)
def non_max_suppression_numpy(
    attrs: NonMaximumSuppressionAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """Boxes by falling score; each suppresses later ones it overlaps by the threshold or more."""
    data, valid_count, indices, limit, threshold = args
    boxes = np.full_like(data, -1)
    positions = np.full(data.shape[:2], -1, np.int32)
    counts = np.zeros((data.shape[0], 1), np.int32)
    for b in range(data.shape[0]):
        rows = data[b, : int(valid_count[b])]
        order = ordering(rows[:, attrs.score_index], 0, False)
        if attrs.top_k > 0:
            order = order[: attrs.top_k]
        kept = _survivors(rows[order], attrs, float(threshold), int(limit))
        compact = attrs.return_indices or attrs.invalid_to_bottom
        places = np.arange(len(kept)) if compact else kept
        boxes[b, places] = rows[order[kept]]
        positions[b, : len(kept)] = indices[b, order[kept]]
        counts[b] = len(kept)
    if attrs.return_indices:
        return [positions, counts]
    return [boxes]


def _survivors(
    rows: Array, attrs: NonMaximumSuppressionAttrs, threshold: float, limit: int
) -> NDArray[np.int64]:
    """Positions of the rows that stay, ascending; ``limit`` below 0 means all."""
    corners = rows[:, attrs.coord_start : attrs.coord_start + 4]
    alive = np.ones(len(rows), bool)
    kept: list[int] = []
    for j in range(len(rows)):
        if not alive[j] or (0 <= limit <= len(kept)):
            continue
        kept.append(j)
        overlap = _overlap(corners[j], corners[j + 1 :]) >= threshold
        if not attrs.force_suppress and attrs.id_index >= 0:
            overlap &= rows[j + 1 :, attrs.id_index] == rows[j, attrs.id_index]
        if threshold > 0:
            alive[j + 1 :] &= ~overlap
    return np.array(kept, np.int64)


def _overlap(box: Array, others: Array) -> Array:
    """Intersection over union of one box with many; corners may come in either order."""
    low = np.minimum(box[:2], box[2:])
    high = np.maximum(box[:2], box[2:])
    lows = np.minimum(others[:, :2], others[:, 2:])
    highs = np.maximum(others[:, :2], others[:, 2:])
    sides = np.maximum(np.minimum(high, highs) - np.maximum(low, lows), 0)
    shared = sides[:, 0] * sides[:, 1]
    union = np.prod(high - low) + np.prod(highs - lows, axis=1) - shared
    return np.asarray(np.where(union > 0, shared / np.where(union > 0, union, 1), 0))


FLower.register(get_valid_counts)(library_routine("get_valid_counts", get_valid_counts_numpy))

FLower.register(non_max_suppression)(
    library_routine("non_max_suppression", non_max_suppression_numpy)
)
