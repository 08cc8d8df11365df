"""Whole numbers of a model get bounds.

Where they enter, as inputs or by a cast of floats, so that no arithmetic on them can overflow: the
widest of ``_LIMITS`` with which the ranges of what reads them fit their dtypes. Positions and
clocks fit by far; what is only looked up, compared or made real needs none:

    take(%w, add(%ids, 2))                    take(%w, add(clip(%ids, -2^52, 2^52), 2))

And what operators count or find, where it becomes real, so that it stays an integer of the core:

    cast(argmax(%x, axis=[1]), float32)       cast(clip(argmax(%x, axis=[1]), 0, 9), float32)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from compiler.errors import NotFullyIntegralError
from compiler.ir.dataflow import Dataflow, Step, Value, dataflow
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, bits, is_float, is_integer, tensor_fields
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.op_call import op_call
from compiler.ops.rules.product_shape import FQProductShape
from compiler.quantize.rewriting import rewritten
from compiler.ranges.analysis import RangeContext, analyse_step, ranges_of
from compiler.ranges.interval import Interval, constant_interval
from compiler.ranges.reals import PLACES

_LIMITS: Final = (2**52, 2**31 - 2**20, 2**30 - 2**20, 2**24, 2**20)
"""Tried in this order; of an int32 from the second on."""
_ENTERING: Final = ("int32", "int64")


def bounded_inputs(mod: IRModule) -> IRModule:
    """The module with bounds on whole numbers that enter what ``main`` computes; itself without
    any."""
    mod = _widened_products(mod)
    found = _WholeNumbers.of(mod)
    limits = found.limits()
    if not limits:
        return mod
    held: dict[Expr, Expr] = {
        node: op_call("clip", node, a_min=float(-limit), a_max=float(limit))
        for node, limit in limits.items()
        if isinstance(node, Var)
    }

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(node, Tuple):
            return Tuple(tuple(held.get(part, new[part]) for part in node.fields))
        if not isinstance(node, Call):
            return None
        call = node.with_fields(args=tuple(held.get(arg, new[arg]) for arg in node.args))
        if node not in limits:
            return call
        return op_call("clip", call, a_min=float(-limits[node]), a_max=float(limits[node]))

    return rewritten(mod, made)


def overflowing(mod: IRModule) -> dict[Call, str]:
    """Arithmetic on whole numbers of ``main`` that may leave its dtype, and how far it may get."""
    return _WholeNumbers.of(mod).findings()


def refuse_overflows(mod: IRModule) -> None:
    """Raise NotFullyIntegralError for a module with ``overflowing`` arithmetic."""
    for call, what in overflowing(mod).items():
        raise NotFullyIntegralError(
            f"whole numbers may leave their dtype: {what}",
            where="@main" if call.span is None else str(call.span),
            fix="end the model in front of them or begin it behind them (--until, --from)",
        )


def _widened_products(mod: IRModule) -> IRModule:
    """The module with products of two int32 computed in int64 and clipped."""

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call):
            return None
        args = tuple(new[arg] for arg in node.args)
        computed = not any(isinstance(arg, Constant) for arg in node.args)
        if not (computed and is_op_call(node, "multiply") and _dtype(node) == "int32"):
            return node.with_fields(args=args)
        wide = node.with_fields(args=tuple(op_call("cast", arg, dtype="int64") for arg in args))
        limit = float(_LIMITS[1])
        return op_call("cast", op_call("clip", wide, a_min=-limit, a_max=limit), dtype="int32")

    if mentions(mod["main"], ("multiply",)):
        return rewritten(mod, made)
    return mod


def _dtype(node: Expr) -> str:
    return str(getattr(node.checked_type, "dtype", ""))


@dataclass(frozen=True, slots=True, eq=False)
class _WholeNumbers:
    """The part of ``main`` that computes with whole numbers, without the floats that it reads.

    Attributes:
        flow: its steps.
        entering: values that may be anything, by the node that they stand for.
        nodes: what each step computes.
    """

    flow: Dataflow
    entering: dict[Expr, Value]
    nodes: dict[Step, Call]

    @staticmethod
    def of(mod: IRModule) -> _WholeNumbers:
        """The part of a typed module; O(nodes)."""
        new: dict[Expr, Expr] = {}
        params: dict[Expr, Var] = {}
        results: list[Call] = []

        def operand(node: Expr) -> Expr:
            if node not in new:
                new[node] = params[node] = Var(f"v{len(params)}", node.checked_type)
            return new[node]

        for node in nodes_of(mod["main"]):
            fields = tensor_fields(node.checked_type_or_none or TupleType(()))
            whole = any(not is_float(field.dtype) for field in fields)
            if isinstance(node, Constant) or not whole:
                new.update({node: node} if isinstance(node, Constant) else {})
            elif isinstance(node, TupleGetItem) and node.tuple in new:
                new[node] = node.with_fields(tuple=new[node.tuple])
            elif isinstance(node, Tuple) and all(
                isinstance(f.checked_type, TensorType) for f in node.fields
            ):
                new[node] = Tuple(tuple(map(operand, node.fields)))
            elif is_op_call(node) and not _enters(node):
                tuples = (a for a in node.args if isinstance(a.checked_type, TupleType))
                if str(getattr(node.op, "name", "")).startswith("scan.") or any(
                    a not in new for a in tuples
                ):
                    continue
                new[node] = node.with_fields(args=tuple(map(operand, node.args)))
                results += [node] if isinstance(node.checked_type, TensorType) else []
        if not results:
            return _WholeNumbers(Dataflow((), (), ()), {}, {})
        body = Tuple(tuple(new[node] for node in results))
        flow = dataflow(infer_module(IRModule.from_expr(Function(tuple(params.values()), body))))
        values = dict(zip(params, flow.inputs, strict=True))
        entering = {n: v for n, v in values.items() if isinstance(n, Var) or _enters(n)}
        entering = {n: v for n, v in entering.items() if _dtype(n) in _ENTERING}
        made = zip(results, flow.outputs, strict=True)
        nodes = {value.producer: node for node, value in made if value.producer is not None}
        return _WholeNumbers(flow, entering, nodes)

    def limits(self) -> dict[Expr, int]:
        """Bounds on the magnitude of what enters, where arithmetic needs some."""
        begin = {node: int(_dtype(node) == "int32") for node in self.entering}
        at: dict[Expr, int] = {}
        while True:
            bounds = {node: _LIMITS[place] for node, place in at.items()}
            reached = self._entering_of([step for step, _ in self._findings(bounds)])
            reached = [node for node in reached if at.get(node, -1) + 1 < len(_LIMITS)]
            if not reached:
                return bounds
            at |= {node: at.get(node, begin[node] - 1) + 1 for node in reached}

    def findings(self) -> dict[Call, str]:
        """Steps that may overflow as the module is, and products of operands of 64 bits, which
        not every form has."""
        wide = {
            node: f"{step.name}: its operands have 64 bits"
            for step, node in self.nodes.items()
            if FQProductShape.get(node.op) is not None and bits(_dtype(node.args[0])) > 32
        }
        found = self._findings({})
        return wide | {self.nodes[step]: what for step, what in found if step in self.nodes}

    def _findings(self, bounds: Mapping[Expr, int]) -> list[tuple[Step, str]]:
        ctx = RangeContext()
        for node, limit in bounds.items():
            ctx.set(self.entering[node], constant_interval(-limit, limit, 0))
        found = []
        for step in self.flow.steps:
            before = len(ctx.findings)
            analyse_step(step, ctx)
            found += [
                (step, f"{step.name}: {one.what}") for one in ctx.findings[before : before + 1]
            ]
        return found

    def _entering_of(self, steps: list[Step]) -> list[Expr]:
        node_of = {value: node for node, value in self.entering.items()}
        seen: set[Value] = set()
        waiting = [arg for step in steps for arg in step.args]
        while waiting:
            value = waiting.pop()
            if value not in seen:
                seen.add(value)
                waiting += value.producer.args if value.producer is not None else ()
        return [node_of[value] for value in node_of if value in seen]


def _enters(node: Expr) -> bool:
    """Return whether a node casts floats to integers."""
    return is_op_call(node, "cast") and is_float(_dtype(node.args[0])) and _dtype(node) in _ENTERING


_EXACT: Final = 1 << 24
"""Up to which float32 holds every whole number."""
_WHOLE: Final = (
    "add",
    "subtract",
    "multiply",
    "negative",
    "nn.relu",
    "where",
    "minimum",
    "maximum",
    "sum",
    "cumsum",
    "min",
    "max",
    "expand_dims",
    "reshape",
    "squeeze",
    "transpose",
)
"""Operators that make whole numbers of whole numbers."""


def whole_counts(mod: IRModule) -> IRModule:
    """The module with indices that are counted in floats counted in integers; itself without any.

        cast(sum(cast(%bool, float32)), int64)        sum(cast(%bool, int64))

    Where a number on the way may be too large for float32 to hold, nothing changes.
    """
    if not any(map(_enters, nodes_of(mod["main"]))):
        return mod
    old: dict[Expr, Expr] = {}
    for node in nodes_of(mod["main"]):
        if (whole := _as_whole(node, old, {})) is not None:
            old[node] = whole
    exact: set[Expr] = set()
    for node, bounds in zip(old, _bounds_of(mod, tuple(old.values())), strict=True):
        counted = [arg for arg in node.operands() if arg in old]
        if max(-bounds.lowest, bounds.highest) <= _EXACT and exact.issuperset(counted):
            exact.add(node)
    whole_now: dict[Expr, Expr] = {}

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if node in exact and (whole := _as_whole(node, whole_now, new)) is not None:
            whole_now[node] = whole
        if not isinstance(node, Call) or not _enters(node) or node.args[0] not in whole_now:
            return None
        counted = whole_now[node.args[0]]
        dtype = _dtype(node)
        if dtype == "int64":
            return counted
        return op_call("cast", counted, dtype=dtype)

    return rewritten(mod, made)


def _as_whole(node: Expr, whole: Mapping[Expr, Expr], new: Mapping[Expr, Expr]) -> Expr | None:
    """A float that is a whole number, as an integer; None of others.

    Args:
        whole: the same of its operands.
        new: nodes that stand for those of the module.
    """
    if not isinstance(node, Call) or _dtype(node) != "float32":
        return None
    if is_op_call(node, "cast") and not is_float(_dtype(node.args[0])):
        return op_call("cast", new.get(node.args[0], node.args[0]), dtype="int64")
    known = is_op_call(node, *_WHOLE) and not whole.keys().isdisjoint(node.args)
    if not known and not is_op_call(node, "take"):
        return None
    args: list[Expr] = []
    for arg in node.args:
        if isinstance(arg, Constant) and is_float(_dtype(arg)):
            if not (np.abs(arg.data) <= _EXACT).all() or (arg.data % 1).any():
                return None
            args.append(Constant(arg.data.astype(np.int64), span=arg.span))
        elif arg in whole:
            args.append(whole[arg])
        elif is_float(_dtype(arg)):
            return None
        else:  # indices, or the condition of where
            args.append(new.get(arg, arg))
    return node.with_fields(args=tuple(args))


def _bounds_of(mod: IRModule, values: tuple[Expr, ...]) -> list[Interval]:
    """Bounds of integers that are computed in ``main``."""
    main: Function = mod["main"]
    counted = mod.with_function("main", main.with_fields(body=Tuple(values), ret_type=None))
    flow = dataflow(infer_module(counted))
    ranges = ranges_of(flow)
    return [ranges.of(value) for value in flow.outputs]


def bounded_counts(mod: IRModule) -> IRModule:
    """The module with bounds on computed whole numbers that become real; itself without any."""
    answers: set[Expr] = set()  # truth values, places, and whole numbers that are made of them
    casts: list[Call] = []
    for node in nodes_of(mod["main"]):
        dtype = _dtype(node)
        made = any(arg in answers for arg in node.operands())
        if dtype == "bool" or (made and is_integer(dtype)) or is_op_call(node, *PLACES):
            answers.add(node)
        elif made and dtype == "float32" and is_op_call(node, "cast"):
            data = node.args[0]
            whole = is_integer(data.tensor_type.dtype) and not is_op_call(data, "clip")
            casts += [node] if whole else []
    if not casts:
        return mod
    limits: dict[Expr, tuple[float, float]] = {}
    for call, bounds in zip(casts, _bounds_of(mod, tuple(c.args[0] for c in casts)), strict=True):
        if max(-bounds.lowest, bounds.highest) <= _EXACT:
            limits[call] = float(bounds.lowest), float(bounds.highest)

    def made_of(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call) or node not in limits:
            return None
        low, high = limits[node]
        return node.with_fields(args=(op_call("clip", new[node.args[0]], a_min=low, a_max=high),))

    return rewritten(mod, made_of)
