"""Random well-typed modules over all operators, with inputs and the values they give.

A graph grows operator by operator over a pool of values; each new call is run at once, so that what
an operator is not defined for (an index outside, a division by zero) never enters the graph.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Constant, Expr, Function, Let, Op, Tuple, TupleGetItem, Var
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import all_ops
from compiler.ir.ty import TensorType, TupleType, Type, is_dynamic
from compiler.ops.evaluate import Value, evaluate_op, flatten
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.testing.op_calls import random_attrs, random_types, random_value, result_type

# Beyond this, sums of float32 lose so much that two right answers differ.
LARGEST_VALUE = 1e4
LARGEST_TENSOR = 4096
TRIES_PER_CALL = 12

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class RandomGraph:
    """A typed module, inputs of @main by name, and the result."""

    mod: IRModule
    inputs: Arrays
    expected: list[NDArray[Any]]


@dataclass(slots=True)
class _Pool:
    """Values made so far, newest last."""

    exprs: list[Expr] = field(default_factory=list)
    types: list[TensorType] = field(default_factory=list)
    values: list[NDArray[Any]] = field(default_factory=list)
    params: list[Var] = field(default_factory=list)
    inputs: Arrays = field(default_factory=dict)
    lets: list[tuple[Var, Expr]] = field(default_factory=list)

    def add(self, expr: Expr, ty: TensorType, value: NDArray[Any]) -> None:
        """One more value."""
        self.exprs.append(expr)
        self.types.append(ty)
        self.values.append(value)


def usable_ops(names: Sequence[str] = ()) -> list[Op]:
    """Operators with a meaning on arrays: the named ones, or all of the package's own."""
    ops = [op for op in all_ops() if op in FNumpyCompute and not op.name.startswith("test.")]
    return [op for op in ops if op.name in names] if names else ops


def random_graph(rng: random.Random, num_calls: int, ops: Sequence[Op]) -> RandomGraph:
    """A module whose @main has up to ``num_calls`` operator calls over some inputs.

    Args:
        rng: all choices; a ``random.Random`` or what hypothesis puts in its place.
        num_calls: calls that are tried; one that finds no arguments is left out.
        ops: operators to draw from.
    """
    pool = _Pool()
    numbers = np.random.default_rng(rng.randrange(1 << 30))
    _add_input(pool, TensorType((1, 2, 3, 3)), numbers)
    for _ in range(num_calls):
        _add_call(pool, ops[rng.randrange(len(ops))], rng, numbers)
    chosen = sorted({len(pool.exprs) - 1, rng.randrange(len(pool.exprs))})
    results = [pool.exprs[i] for i in chosen]
    body: Expr = results[0] if len(results) == 1 else Tuple(tuple(results))
    for var, value in reversed(pool.lets):
        body = Let(var, value, body)
    mod = infer_module(IRModule({"main": Function(tuple(pool.params), body)}))
    return RandomGraph(mod, pool.inputs, [pool.values[i] for i in chosen])


def _add_input(pool: _Pool, ty: TensorType, numbers: np.random.Generator) -> int:
    value = random_value(ty, numbers)
    assert isinstance(value, np.ndarray)
    if ty.dtype.startswith("float"):
        value = np.asarray(value + numbers.uniform(0.25, 0.75, value.shape), value.dtype)
    var = Var(f"x{len(pool.params)}", ty)
    pool.params.append(var)
    pool.inputs[var.name_hint] = value
    pool.add(var, ty, value)
    return len(pool.exprs) - 1


def _add_call(pool: _Pool, op: Op, rng: random.Random, numbers: np.random.Generator) -> None:
    for _ in range(TRIES_PER_CALL):
        try:
            attrs = random_attrs(op, rng)
            wanted = random_types(op, rng)
            types = [_available(pool, ty, rng) for ty in wanted]
            result = result_type(op, attrs, types)
        except CompilerError:
            continue
        if result is None or not _is_small(result) or any(map(is_dynamic, types)):
            continue
        args = [_argument(pool, ty, rng, numbers) for ty in types]
        value = _run(op, attrs, [value for _, value in args], result)
        if value is not None:
            call = Call(op, tuple(expr for expr, _ in args), attrs)
            _add_results(pool, call, result, flatten([value]), rng)
            return


def _available(pool: _Pool, ty: Type, rng: random.Random) -> Type:
    """Mostly the type of something in the pool, so that calls build on each other."""
    if not isinstance(ty, TensorType) or rng.random() < 0.3:
        return ty
    fitting = [t for t in pool.types if t.dtype == ty.dtype or len(t.shape) == len(ty.shape)]
    return fitting[rng.randrange(len(fitting))] if fitting else ty


def _argument(
    pool: _Pool, ty: Type, rng: random.Random, numbers: np.random.Generator
) -> tuple[Expr, Value]:
    """Something of exactly this type: from the pool, a constant, or a new input."""
    if isinstance(ty, TupleType):
        parts = [_argument(pool, part, rng, numbers) for part in ty.fields]
        return Tuple(tuple(expr for expr, _ in parts)), tuple(value for _, value in parts)
    assert isinstance(ty, TensorType)
    held = [i for i, t in enumerate(pool.types) if t == ty]
    if held and rng.random() < 0.8:
        i = held[rng.randrange(len(held))]
        return pool.exprs[i], pool.values[i]
    if rng.random() < 0.5:
        value = random_value(ty, numbers)
        assert isinstance(value, np.ndarray)
        return Constant(value), value
    i = _add_input(pool, ty, numbers)
    return pool.exprs[i], pool.values[i]


def _run(op: Op, attrs: Attrs | None, args: Sequence[Value], result: Type) -> Value | None:
    """The value, or None where it is undefined or too large to compare."""
    try:
        value = evaluate_op(op, attrs, args, result)
    except CompilerError:
        return None
    for array in flatten([value]):
        if array.dtype.kind == "f" and not np.all(np.abs(array) < LARGEST_VALUE):
            return None
    return value


def _add_results(
    pool: _Pool, call: Call, result: Type, values: Sequence[NDArray[Any]], rng: random.Random
) -> None:
    expr: Expr = call
    if rng.random() < 0.1:
        var = Var(f"v{len(pool.lets)}")
        pool.lets.append((var, call))
        expr = var
    if isinstance(result, TensorType):
        pool.add(expr, result, values[0])
    elif isinstance(result, TupleType):
        for i, (ty, value) in enumerate(zip(result.fields, values)):
            if isinstance(ty, TensorType):
                pool.add(TupleGetItem(expr, i), ty, value)


def _is_small(ty: Type) -> bool:
    if isinstance(ty, TupleType):
        return all(map(_is_small, ty.fields))
    return isinstance(ty, TensorType) and not is_dynamic(ty) and ty.num_elements <= LARGEST_TENSOR
