"""add: out = lhs + rhs, broadcast; integers wrap."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

add = register_op(
    "add",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("add"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(add)
def add_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Sum in the operands' dtype."""
    return [np.add(args[0], args[1])]
