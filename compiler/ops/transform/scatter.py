"""scatter_elements and scatter_nd: a copy of data with updates written at given places.

The reduction (mode) says what happens to the old value: "update" replaces it, "add", "mul", "min"
and "max" combine. Updates are applied in row-major order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import TypeInferenceError, legal_names
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.ops.arg_types import Types, index_tensor, normalize_axis, same_dtype, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, library_routine
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.transform.take import kept_inside

_COMBINE: dict[str, Any] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
_MODES = ("update", *_COMBINE)


@dataclass(frozen=True, eq=False)
class ScatterElementsAttrs(OpAttrs):
    """The axis the indices count along, and the reduction."""

    axis: int = 0
    reduction: str = "update"


@dataclass(frozen=True, eq=False)
class ScatterNDAttrs(OpAttrs):
    """The reduction."""

    mode: str = "update"


def _check_mode(op: str, mode: str) -> None:
    if mode not in _MODES:
        raise TypeInferenceError(f"{op}: mode {mode!r} is unknown", fix=legal_names(mode, _MODES))


@define_op(
    "scatter_elements",
    arg_names=("data", "indices", "updates"),
    attrs_type=ScatterElementsAttrs,
    pattern=OpPattern.OPAQUE,
)
def scatter_elements(types: Types, attrs: ScatterElementsAttrs) -> Type:
    """Type of the data; indices and updates have one shape, of the data's rank.

    Raises:
        TypeInferenceError: the shapes do not fit, or the indices reach beyond the data.
    """
    op = "scatter_elements"
    data = tensor(op, types, 0, "data")
    indices = index_tensor(op, types, 1, "indices")
    updates = tensor(op, types, 2, "updates")
    same_dtype(op, data, updates)
    axis = normalize_axis(op, attrs.axis, len(data.shape))
    _check_mode(op, attrs.reduction)
    if indices.shape != updates.shape or len(indices.shape) != len(data.shape):
        raise TypeInferenceError(
            f"{op}: indices {indices} and updates {updates} need one shape of that rank"
        )
    for k, (d, i) in enumerate(zip(data.shape, indices.shape)):
        if k != axis and isinstance(d, int) and isinstance(i, int) and i > d:
            raise TypeInferenceError(f"{op}: indices {indices} reach beyond data {data}")
    return data


@define_op(
    "scatter_nd",
    arg_names=("data", "indices", "updates"),
    attrs_type=ScatterNDAttrs,
    pattern=OpPattern.OPAQUE,
)
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
    if not isinstance(length, int) or length > len(data.shape):
        raise TypeInferenceError(f"{op}: tuples of {length} components do not index {data}")
    if updates.shape != (*indices.shape[1:], *data.shape[length:]):
        raise TypeInferenceError(
            f"{op}: updates {updates} do not fit indices {indices} into data {data}"
        )
    return data


def _write(out: NDArray[Any], index: tuple[Any, ...], updates: NDArray[Any], mode: str) -> None:
    if mode == "update":
        out[index] = updates
    else:
        _COMBINE[mode].at(out, index, updates)


@FNumpyCompute.register(scatter_elements)
def scatter_elements_numpy(attrs: ScatterElementsAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Indices outside are clipped."""
    data, indices, updates = args
    axis = attrs.axis % data.ndim
    index: list[Any] = list(np.indices(indices.shape, sparse=True))
    index[axis] = kept_inside(indices, data.shape[axis], "clip")
    out = data.copy()
    _write(out, tuple(index), updates, attrs.reduction)
    return [out]


@FNumpyCompute.register(scatter_nd)
def scatter_nd_numpy(attrs: ScatterNDAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Indices outside are clipped."""
    data, indices, updates = args
    index = tuple(kept_inside(indices[k], data.shape[k], "clip") for k in range(len(indices)))
    out = data.copy()
    _write(out, index, updates, attrs.mode)
    return [out]


FLower.register(scatter_elements)(library_routine("scatter_elements", scatter_elements_numpy))

FLower.register(scatter_nd)(library_routine("scatter_nd", scatter_nd_numpy))
