"""maximum: the larger of lhs and rhs, broadcast; a NaN wins."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.lower import FLower, binary
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

maximum = register_op(
    "maximum",
    arg_names=("lhs", "rhs"),
    rel=broadcast_rel("maximum"),
    pattern=OpPattern.BROADCAST,
)


@FNumpyCompute.register(maximum)
def maximum_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Larger value; NaN when one side is NaN."""
    return [np.maximum(args[0], args[1])]


FLower.register(maximum)(binary("max"))
