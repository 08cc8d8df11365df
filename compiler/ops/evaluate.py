"""Run one operator call on numpy arrays. FoldConstant and the reference executor share it.

Values are arrays and (nested) tuples of values. Integers wrap, floats compute in their own dtype;
no floating-point warning reaches the user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compiler.core.legalize import words_of
from compiler.core.words import Body
from compiler.errors import EvaluationError
from compiler.ir.attrs import Attrs
from compiler.ir.dataflow import Dataflow, Step, flatten_function
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.expr import Args, Call, Expr, Function, Op, Var
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, Type, tensor_fields
from compiler.ops.number_format import storage_dtype, working
from compiler.ops.op_call import with_span
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute, NumpyCompute
from compiler.ops.rules.simplify import SimplifyRule
from compiler.span import AnySpan

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
        if value.data is None:
            return held[value]
        return value.data

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


def definition_of(
    rule: SimplifyRule,
    op: Op,
    attrs: Attrs | None,
    types: Sequence[TensorType],
    span: AnySpan | None = None,
) -> Function:
    """The calls that an operator on tensors of these types stands for, typed."""
    params = tuple(Var("x", ty) for ty in types)
    call = infer_expr(Call(op, params, attrs, span=span))
    assert isinstance(call, Call)
    defined = infer_expr(Function(params, rule(call, call.args)))
    assert isinstance(defined, Function)
    return defined


def computes(*ops: Op) -> Callable[[SimplifyRule], SimplifyRule]:
    """Decorator of a definition: operators compute what it does, with float16 widened inside, and
    its calls have the span of the call that they stand for."""

    def add(rule: SimplifyRule) -> SimplifyRule:
        def defined(ref_call: Call, new_args: Args) -> Expr:
            return with_span(rule(ref_call, new_args), ref_call, new_args)

        for op in ops:
            FNumpyCompute.register(op)(_by_definition(defined, op))
        return defined

    return add


def computes_by_body(*ops: Op) -> Callable[[Body], Body]:
    """Decorator of a body that only moves or picks elements: operators compute it in every
    dtype."""

    def add(body: Body) -> Body:
        for op in ops:
            FNumpyCompute.register(op)(_by_body(op))
        return body

    return add


def _by_body(op: Op) -> NumpyCompute:
    @lru_cache(maxsize=256)
    def flow_of(attrs: Attrs | None, *kinds: tuple[tuple[int, ...], np.dtype[Any]]) -> Dataflow:
        params = tuple(Var("x", TensorType(shape, str(dtype))) for shape, dtype in kinds)
        function = infer_expr(Function(params, Call(op, params, attrs)))
        assert isinstance(function, Function)
        flow = flatten_function(function, IRModule())
        steps, results = words_of(flow.steps[0], floats=True)
        return Dataflow(flow.inputs, tuple(steps), tuple(results))

    def compute(attrs: Attrs | None, args: Arrays, out_type: Type) -> list[Any]:
        flow = flow_of(attrs, *[(arg.shape, arg.dtype) for arg in args])
        return flatten([evaluate_flow(flow, *args)])

    return compute


def _by_definition(rule: SimplifyRule, op: Op) -> NumpyCompute:
    @lru_cache(maxsize=256)
    def flow_of(attrs: Attrs | None, *kinds: tuple[tuple[int, ...], np.dtype[Any]]) -> Dataflow:
        types = [TensorType(shape, str(dtype)) for shape, dtype in kinds]
        return flatten_function(definition_of(rule, op, attrs, types), IRModule())

    def compute(attrs: Attrs | None, args: Arrays, out_type: Type) -> list[Any]:
        wide = [working(arg) for arg in args]
        flow = flow_of(attrs, *[(arg.shape, arg.dtype) for arg in wide])
        results = zip(flatten([evaluate_flow(flow, *wide)]), tensor_fields(out_type), strict=True)
        return [array.astype(storage_dtype(ty.dtype), copy=False) for array, ty in results]

    return compute


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
    if type(value) is np.ndarray:
        return value
    return np.asarray(value)


def shaped_like(arrays: Iterator[Any], ty: Type) -> Value:
    """Arrays from left to right as a value of this type; recurses over the nesting of the type."""
    if isinstance(ty, TupleType):
        return tuple([shaped_like(arrays, field) for field in ty.fields])
    return _as_array(next(arrays))
