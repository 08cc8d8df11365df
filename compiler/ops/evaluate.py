"""Run one operator call on numpy arrays. FoldConstant and the reference executor share it.

Values are arrays and (nested) tuples of values. Integers wrap, floats compute in their own dtype;
no floating-point warning reaches the user.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compiler.errors import EvaluationError
from compiler.ir.attrs import Attrs
from compiler.ir.dataflow import Dataflow, Step
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.expr import Call, Op
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.ops.rules.numpy_compute import FNumpyCompute, NumpyCompute

Value: TypeAlias = "NDArray[Any] | tuple[Value, ...]"


def evaluate_op(op: Op, attrs: Attrs | None, args: Sequence[Value], out_type: Type) -> Value:
    """The value of ``op(*args)``.

    Args:
        op: an operator with an FNumpyCompute rule.
        attrs: its attribute record.
        args: one value per argument, dtypes as the type relation accepted them.
        out_type: the inferred result type.
    Raises:
        CompilerError: the operator has no numpy semantics.
        EvaluationError: a value the operator is not defined for.
    """
    compute = FNumpyCompute.require(op)
    with np.errstate(all="ignore"):
        return apply_rule(compute, op, attrs, args, out_type)


def apply_rule(
    compute: NumpyCompute, op: Op, attrs: Attrs | None, args: Sequence[Value], out_type: Type
) -> Value:
    """``evaluate_op`` with the rule already looked up, under numpy's error state of the caller.

    Raises:
        EvaluationError: a value it is not defined for, such as the largest of no elements.
    """
    for arg in args:
        if type(arg) is tuple:
            args = flatten(args)
            break
    try:
        results = compute(attrs, args, out_type)  # type: ignore[arg-type]
    except (ValueError, IndexError, ArithmeticError) as error:
        raise EvaluationError(f"{op.name}: {error}") from error
    if type(out_type) is TensorType:
        return _as_array(results[0])
    if not isinstance(out_type, TupleType):
        raise EvaluationError(f"{op.name} has a result of type {out_type}, which holds no arrays")
    return shaped_like(iter(results), out_type)


def evaluate_call(call: Call, args: Sequence[Value]) -> Value:
    """The value of one typed operator call on the values of its arguments.

    Raises:
        EvaluationError: the callee is not an operator.
    """
    if not isinstance(call.op, Op):
        raise EvaluationError("evaluate_call runs operators only", span=call.span)
    return evaluate_op(call.op, call.attrs, args, call.checked_type)


def evaluate_flow(flow: Dataflow, *args: NDArray[Any]) -> Value:
    """The results of the steps of a flow, each by ``evaluate_step``."""
    held = dict(zip(flow.inputs, args, strict=True))

    def operand(value: FlowValue) -> NDArray[Any]:
        return held[value] if value.data is None else value.data

    for step in flow.steps:
        made = evaluate_step(step, [operand(arg) for arg in step.args])
        held.update(zip(step.results, made, strict=True))
    return tuple(operand(value) for value in flow.outputs)


def evaluate_step(step: Step, args: Sequence[Value]) -> list[NDArray[Any]]:
    """The results of a step of a flow."""
    types = tuple(result.type for result in step.results)
    out_type = types[0] if len(types) == 1 and step.body is None else TupleType(types)
    called: list[Any] = [] if step.body is None else [partial(evaluate_flow, step.body)]
    return flatten([evaluate_op(step.op, step.attrs, [*called, *args], out_type)])


def flatten(values: Sequence[Value]) -> list[NDArray[Any]]:
    """The arrays inside, left to right."""
    found: list[NDArray[Any]] = []
    stack: list[Value] = list(reversed(values))
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack.extend(reversed(value))
        else:
            found.append(value)
    return found


def _as_array(value: Any) -> NDArray[Any]:
    return value if type(value) is np.ndarray else np.asarray(value)


def shaped_like(arrays: Iterator[Any], ty: Type) -> Value:
    """Arrays from left to right as a value of this type; recurses over the nesting of the type."""
    if isinstance(ty, TupleType):
        return tuple([shaped_like(arrays, field) for field in ty.fields])
    return _as_array(next(arrays))
