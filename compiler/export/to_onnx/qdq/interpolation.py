"""Interpolation as the integers of a module compute it: sums of weighted neighbours along axes.

add(multiply(take(x, i), a), multiply(take(x, j), b))    = weights @ x along one axis
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.export.to_onnx.qdq.emitter import Floats, QdqEmitter, Real, of_operand
from compiler.export.to_onnx.qdq.sums import is_same
from compiler.ir.dataflow import Step, Value
from compiler.ops.image.interpolated_integers import whole_weights
from compiler.ops.image.resampling import COORDINATES, Interpolation, mixing_weights

Whole = NDArray[np.int64]

_TAPS = 8
"""An interpolation adds at most so many neighbours along one axis."""


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """A value whose elements are sums of those of another one.

    Attributes:
        source: the value that is mixed.
        weights: matrix (out, size) along each axis that it is mixed along; rows of one sum.
    """

    source: Value
    weights: Mapping[int, Whole]

    @staticmethod
    def of(step: Step) -> Mixed | None:
        """The result of an addition; None where it is another sum."""
        source, weights = step.result, dict[int, Whole]()
        while (found := _along_one(source)) is not None and found[0] not in weights:
            axis, source, weights[axis] = found
        return Mixed(source, weights) if weights else None

    def write(self, real: Real, shape: tuple[int, ...], graph: QdqEmitter) -> Real | None:
        """Resize where it is linear, for which runtimes have kernels; else a product with each
        matrix, along the last two axes."""
        how, whole = (
            self._linear(),
            {axis - len(shape): held for axis, held in self.weights.items()},
        )
        if how is None and (graph.runtime.npu or min(whole) < -2):
            return None
        total = math.prod(int(held[0].sum()) for held in whole.values())

        def resize(factor: Floats) -> str:
            sizes = graph.writer.constant(np.asarray(shape, "int64"))
            attrs: dict[str, Any] = {"coordinate_transformation_mode": how, "mode": "linear"}
            return graph.node("Resize", [real.emit(graph, factor * total), "", "", sizes], **attrs)

        def products(factor: Floats) -> str:
            name = real.emit(graph, factor)
            if -2 in whole:
                name = graph.node("MatMul", [graph.float_constant(whole[-2]), name])
            if -1 in whole:
                name = graph.node("MatMul", [name, graph.float_constant(whole[-1].T)])
            return name

        return of_operand(products if how is None else resize, graph, real.depth)

    def _linear(self) -> str | None:
        """The coordinates that a linear Resize has these weights with."""
        for coordinates in COORDINATES:
            how = Interpolation("linear", coordinates, "")
            if all(
                np.array_equal(
                    whole_weights(mixing_weights(held.shape[1], len(held), how), held[0].sum()),
                    held,
                )
                for held in self.weights.values()
            ):
                return coordinates
        return None


def _along_one(value: Value) -> tuple[int, Value, Whole] | None:
    """The axis along which a value is mixed, what is mixed, and the weights; None for others."""
    waiting, picked = [value], list[tuple[Step, Floats]]()
    while waiting:
        step, held = waiting.pop().producer, None
        if step is not None and step.name == "add" and len(waiting) + len(picked) < _TAPS:
            waiting += step.args
            continue
        if step is not None and step.name == "multiply" and step.args[1].data is not None:
            held, step = step.args[1].data, step.args[0].producer
        while step is not None and is_same(step):
            step = step.args[0].producer
        if step is None or step.name != "take" or step.args[1].data is None:
            return None
        picked.append((step, np.ones(()) if held is None else held))
    first = picked[0][0]
    source, held, rank = first.args[0], first.args[1].data, len(first.args[0].type.shape)
    if len(picked) < 2 or held is None or held.ndim != 1 or first.attrs.axis is None:
        return None
    axis = first.attrs.axis % rank
    whole = np.zeros((len(held), int(source.type.concrete_shape[axis])), np.int64)
    for step, factor in picked:
        places, same = step.args[1].data, step.args[0] is source
        if not same or places is None or places.shape != held.shape or places.min(initial=0) < 0:
            return None
        if step.attrs.axis is None or step.attrs.axis % rank != axis:
            return None
        if factor.size > 1 and (factor.ndim < rank or factor.shape[axis] < factor.size):
            return None
        np.add.at(whole, (np.arange(len(whole)), places), factor.reshape(-1).astype(np.int64))
    sums = whole.sum(axis=1)
    return (axis, source, whole) if np.ptp(sums) == 0 and sums[0] > 0 else None
