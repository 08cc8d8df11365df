"""Checks of argument types that relations share, and their errors."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Sequence

from compiler.errors import TypeInferenceError
from compiler.ir.ty import Any, Dim, Shape, TensorType, TupleType, Type, is_float, is_integer
from compiler.ir.type_relation import Reporter, TypeRelation, is_known

Types = Sequence[Type]
"""Types of the arguments of a call, as a type relation gets them."""


def tensor(op: str, types: Types, index: int, name: str) -> TensorType:
    """Argument ``index`` as a tensor type.

    Raises:
        TypeInferenceError: it is a tuple, a function or another non-tensor, or missing.
    """
    if index >= len(types):
        raise TypeInferenceError(f"{op}: argument {index} ({name}) is missing")
    ty = types[index]
    if type(ty) is TensorType:
        return ty
    raise TypeInferenceError(f"{op}: argument {index} ({name}) is {ty}, a tensor is needed")


def tensor_of_rank(
    op: str, types: Types, index: int, name: str, rank: int, at_least: bool = False
) -> TensorType:
    """Argument ``index`` as a tensor of exactly (or at least) this rank.

    Raises:
        TypeInferenceError: it has another rank.
    """
    ty = tensor(op, types, index, name)
    have = len(ty.shape)
    if have == rank or (at_least and have > rank):
        return ty
    need = f"rank {rank} or more" if at_least else f"rank {rank}"
    raise TypeInferenceError(
        f"{op}: argument {index} ({name}) is {ty} of rank {have}, {need} is needed"
    )


def tensor_tuple(op: str, types: Types, index: int, name: str) -> list[TensorType]:
    """Argument ``index`` as a non-empty tuple of tensors.

    Raises:
        TypeInferenceError: it is anything else.
    """
    ty = types[index] if index < len(types) else None
    if isinstance(ty, TupleType) and ty.fields:
        fields = [f for f in ty.fields if isinstance(f, TensorType)]
        if len(fields) == len(ty.fields):
            return fields
    raise TypeInferenceError(
        f"{op}: argument {index} ({name}) is {ty}, a non-empty tuple of tensors is needed"
    )


def integer_tensor(op: str, types: Types, index: int, name: str) -> TensorType:
    """Argument ``index`` as a tensor of an integer dtype.

    Raises:
        TypeInferenceError: it has another dtype.
    """
    ty = tensor(op, types, index, name)
    check_integers(op, ty, f"argument {index} ({name})")
    return ty


def _check(needed: str, legal: Callable[[str], bool]) -> Callable[..., None]:
    """The check of one kind of number; it raises a TypeInferenceError for another."""

    def check(op: str, data: TensorType, name: str = "argument 0 (data)") -> None:
        if not legal(data.dtype):
            raise TypeInferenceError(
                f"{op}: {name} is {data}, {needed} needed", fix="insert a cast"
            )

    return check


check_integers = _check("an integer dtype is", is_integer)
check_floats = _check("a float dtype is", is_float)
check_no_bools = _check("numbers are", lambda dtype: dtype != "bool")


def index_tensor(op: str, types: Types, index: int, name: str) -> TensorType:
    """Argument ``index`` as a tensor of positions, which int64 holds.

    Raises:
        TypeInferenceError: its dtype is no integer, or uint64.
    """
    ty = integer_tensor(op, types, index, name)
    if ty.dtype != "uint64":
        return ty
    raise TypeInferenceError(
        f"{op}: argument {index} ({name}) is {ty}; positions are counted in int64",
        fix="cast it to int64",
    )


def check_dtype(op: str, data: TensorType, legal: Sequence[str]) -> None:
    """Data that must have one of a few dtypes.

    Raises:
        TypeInferenceError: they have another.
    """
    if data.dtype not in legal:
        raise TypeInferenceError(
            f"{op}: argument 0 (data) is {data}", fix=f"legal dtypes: {', '.join(legal)}"
        )


def check_integer_dtype(op: str, dtype: str) -> str:
    """An attribute that must name an integer dtype.

    Raises:
        TypeInferenceError: it names another, or none.
    """
    if is_integer(dtype):
        return dtype
    raise TypeInferenceError(f"{op}: dtype {dtype!r} is no integer dtype")


def same_dtype(op: str, a: TensorType, b: TensorType) -> str:
    """The common dtype.

    Raises:
        TypeInferenceError: they differ; there is no implicit promotion.
    """
    if a.dtype == b.dtype:
        return a.dtype
    raise TypeInferenceError(
        f"{op}: dtypes {a.dtype} and {b.dtype} differ",
        where=f"{a} and {b}",
        fix="cast one side; there is no implicit promotion",
    )


def normalize_axis(op: str, axis: int, rank: int, what: str = "axis") -> int:
    """``axis`` counted from the front.

    Raises:
        TypeInferenceError: it is outside [-rank, rank).
    """
    if -rank <= axis < rank:
        if axis < 0:
            return axis + rank
        return axis
    raise TypeInferenceError(
        f"{op}: {what} {axis} is outside a tensor of rank {rank}",
        fix=f"use {-rank} to {rank - 1}" if rank else "a scalar has no axis",
    )


def normalize_axes(op: str, axes: Sequence[int], rank: int, what: str = "axis") -> tuple[int, ...]:
    """Every axis counted from the front.

    Raises:
        TypeInferenceError: one is outside the rank or given twice.
    """
    found = tuple(normalize_axis(op, a, rank, what) for a in axes)
    if len(set(found)) != len(found):
        raise TypeInferenceError(f"{op}: {what} {list(axes)} names one axis twice")
    return found


def vectors_along_axis(
    op: str,
    *names: str,
    check: Callable[[str, TensorType], None] = check_floats,
    dtype: str | None = None,
    result: Callable[[TensorType, TensorType], Type] = lambda data, vector: data,
) -> TypeRelation:
    """The relation of data and vectors as long as ``attrs.axis``.

    Args:
        names: of the vectors; those of unknown type are assigned.
        check: refuses data of the wrong dtype.
        dtype: of the vectors; None: the data's.
        result: of the types of data and vectors; the data's unless told.
    Raises:
        TypeInferenceError: (from the relation) a wrong rank or dtype.
    """

    def rel(types: Types, num_inputs: int, attrs: typing.Any, reporter: Reporter) -> bool:
        if not is_known(types[0]):
            return False
        data = tensor_of_rank(op, types, 0, "data", 1, at_least=True)
        check(op, data)
        axis = normalize_axis(op, attrs.axis, len(data.shape))
        vector = TensorType((data.shape[axis],), dtype or data.dtype)
        for index, name in enumerate(names, 1):
            if is_known(types[index]):
                tensor_of_rank(op, types, index, name, 1)
            reporter.assign(types[index], vector)
        reporter.assign(types[-1], result(data, vector))
        return True

    return rel


def merge_dim(op: str, a: Dim, b: Dim, what: str) -> Dim:
    """The size two dimensions that must agree have; an unknown one gives way.

    Raises:
        TypeInferenceError: both are known and differ.
    """
    if isinstance(a, Any):
        return b
    if isinstance(b, Any) or a == b:
        return a
    raise TypeInferenceError(f"{op}: {what} is {a} on one side and {b} on the other")


def product_of(sizes: Sequence[Dim]) -> Dim:
    """The product of sizes; unknown where one of them is."""
    known = [size for size in sizes if isinstance(size, int)]
    if len(known) == len(sizes):
        return math.prod(known)
    return Any()


def static(shape: Shape) -> bool:
    """True when every dimension is known."""
    return not any(isinstance(d, Any) for d in shape)


def shape_text(shape: Shape) -> str:
    """A shape as the text format writes it."""
    return f"({', '.join(str(d) for d in shape)})"
