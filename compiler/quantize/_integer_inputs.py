"""Whole numbers of a model get bounds.

Inputs, so that no arithmetic on them can overflow; positions, hashes and clocks fit by far, and
what is only looked up, compared or made real needs none:

    take(%w, add(%ids, 2))                    take(%w, add(clip(%ids, -2^52, 2^52), 2))

And what operators count or find, where it becomes real, so that it stays an integer of the core:

    cast(argmax(%x, axis=[1]), float32)       cast(clip(argmax(%x, axis=[1]), 0, 9), float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compiler.ir.dataflow import dataflow
from compiler.ir.expr import Call, Expr, Function, Op, Tuple, TupleGetItem, Var, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, is_float, is_integer
from compiler.ir.walk import nodes_of
from compiler.ops.op_call import op_call
from compiler.quantize._rewriting import rewritten
from compiler.ranges.analysis import ranges_of
from compiler.ranges.reals import PLACES

_MOST: Final = {"int32": 2**31 - 2**20, "int64": 2**52}
"""Room is left for sums with constants, and in int64 for products with them."""
_TERM: Final = {"int32": 2**30 - 2**20, "int64": 2**52}
"""Of what meets another input."""
_FACTOR: Final = {"int32": 2**31 - 2**20, "int64": 2**31 - 2**10}
"""Of what is multiplied by another input, in int64."""

_READS: Final = ("one_hot", "copy")
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
        if dtype == "bool":  # it compares
            continue
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

    return rewritten(mod, made)


_EXACT: Final = 1 << 24
"""Up to which float32 holds every whole number."""


def bounded_counts(mod: IRModule) -> IRModule:
    """The module with bounds on computed whole numbers that become real; itself without any."""
    main: Function = mod["main"]
    answers: set[Expr] = set()  # truth values, places, and whole numbers that are made of them
    casts: list[Call] = []
    for node in nodes_of(main):
        dtype = getattr(node.checked_type, "dtype", "")
        made = any(arg in answers for arg in node.operands())
        if dtype == "bool" or (made and is_integer(dtype)) or is_op_call(node, *PLACES):
            answers.add(node)
        elif made and dtype == "float32" and is_op_call(node, "cast"):
            data = node.args[0]
            whole = is_integer(data.tensor_type.dtype) and not is_op_call(data, "clip")
            casts += [node] if whole else []
    if not casts:
        return mod
    counts = Tuple(tuple(call.args[0] for call in casts))
    counted = mod.with_function("main", main.with_fields(body=counts, ret_type=None))
    flow = dataflow(infer_module(counted))
    ranges, limits = ranges_of(flow), {}
    for call, value in zip(casts, flow.outputs, strict=True):
        bounds = ranges.of(value)
        if max(-bounds.lowest, bounds.highest) <= _EXACT:
            limits[call] = float(bounds.lowest), float(bounds.highest)

    def made_of(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call) or node not in limits:
            return None
        low, high = limits[node]
        return node.with_fields(args=(op_call("clip", new[node.args[0]], a_min=low, a_max=high),))

    return rewritten(mod, made_of)
