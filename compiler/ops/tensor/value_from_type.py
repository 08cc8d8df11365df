"""shape_of and ndarray_size of a value whose type is static: known without the value."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.ty import TensorType
from compiler.ops.rules.simplify import FFoldFromType


@FFoldFromType.register("shape_of")
def shape_from_type(attrs: Any, ty: TensorType) -> NDArray[np.generic]:
    """The dimensions, rank 1, in ``attrs.dtype``."""
    return np.asarray(ty.concrete_shape, dtype=attrs.dtype)


@FFoldFromType.register("ndarray_size")
def size_from_type(attrs: Any, ty: TensorType) -> NDArray[np.generic]:
    """The number of elements, rank 0, in ``attrs.dtype``; 0 for a scalar, as in Relay."""
    return np.asarray(ty.num_elements if ty.shape else 0, dtype=attrs.dtype)
