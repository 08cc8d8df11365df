"""squared_difference: out = (lhs - rhs) ** 2, broadcast."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.lir.scalars import Bin
from compiler.ops.rules.lower import FLower, elementwise
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

squared_difference = register_op(
    "squared_difference",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("squared_difference"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(squared_difference)
def squared_difference_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """In the operands' dtype."""
    return [np.square(args[0] - args[1])]


FLower.register(squared_difference)(
    elementwise(lambda attrs, a, b: Bin("*", Bin("-", a, b), Bin("-", a, b)), reads=2)
)
