"""clip(a_min, a_max): out = max(min(x, a_max), a_min).

On integers the bounds are truncated toward zero and saturated to the dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.number_format import integer_range
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.number_rel import number_rel


@dataclass(frozen=True, eq=False)
class ClipAttrs(OpAttrs):
    """Bounds in the units of the data."""

    type_key: ClassVar[str] = "ClipAttrs"
    a_min: float
    a_max: float


clip = register_op(
    "clip",
    arg_names=("data",),
    attrs_type=ClipAttrs,
    rel=number_rel("clip"),
    pattern=OpPattern.ELEMWISE,
)


def integer_bound(value: float, dtype: str) -> int:
    """A clip bound as the integer kernels use it: truncated, then saturated to ``dtype``."""
    low, high = integer_range(dtype)
    return int(min(max(value, low), high)) if value == value else 0


@FNumpyCompute.register(clip)
def clip_numpy(attrs: ClipAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN stays NaN."""
    data = args[0]
    if data.dtype.kind == "f":
        kind = data.dtype.type
        return [np.maximum(np.minimum(data, kind(attrs.a_max)), kind(attrs.a_min))]
    dtype = str(data.dtype)
    low, high = integer_bound(attrs.a_min, dtype), integer_bound(attrs.a_max, dtype)
    return [np.maximum(np.minimum(data, data.dtype.type(high)), data.dtype.type(low))]
