"""equal, not_equal, less, less_equal, greater, greater_equal: broadcast, bool result."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.lower import FLower, binary
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.broadcast import broadcast_rel

_FUNCTIONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
_SYMBOLS = {
    "equal": "==",
    "not_equal": "!=",
    "less": "<",
    "less_equal": "<=",
    "greater": ">",
    "greater_equal": ">=",
}


def _register(name: str, function: Any) -> None:
    op = register_op(
        name,
        arg_names=("lhs", "rhs"),
        rel=broadcast_rel(name, "bool", numbers="any"),
        pattern=OpPattern.BROADCAST,
    )

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [function(args[0], args[1])]

    FLower.register(op)(binary(_SYMBOLS[name]))


for _name, _function in _FUNCTIONS.items():
    _register(_name, _function)
