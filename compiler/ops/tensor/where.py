"""where(condition, x, y): x where the condition holds, else y; all three broadcast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, Type
from compiler.ir.type_relation import result_rel
from compiler.ops.arg_types import same_dtype, tensor
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_shape


def where_infer(types: Sequence[Any], attrs: Any) -> Type:
    """Broadcast shape of the three, dtype of x and y; any dtype may be the condition (not zero)."""
    condition = tensor("where", types, 0, "condition")
    x = tensor("where", types, 1, "x")
    y = tensor("where", types, 2, "y")
    dtype = same_dtype("where", x, y)
    branches = broadcast_shape("where", x.shape, y.shape)
    return TensorType(broadcast_shape("where", condition.shape, branches), dtype)


where = register_op(
    "where",
    arg_names=("condition", "x", "y"),
    rel=result_rel(where_infer),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(where)
def where_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Element by element."""
    return [np.where(args[0], args[1], args[2])]
