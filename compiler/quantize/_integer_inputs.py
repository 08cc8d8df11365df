"""Whole numbers that are inputs get bounds, so that no arithmetic on them can overflow.

    before                     after
    take(%w, add(%ids, 2))     take(%w, add(clip(%ids, -2^52, 2^52), 2))

Positions, hashes and clocks fit by far. What is only looked up, compared or made real needs none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compiler.ir.expr import Call, Expr, Function, Op, Tuple, TupleGetItem, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.ty import TensorType, is_float
from compiler.ir.walk import nodes_of
from compiler.ops.op_call import op_call

_MOST: Final = {"int32": 2**31 - 2**20, "int64": 2**52}
"""Room is left for sums with constants, and in int64 for products with them."""
_TERM: Final = {"int32": 2**30 - 2**20, "int64": 2**52}
"""Of what meets another input."""
_FACTOR: Final = {"int32": 2**31 - 2**20, "int64": 2**31 - 2**10}
"""Of what is multiplied by another input, in int64."""

_COMPARE: Final = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
_READS: Final = frozenset({*_COMPARE, "one_hot", "copy"})
_MOVES: Final = frozenset(
    {
        *("broadcast_to", "concatenate", "expand_dims", "gather", "gather_nd", "reshape"),
        *("split", "squeeze", "strided_slice", "take", "tile", "transpose"),
    }
)


def bounded_inputs(mod: IRModule) -> IRModule:
    """The module with bounds on whole numbers that ``main`` computes with; itself without any."""
    main: Function = mod["main"]
    most: dict[Expr, int] = {}
    products: set[Expr] = set()
    sources: dict[Expr, tuple[Var, ...]] = {
        param: (param,)
        for param in main.params
        if isinstance(param.checked_type, TensorType) and param.checked_type.dtype in _MOST
    }
    for node in nodes_of(main) if sources else ():
        if isinstance(node, Tuple | TupleGetItem):
            sources[node] = tuple(p for part in node.operands() for p in sources.get(part, ()))
        if not isinstance(node, Call) or not isinstance(node.op, Op) or node.op.name in _READS:
            continue
        dtype = getattr(node.checked_type, "dtype", "")
        if node.op.name == "cast" and (is_float(dtype) or dtype not in _MOST):
            continue
        if node.op.name in _MOVES:  # places are only looked up
            sources[node] = sources.get(node.args[0], ())
            continue
        read = [sources[arg] for arg in node.args if sources.get(arg)]
        table = _MOST
        if len(read) > 1:
            table = _FACTOR if node.op.name == "multiply" else _TERM
            if table is _FACTOR and dtype == "int32":
                products.add(node)
        for param in (param for params in read for param in params):
            limits = (most.get(param), table[param.tensor_type.dtype], table.get(dtype))
            most[param] = min(limit for limit in limits if limit is not None)
    if not most:
        return mod
    held = {
        param: op_call("clip", param, a_min=float(-limit), a_max=float(limit))
        for param, limit in most.items()
    }

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(node, Tuple):
            return Tuple(tuple(held.get(part, new[part]) for part in node.fields))
        if not isinstance(node, Call):
            return None
        args = tuple(held.get(arg, new[arg]) for arg in node.args)
        if node not in products:
            return node.with_fields(args=args)
        wide = node.with_fields(args=tuple(op_call("cast", arg, dtype="int64") for arg in args))
        limit = float(_MOST["int32"])
        return op_call("cast", op_call("clip", wide, a_min=-limit, a_max=limit), dtype="int32")

    body = rebuilt(nodes_of(main), made)[main.body]
    return infer_module(mod.with_function("main", main.with_fields(body=body)))
