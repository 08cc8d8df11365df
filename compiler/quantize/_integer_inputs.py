"""Whole numbers that are inputs get bounds, so that no arithmetic on them can overflow.

    before                     after
    take(%w, add(%ids, 2))     take(%w, add(clip(%ids, -2^52, 2^52), 2))

Positions, hashes and clocks fit by far. What is only looked up, compared or made real needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compiler.ir.expr import Call, Expr, Function, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.ty import TensorType, is_float
from compiler.ir.walk import nodes_of
from compiler.ops.op_call import op_call

_MOST: Final = {"int32": 2**31 - 2**20, "int64": 2**52}
"""Room is left for sums with constants, and in int64 for products."""

_COMPARE: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_READS: Final = frozenset({*_COMPARE, "take", "gather", "gather_nd", "one_hot", "copy"})
_MOVES: Final = frozenset(
    {"broadcast_to", "expand_dims", "reshape", "squeeze", "strided_slice", "tile", "transpose"}
)


def bounded_inputs(mod: IRModule) -> IRModule:
    """The module with bounds on whole numbers that ``main`` computes with; itself without any."""
    main: Function = mod["main"]
    most: dict[Expr, int] = {}
    sources: dict[Expr, Var] = {
        param: param
        for param in main.params
        if isinstance(param.checked_type, TensorType) and param.checked_type.dtype in _MOST
    }
    for node in nodes_of(main) if sources else ():
        if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name in _READS:
            continue
        found = [sources[arg] for arg in node.args if arg in sources]
        dtype = getattr(node.checked_type, "dtype", "")
        if node.op.name == "cast" and (is_float(dtype) or dtype not in _MOST):
            continue
        if found and node.op.name in _MOVES:
            sources[node] = found[0]
            continue
        for param in found:
            limits = (most.get(param), _MOST[param.tensor_type.dtype], _MOST.get(dtype))
            most[param] = min(limit for limit in limits if limit is not None)
    if not most:
        return mod
    held = {
        param: op_call("clip", param, a_min=float(-limit), a_max=float(limit))
        for param, limit in most.items()
    }

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call):
            return None
        return node.with_fields(args=tuple(held.get(arg, new[arg]) for arg in node.args))

    body = rebuilt(nodes_of(main), made)[main.body]
    return infer_module(mod.with_function("main", main.with_fields(body=body)))
