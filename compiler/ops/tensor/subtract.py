"""subtract: out = lhs - rhs, broadcast; integers wrap."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

subtract = register_op(
    "subtract",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("subtract"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(subtract)
def subtract_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Difference in the operands' dtype."""
    return [np.subtract(args[0], args[1])]
