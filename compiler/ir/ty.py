"""Types of the IR; all are values except the three kinds of variable."""

from __future__ import annotations

import math
import operator
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
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


def integer_range(dtype: str) -> tuple[int, int]:
    """Smallest and largest value of an integer dtype."""
    width = bits(dtype)
    if dtype.startswith("u"):
        return 0, (1 << width) - 1
    return -(1 << (width - 1)), (1 << (width - 1)) - 1


def is_float(dtype: str) -> bool:
    """True for float16, float32 and float64."""
    return dtype in FLOAT_DTYPES


def is_integer(dtype: str) -> bool:
    """True for every signed and unsigned integer dtype; False for bool."""
    return dtype in SIGNED_DTYPES or dtype in UNSIGNED_DTYPES or dtype in NARROW_DTYPES


MAX_RANK = 32
"""Axes of a tensor; numpy 1 has no more."""
MAX_ELEMENTS = 1 << 40
"""Elements of a tensor; an axis of 0 counts as 1, for numpy multiplies the others all the same."""
MAX_NESTING = 100
"""Largest nesting of types, attribute values and patterns: code that reads them recurses."""
MAX_TYPE_PARTS = 1 << 12
"""Types in a type beside the members that it lists: an imported graph has a parameter for each
weight. Sixty lines of ``%n = (%m, %m)`` would make 2^60 without a bound."""
MAX_ALL_TYPE_PARTS = 1 << 20
"""Types in all tuples and functions of a module, in types of nodes and in types that are unified:
10 bytes of text can give a node a type of MAX_TYPE_PARTS."""


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
    if isinstance(dim, bool) or not hasattr(dim, "__index__"):
        size = -1
    else:
        size = operator.index(dim)
    if size < 0:
        raise TypeInferenceError(
            f"{dim!r} is not a dimension of a tensor",
            where=f"shape ({', '.join(map(str, shape))})",
            fix="use non-negative integers, or Any() for an unknown size",
        )
    return size


def _is_concrete(shape: Shape) -> TypeGuard[tuple[int, ...]]:
    for dim in shape:  # noqa: SIM110 - a generator takes three times as long
        if isinstance(dim, Any):
            return False
    return True


def _check_size(shape: Shape) -> None:
    """Raise TypeInferenceError for a shape beyond MAX_RANK or MAX_ELEMENTS."""
    known = [dim for dim in shape if not isinstance(dim, Any) and dim]
    largest = max(known, default=0)
    if len(shape) <= MAX_RANK and math.prod(known) <= MAX_ELEMENTS:
        return
    raise TypeInferenceError(
        f"a tensor has at most {MAX_RANK} axes and 2^40 elements",
        where=f"shape of {len(shape)} axes, the largest of about 2^{largest.bit_length()}",
        fix="make it smaller, or split it",
    )


class Type:
    """Base of all types; ``depth`` and ``parts`` measure what is nested in it, ``listed`` how many
    of them the longest list of members has, with the longest list in a member."""

    __slots__ = ()
    depth: int = 1
    parts: int = 1
    listed: int = 0

    def members(self) -> tuple[Type, ...]:
        """The types directly inside, left to right."""
        return ()


def check_parts(parts: int) -> None:
    """Raises TypeInferenceError: a type has more than MAX_TYPE_PARTS."""
    if parts > MAX_TYPE_PARTS:
        raise TypeInferenceError(
            f"a type holds more than {MAX_TYPE_PARTS} others", fix="use smaller tuples"
        )


@dataclass(frozen=True, slots=True)
class Nested(Type):
    """A type of other types: measured when it is built, so that no reader meets an endless one."""

    depth: int = field(init=False, repr=False, compare=False, default=1)
    parts: int = field(init=False, repr=False, compare=False, default=1)
    listed: int = field(init=False, repr=False, compare=False, default=0)

    def __post_init__(self) -> None:
        """Raises TypeInferenceError: beyond MAX_NESTING or MAX_TYPE_PARTS."""
        inner = self.members()
        depth = 1 + max((one.depth for one in inner), default=0)
        parts = 1 + sum(one.parts for one in inner)
        if depth > MAX_NESTING:
            raise TypeInferenceError(
                f"a type is nested more than {MAX_NESTING} deep", fix="use flatter tuples"
            )
        # A program lists the members of one tuple; what repeats them in others may be short.
        listed = len(inner) + max((one.listed for one in inner), default=0)
        check_parts(parts - listed)
        object.__setattr__(self, "depth", depth)
        object.__setattr__(self, "parts", parts)
        object.__setattr__(self, "listed", listed)

    @abstractmethod
    def text(self, shown: Callable[[Type], str]) -> str:
        """Its text; that of types inside, of variables and of names is ``shown``."""

    def __str__(self) -> str:
        return self.text(str)


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """A dense array: ``shape`` in elements per axis, () for a scalar.

    Raises:
        TypeInferenceError: a dimension is neither a non-negative integer nor ``Any()``, the dtype
            is none of DTYPES, or there are more axes or elements than MAX_RANK and MAX_ELEMENTS.
    """

    shape: Shape
    dtype: str = "float32"

    def __post_init__(self) -> None:
        shape = self.shape
        elements = 1
        if type(shape) is not tuple:
            object.__setattr__(self, "shape", shape := tuple(shape))
        for dim in shape:
            if type(dim) is not int or dim < 0:
                object.__setattr__(
                    self, "shape", shape := tuple(_checked_dim(d, shape) for d in shape)
                )
                elements = 0
                break
            elements *= dim
        if not 0 < elements <= MAX_ELEMENTS or len(shape) > MAX_RANK:
            _check_size(shape)
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
class TupleType(Nested):
    """Product of types; no field is the unit type."""

    fields: tuple[Type, ...] = ()

    def members(self) -> tuple[Type, ...]:
        return self.fields

    def text(self, shown: Callable[[Type], str]) -> str:
        comma = "," if len(self.fields) == 1 else ""
        return f"({', '.join(map(shown, self.fields))}{comma})"


@dataclass(frozen=True, slots=True)
class FuncType(Nested):
    """A function from ``arg_types`` to ``ret_type``, polymorphic in ``type_params``."""

    arg_types: tuple[Type, ...]
    ret_type: Type
    type_params: tuple[TypeVar, ...] = ()
    type_constraints: tuple[object, ...] = ()

    def members(self) -> tuple[Type, ...]:
        return (*self.arg_types, self.ret_type)

    def text(self, shown: Callable[[Type], str]) -> str:
        if self.type_params:
            params = f"[{', '.join(map(shown, self.type_params))}]"
        else:
            params = ""
        return f"fn {params}({', '.join(map(shown, self.arg_types))}) -> {shown(self.ret_type)}"


@dataclass(frozen=True, slots=True)
class RefType(Nested):
    """A mutable cell holding a ``value``."""

    value: Type

    def members(self) -> tuple[Type, ...]:
        return (self.value,)

    def text(self, shown: Callable[[Type], str]) -> str:
        return f"ref({shown(self.value)})"


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
class TypeCall(Nested):
    """An algebraic data type applied to type arguments."""

    func: GlobalTypeVar
    args: tuple[Type, ...] = ()

    def members(self) -> tuple[Type, ...]:
        return self.args

    def text(self, shown: Callable[[Type], str]) -> str:
        if self.args:
            args = f"[{', '.join(map(shown, self.args))}]"
        else:
            args = ""
        return shown(self.func) + args


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
        if isinstance(top, TensorType) and Any in map(type, top.shape):
            return True
        stack.extend(top.members())
    return False


def map_type(ty: Type, change: Callable[[Type], Type]) -> Type:
    """``ty`` with ``change`` applied to its members, left to right; itself when none changes."""
    old = ty.members()
    new = tuple([change(part) for part in old])
    if all(a is b for a, b in zip(old, new)):
        return ty
    if isinstance(ty, TupleType):
        return TupleType(new)
    if isinstance(ty, FuncType):
        return FuncType(new[:-1], new[-1], ty.type_params, ty.type_constraints)
    if isinstance(ty, RefType):
        return RefType(new[0])
    assert isinstance(ty, TypeCall)
    return TypeCall(ty.func, new)


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


def holds_float(ty: Type) -> bool:
    """True when a tensor inside ``ty`` (tuples included) is floating point."""
    return any(is_float(tensor.dtype) for tensor in tensor_fields(ty))
