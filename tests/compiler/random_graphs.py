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

from compiler.errors import AttrError, CompilerError, TypeInferenceError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Constant, Expr, Function, Let, Op, Tuple, TupleGetItem, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import all_ops
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import IncompleteType, TensorType, TupleType, Type, is_dynamic
from compiler.ops.evaluate import Value, evaluate_op, flatten
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.numpy_compute import FNumpyCompute

# Values for attributes that have no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "nn.max_pool2d": {"pool_size": (2, 2)},
    "nn.avg_pool2d": {"pool_size": (2, 2)},
    "nn.group_norm": {"num_groups": 1},
    "nn.l2_normalize": {"eps": 1e-6, "axis": (1,)},
    "nn.pad": {"pad_width": ((0, 1), (1, 0))},
    "clip": {"a_min": -1.0, "a_max": 1.0},
    "cast": {"dtype": "int8"},
    "zeros": {"shape": (2,)},
    "ones": {"shape": (2,)},
    "full": {"shape": (2,)},
    "fixed_point_multiply": {"multiplier": 1 << 30, "shift": 1},
    "unary_formula": {"formula": "x x sigmoid multiply"},
    "reshape": {"newshape": (-1,)},
    "expand_dims": {"axis": 0},
    "split": {"indices_or_sections": 1},
    "strided_slice": {"begin": (0,), "end": (1,)},
    "gather": {"axis": 0},
    "broadcast_to": {"shape": (2, 3)},
    "tile": {"reps": (2,)},
    "repeat": {"repeats": 2},
    "scan": {"length": 2},
    "scan.state": {"loop": "a", "length": 2},
    "scan.step": {"loop": "a", "length": 2, "reverse": (0,)},
    "scan.end": {"loop": "a", "length": 2, "reverse": (0,)},
    "reverse": {"axis": 0},
    "layout_transform": {"src_layout": "NCHW", "dst_layout": "NHWC"},
    "one_hot": {"depth": 3},
    "image.resize2d": {"size": (3, 3)},
    "annotation.cast_hint": {"dtype": "int8"},
    "relay.op.annotation.simulated_quantize": {"kind": 1},
}
SHAPES = ((), (1,), (2,), (3,), (2, 3), (3, 2), (1, 2, 3), (2, 3, 3), (1, 2, 3, 3), (2, 2, 1, 1))
DTYPES = ("float32", "float16", "int8", "int32", "int64", "uint8", "bool")
_TAKES_TUPLE = ("concatenate", "stack")
_INTS = (-5, -2, -1, 0, 1, 2, 3, 4)
_FLOATS = (0.0, 1.0, -1.0, 2.5, float("nan"), float("inf"))
_WORDS = (
    "NCHW", "NHWC", "OIHW", "", "clip", "update", "linear", "nearest_neighbor", "both", "end",
    "size", "constant", "edge", "reflect", "ij->ji", "half_pixel", "DCR", "round", "nonsense",
)  # fmt: skip


def plain_attrs(op: Op) -> Attrs | None:
    """Default attributes, with something simple for the required ones."""
    return op.attrs_type.make(**REQUIRED.get(op.name, {})) if op.attrs_type else None


def random_attrs(op: Op, rng: random.Random) -> Attrs | None:
    """Attributes of which about a third are random, sensible or not.

    Raises:
        AttrError: the record itself refused the values.
    """
    if op.attrs_type is None:
        return None
    values = dict(REQUIRED.get(op.name, {}))
    for name, declared in op.attrs_type.__dataclass_fields__.items():
        if name != "type_key" and rng.random() < 0.35:
            known, value = _random_field(name, str(declared.type), rng)
            if known:
                values[name] = value
    return op.attrs_type.make(**values)


def _random_field(name: str, annotation: str, rng: random.Random) -> tuple[bool, Any]:
    if name == "dtype" or name.endswith("_dtype"):
        return True, rng.choice(("int8", "float32", "int32", "", "float16", "bool"))
    if annotation.endswith(" | None") and rng.random() < 0.4:
        return True, None
    kind = annotation.removesuffix(" | None")
    some = tuple(rng.choice(_INTS) for _ in range(rng.randrange(5)))
    choices: dict[str, Any] = {
        "int": rng.choice(_INTS),
        "float": rng.choice(_FLOATS),
        "bool": rng.random() < 0.5,
        "str": rng.choice(_WORDS),
        "tuple[int, ...]": some,
        "tuple[tuple[int, ...], ...]": tuple((i, rng.choice(_INTS)) for i in some),
        "int | tuple[int, ...]": rng.choice((rng.choice(_INTS), some)),
        "Axes": rng.choice((None, rng.choice(_INTS), some[:2])),
    }
    return kind in choices, choices.get(kind)


def random_types(op: Op, rng: random.Random) -> tuple[Type, ...]:
    """One type per argument; mostly of one dtype, some with unknown or zero dimensions.

    Later arguments are often the scalars, vectors or equals of the first that operators ask for.
    """
    dtype = rng.choice(DTYPES) if rng.random() < 0.7 else None
    left_out = rng.randrange(op.optional + 1) if op.optional else 0
    names = op.arg_names[: len(op.arg_names) - left_out]
    types = [_random_type(op, dtype, rng) for _ in names]
    first = types[0] if types else None
    if isinstance(first, TensorType) and rng.random() < 0.6:
        axis = rng.choice(first.shape) if first.shape else 1
        # One choice for all: normalisations want vectors, quantization scalars.
        shape = rng.choice((first.shape, (axis,), ()))
        types[1:] = [TensorType(shape, dtype or first.dtype) for _ in types[1:]]
    return tuple(types)


def _random_type(op: Op, dtype: str | None, rng: random.Random) -> Type:
    shape: Sequence[Any] = rng.choice(SHAPES)
    if rng.random() < 0.1:
        shape = [AnyDim() if rng.random() < 0.5 else d for d in shape]
    elif rng.random() < 0.05:
        shape = [0 if rng.random() < 0.5 else d for d in shape]
    ty = TensorType(tuple(shape), dtype or rng.choice(DTYPES))
    if op.name in _TAKES_TUPLE and rng.random() < 0.9:
        other = TensorType(rng.choice(SHAPES), rng.choice(DTYPES))
        return TupleType((ty, ty if rng.random() < 0.7 else other))
    return TupleType((ty,)) if rng.random() < 0.05 else ty


class _Equality:
    """A solver that only knows equality: all that a relation of known types needs."""

    def __init__(self) -> None:
        self.found: dict[int, Type] = {}

    def assign(self, dst: Type, src: Type) -> None:
        """Fill the hole, or compare."""
        if isinstance(dst, IncompleteType):
            self.found[id(dst)] = src
        elif dst != src:
            raise TypeInferenceError(f"{dst} is not {src}")


def result_type(op: Op, attrs: Attrs | None, types: Sequence[Type]) -> Type | None:
    """What the operator's relation says about known argument types; None when it cannot say.

    Raises:
        TypeInferenceError: the types do not fit.
    """
    hole, solver = IncompleteType(), _Equality()
    if not op.rel((*types, hole), len(types), attrs, solver):
        return None
    return solver.found.get(id(hole))


def random_value(ty: Type, rng: np.random.Generator) -> Value:
    """Small non-negative whole numbers, legal for every operator and dtype."""
    if isinstance(ty, TupleType):
        return tuple(random_value(f, rng) for f in ty.fields)
    assert isinstance(ty, TensorType)
    values: NDArray[Any] = rng.integers(0, 3, ty.concrete_shape)
    return np.asarray(values).astype(storage_dtype(ty.dtype))


def accepted_calls(
    op: Op, seed: int, tries: int, vary_attrs: bool = True
) -> tuple[list[tuple[Attrs | None, tuple[Type, ...], Type]], int]:
    """Random (attrs, argument types, result type) it accepts, and the number it refuses."""
    rng = random.Random(f"{op.name} {seed}")
    accepted: list[tuple[Attrs | None, tuple[Type, ...], Type]] = []
    refused = 0
    for _ in range(tries):
        try:
            attrs = random_attrs(op, rng) if vary_attrs else plain_attrs(op)
            types = random_types(op, rng)
            result = result_type(op, attrs, types)
        except (AttrError, TypeInferenceError):
            refused += 1
            continue
        if result is not None:
            accepted.append((attrs, types, result))
    return accepted, refused


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
