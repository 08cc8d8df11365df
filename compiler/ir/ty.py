"""Types of the IR; all are values except the three kinds of variable."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from typing import TypeGuard

from compiler.errors import TypeInferenceError, legal_names

FLOAT_DTYPES = ("float16", "float32", "float64")
SIGNED_DTYPES = ("int8", "int16", "int32", "int64")
UNSIGNED_DTYPES = ("uint8", "uint16", "uint32", "uint64")
NARROW_DTYPES = ("int4", "uint4")
DTYPES = ("bool", *SIGNED_DTYPES, *UNSIGNED_DTYPES, *FLOAT_DTYPES, *NARROW_DTYPES, "void")
_KNOWN_DTYPES = frozenset(DTYPES)


def bits(dtype: str) -> int:
    """Width of a dtype in bits; bool counts as 1."""
    if dtype == "bool":
        return 1
    if dtype == "void":
        return 0
    return int(dtype.lstrip("uintfloa"))


def is_float(dtype: str) -> bool:
    """True for float16, float32 and float64."""
    return dtype in FLOAT_DTYPES


def is_integer(dtype: str) -> bool:
    """True for every signed and unsigned integer dtype; False for bool."""
    return dtype in SIGNED_DTYPES or dtype in UNSIGNED_DTYPES or dtype in NARROW_DTYPES


class Any:
    """A dimension whose size is unknown; every two of them compare equal as values."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Any)

    def __hash__(self) -> int:
        return 0x3F

    def __repr__(self) -> str:
        return "?"


Dim = int | Any
Shape = tuple[Dim, ...]


def _checked_dim(dim: object, shape: tuple[object, ...]) -> Dim:
    if isinstance(dim, Any):
        return dim
    # numpy integers are dimensions too.
    size = -1 if isinstance(dim, bool) or not hasattr(dim, "__index__") else operator.index(dim)
    if size < 0:
        raise TypeInferenceError(
            f"{dim!r} is not a dimension of a tensor",
            where=f"shape ({', '.join(map(str, shape))})",
            fix="use non-negative integers, or Any() for an unknown size",
        )
    return size


def _is_concrete(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    return not any(isinstance(dim, Any) for dim in shape)


class Type:
    """Base of all types."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """A dense array: ``shape`` in elements per axis, () for a scalar.

    Raises:
        TypeInferenceError: a dimension is neither a non-negative integer nor ``Any()``, or the
            dtype is none of DTYPES.
    """

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        shape = tuple(self.shape)
        for dim in shape:
            if type(dim) is not int or dim < 0:
                shape = tuple(_checked_dim(d, shape) for d in shape)
                break
        object.__setattr__(self, "shape", shape)
        if self.dtype not in _KNOWN_DTYPES:
            raise TypeInferenceError(
                f"unknown dtype {self.dtype!r}", fix=legal_names(str(self.dtype), DTYPES)
            )

    @property
    def concrete_shape(self) -> tuple[int, ...]:
        """The shape as ints; the caller has made sure that no dimension is unknown."""
        shape = self.shape
        assert _is_concrete(shape), f"dynamic shape {shape}"
        return shape

    @property
    def num_elements(self) -> int:
        """Number of elements of a static tensor."""
        return math.prod(self.concrete_shape)

    def __str__(self) -> str:
        dims = ", ".join(str(d) for d in self.shape)
        return f"Tensor[({dims}), {self.dtype}]"


@dataclass(frozen=True, slots=True)
class TupleType(Type):
    """Product of types; no field is the unit type."""

    fields: tuple[Type, ...] = ()

    def __str__(self) -> str:
        comma = "," if len(self.fields) == 1 else ""
        return f"({', '.join(str(f) for f in self.fields)}{comma})"


@dataclass(frozen=True, slots=True)
class FuncType(Type):
    """A function from ``arg_types`` to ``ret_type``, polymorphic in ``type_params``."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = ()
    type_constraints: tuple[object, ...] = ()

    def __str__(self) -> str:
        params = f"[{', '.join(str(p) for p in self.type_params)}]" if self.type_params else ""
        return f"fn {params}({', '.join(str(a) for a in self.arg_types)}) -> {self.ret_type}"


@dataclass(frozen=True, slots=True)
class RefType(Type):
    """A mutable cell holding a ``value``."""

    value: Type

    def __str__(self) -> str:
        return f"ref({self.value})"


@dataclass(frozen=True, slots=True, eq=False)
class TypeVar(Type):
    """A type parameter; compared by identity unless bound."""

    name_hint: str
    kind: str = "Type"

    def __str__(self) -> str:
        return self.name_hint


@dataclass(frozen=True, slots=True)
class GlobalTypeVar(Type):
    """Name of an algebraic data type of the module."""

    name_hint: str

    def __str__(self) -> str:
        return self.name_hint


@dataclass(frozen=True, slots=True)
class TypeCall(Type):
    """An algebraic data type applied to type arguments."""

    func: GlobalTypeVar
    args: tuple[Type, ...] = ()

    def __str__(self) -> str:
        return (
            f"{self.func}[{', '.join(str(a) for a in self.args)}]" if self.args else str(self.func)
        )


@dataclass(frozen=True, slots=True, eq=False)
class IncompleteType(Type):
    """A hole that inference fills; never survives InferType."""

    kind: str = "Type"

    def __str__(self) -> str:
        return "_"


def is_dynamic(ty: Type) -> bool:
    """True when any dimension reachable from ``ty`` is unknown."""
    stack: list[Type] = [ty]
    while stack:
        top = stack.pop()
        if isinstance(top, TensorType):
            if any(isinstance(d, Any) for d in top.shape):
                return True
        elif isinstance(top, TupleType):
            stack.extend(top.fields)
        elif isinstance(top, FuncType):
            stack.extend((*top.arg_types, top.ret_type))
        elif isinstance(top, RefType):
            stack.append(top.value)
        elif isinstance(top, TypeCall):
            stack.extend(top.args)
    return False


def tensor_fields(ty: Type) -> list[TensorType]:
    """The tensor types inside a (nested) tuple type, left to right."""
    found: list[TensorType] = []
    stack: list[Type] = [ty]
    while stack:
        top = stack.pop()
        if isinstance(top, TensorType):
            found.append(top)
        elif isinstance(top, TupleType):
            stack.extend(reversed(top.fields))
    return found
