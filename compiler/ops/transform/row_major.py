"""Index arithmetic of reshapes: the same element in row-major order under another shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

from compiler.ir.expr import Call
from compiler.lir import index
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.scalars import Scalar
from compiler.ops.rules.layout import reshape_runs
from compiler.ops.rules.lower import Lowered, OutTypes, Views


def reshaped(data: TensorView, shape: Sequence[int]) -> TensorView:
    """The elements of ``data``, row-major, under another shape of as many elements."""
    shape = tuple(shape)
    if shape == data.shape:
        return data
    return TensorView.of(shape, lambda at: data.at(source_indices(at, shape, data.shape)))


def source_indices(
    at: Sequence[Scalar], shape: Sequence[int], source: Sequence[int]
) -> list[Scalar]:
    """Return the indices in ``source`` of the element at ``at`` of ``shape``.

    Both shapes are cut into the shortest runs of axes that hold equally many elements, so that axes
    a reshape leaves alone keep their loop variable.
    """
    if 0 in shape:
        return [index.imm(0) for _ in source]
    found: list[Scalar] = []
    for held, wanted in reshape_runs(source, shape):
        found += _unflattened(_flattened(at[wanted], shape[wanted]), source[held])
    return found


def _flattened(at: Sequence[Scalar], shape: Sequence[int]) -> Scalar:
    place: Scalar = index.imm(0)
    for position, (i, _) in enumerate(zip(at, shape)):
        place = index.plus(place, index.times(i, math.prod(shape[position + 1 :])))
    return place


def _unflattened(place: Scalar, shape: Sequence[int]) -> list[Scalar]:
    found: list[Scalar] = []
    for position, size in enumerate(shape):
        step = math.prod(shape[position + 1 :])
        whole = index.floordiv(place, step)
        found.append(index.imm(0) if size == 1 else index.floormod(whole, size))
    return found


def reshape_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """FLower of every operator that keeps the elements and their order."""
    return [reshaped(inputs[0], out_types[0].concrete_shape)]
