"""debug: the identity; marks a place that a tap of the reference executor looks for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ir.type_relation import identity_rel
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.lower import FLower, same_value
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class DebugAttrs(OpAttrs):
    """A word to recognise the place by."""

    debug_info: str = ""


debug = register_op(
    "debug", arg_names=("data",), attrs_type=DebugAttrs, rel=identity_rel, pattern=OpPattern.OPAQUE
)


@FNumpyCompute.register(debug)
def debug_numpy(attrs: DebugAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The value itself."""
    return list(args)


FLower.register(debug)(same_value)
