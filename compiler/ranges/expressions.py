"""Bounds of expressions while a pass builds them: every node is typed and analysed once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

from compiler.core.legalize import is_integral, is_whole
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr, Op, Tuple, TupleGetItem
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.loops import END, STEP
from compiler.ir.ty import TupleType, Type, integer_range, is_float, tensor_fields
from compiler.ir.type_relation import result_of
from compiler.ops.evaluate import evaluate_op
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ranges.analysis import RangeContext, analyse_step
from compiler.ranges.interval import interval

_MOST_BOUNDS: Final = 1 << 11
"""Longer arrays of bounds become one pair: all channels are told apart, most elements are not."""


class ExpressionRanges:
    """Bounds of the nodes that were asked for, and of the nodes that they read.

    What is made of constants alone has the bounds that their ends give. Vectors are computed, and
    so is what a step reads that may overflow otherwise.
    """

    def __init__(self) -> None:
        self._ctx = RangeContext()
        self._values: dict[Expr, tuple[Value, ...]] = {}
        self._constant: dict[Value, Step] = {}
        self._reached: dict[Value, tuple[int, int]] = {}
        self._bounds: dict[Expr, tuple[int, int]] = {}

    def of(self, expr: Expr) -> tuple[int, int]:
        """Lowest and highest element of a tensor, for any input; floats stand for int32.

        What may leave its dtype, or has an intermediate that may, has the bounds of that.
        """
        if expr not in self._bounds:
            waiting = [expr]
            while waiting:
                missing = [node for node in _read(waiting[-1]) if node not in self._values]
                if missing:
                    waiting += missing
                elif (node := waiting.pop()) not in self._values:
                    self._values[node] = self._found(node)
            (value,) = self._values[expr]
            low, high = self._reached.get(value) or self._ctx.ends_of(value)
            if is_float(value.type.dtype):
                lowest, highest = integer_range("int32")
                low, high = max(low, lowest), min(high, highest)
            self._bounds[expr] = int(low), int(high)
        return self._bounds[expr]

    def _found(self, node: Expr) -> tuple[Value, ...]:
        if isinstance(node, Constant):
            return (Value(node.tensor_type, data=node.data),)
        if node.checked_type_or_none is None:
            node.set_checked_type(_inferred(node))
        if isinstance(node, Tuple):
            return tuple(value for field in node.fields for value in self._values[field])
        made = tuple(map(Value, tensor_fields(node.checked_type)))
        if isinstance(node, TupleGetItem):
            fields: Any = node.tuple.checked_type
            first = len(tensor_fields(TupleType(fields.fields[: node.index])))
            return self._values[node.tuple][first : first + len(made)]
        if isinstance(node, Call) and isinstance(node.op, Op):
            read = tuple(value for arg in node.args for value in self._values[arg])
            self._analyse(Step(node.op, node.attrs, read, made))
        return made

    def _analyse(self, step: Step) -> None:
        read = step.args
        made = step.results
        if step.name in (STEP, END):  # elements of what it reads last
            for value, source in zip(made, read[-len(made) :], strict=True):
                self._ctx.set_ends(value, self._ctx.ends_of(source))
            return
        computes = len(made) == 1 and FNumpyCompute.get(step.op) is not None  # a state does not
        constant = computes and all(v.data is not None or v in self._constant for v in read)
        if constant:
            self._constant[step.result] = step
        if is_integral(step) or not (constant and _gives_vector(step)):
            self._bound(step)
        if constant and _gives_vector(step):
            self._compute(step.result)

    def _bound(self, step: Step) -> None:
        read = step.args
        made = step.results
        findings = self._ctx.findings
        analyse_step(step, self._ctx)
        if findings and sum(map(self._compute, read)):
            findings.clear()
            analyse_step(step, self._ctx)
        if reach := max((abs(found.bound or 0) for found in findings), default=0):
            self._reached.update(dict.fromkeys(made, (-reach, reach)))
        findings.clear()
        for value in filter(is_whole, made):
            if self._ctx.of(value).low.size > _MOST_BOUNDS:
                self._ctx.set_ends(value, self._ctx.ends_of(value))

    def _compute(self, value: Value) -> bool:
        """Compute a value that is made of constants; False where it is not, or known."""
        if value not in self._constant or value.data is not None:
            return False
        waiting = [value]
        while waiting:
            step = self._constant[waiting[-1]]
            missing = [arg for arg in step.args if arg.data is None]
            if missing:
                waiting += missing
                continue
            made = waiting.pop()
            arrays = [arg.data for arg in step.args if arg.data is not None]
            data: Any = evaluate_op(step.op, step.attrs, arrays, made.type)
            made.data = data
            if is_whole(made):
                self._ctx.set(made, interval(data, data))
        return True


def _gives_vector(step: Step) -> bool:
    """Return whether a vector is computed of what is known."""
    shape = step.result.type.concrete_shape
    known = all(arg.data is not None for arg in step.args)
    return known and max(shape, default=1) == math.prod(shape)


def _read(node: Expr) -> Sequence[Expr]:
    """Operands that say what a node is; what control flow and functions give may be anything."""
    if isinstance(node, Call):
        if isinstance(node.op, Op):
            return node.args
        return ()
    if isinstance(node, (Tuple, TupleGetItem)):
        return node.operands()
    return ()


def _inferred(node: Expr) -> Type:
    """The type of a node whose operands have types."""
    if isinstance(node, Tuple):
        return TupleType(tuple(field.checked_type for field in node.fields))
    found = None
    if isinstance(node, Call) and isinstance(node.op, Op):
        found = result_of(node.op.rel, [arg.checked_type for arg in node.args], node.attrs)
    return found or infer_expr(node).checked_type
