"""isqrt: floor(sqrt(x)) of int64, exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Intrin
from compiler.ops.arg_types import Types, tensor
from compiler.ops.rules.lower import FLower, elementwise
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays


@define_op("isqrt", pattern=OpPattern.ELEMWISE)
def isqrt(types: Types, attrs: Any) -> Type:
    """Type of the data, int64; defined for 0 <= x < 2^62.

    Raises:
        TypeInferenceError: the data are no int64.
    """
    data = tensor("isqrt", types, 0, "data")
    if data.dtype != "int64":
        raise TypeInferenceError(f"isqrt: argument 0 (data) is {data}", fix="cast it to int64")
    return data


@intrinsics.register("isqrt")
def integer_sqrt(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """floor(sqrt(v)) of every 0 <= v < 2^62, exactly."""
    root = np.sqrt(values.astype(np.float64)).astype(np.int64)
    # The double root is off by less than one.
    root -= root * root > values
    root += (root + 1) * (root + 1) <= values
    return root


FNumpyCompute.register(isqrt)(of_arrays(integer_sqrt))
FLower.register(isqrt)(elementwise(lambda attrs, x: Intrin("isqrt", (x,))))
