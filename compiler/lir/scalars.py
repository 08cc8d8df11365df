"""Scalar expressions of the loop-level form: frozen nodes, typed when built, shared by reference.

Every operation is total, and means the same in every executor:

* integers wrap (two's complement); an integer over 0 is 0; the one quotient that overflows wraps;
* shift amounts count modulo the width of the dtype; ``>>`` of a signed integer floors;
* ``min`` and ``max`` of floats give NaN where either side is NaN;
* ``Cast``: int to int wraps, float to int truncates and saturates (NaN gives 0), anything to bool
  is "not zero", anything to float rounds to nearest even.

The operators (``compiler/ops``) compute the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from compiler.errors import LoweringError, legal_names
from compiler.ir.ty import integer_range

Scope = Literal["param", "out", "temp", "const"]

INDEX_DTYPE = "int32"
"""Dtype of loop variables and of the arithmetic that makes buffer indices of them."""

ARITHMETIC = ("+", "-", "*", "/", "floordiv", "floormod", "truncdiv", "min", "max")
BITWISE = ("<<", ">>", "&", "|", "^")
COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
LOGICAL = ("and", "or", "xor")
BINARY = (*ARITHMETIC, *BITWISE, *COMPARISONS, *LOGICAL)
UNARY = ("neg", "not", "abs")
TRANSCENDENTAL = (
    "exp", "log", "sqrt", "rsqrt", "tanh", "sigmoid", "erf", "pow", "sin", "cos", "tan",
    "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh",
)  # fmt: skip
ROUNDING = ("floor", "ceil", "trunc", "round_even", "round_away")
INTEGER_INTRINSICS = ("fixed_point_multiply", "ipow", "isqrt", "saturating_cast")
INTRINSICS = (*TRANSCENDENTAL, *ROUNDING, "fmod", *INTEGER_INTRINSICS)
_ARITY = {"pow": 2, "fmod": 2, "ipow": 2, "fixed_point_multiply": 3}


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense row-major array, equal by content; names are unique within a function.

    ``shape`` is in elements per axis, () for a scalar. int4 and uint4 values lie in int8 and uint8.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    scope: Scope

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of storage; a bool takes one."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scalar:
    """Base of scalar expressions.

    Attributes:
        dtype: bool, an integer or a float dtype of the IR.
        operations: in the expression written out as a tree: what computing it takes.
    """

    dtype: str = field(init=False)
    operations: int = field(init=False)

    def operands(self) -> tuple[Scalar, ...]:
        """Sub-expressions, in the order they are printed."""
        return ()


def _typed(node: Scalar, dtype: str) -> None:
    operands = node.operands()
    own = 1 if operands and not isinstance(node, Load) else 0
    object.__setattr__(node, "dtype", dtype)
    object.__setattr__(node, "operations", own + sum(part.operations for part in operands))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IntImm(Scalar):
    """An integer constant within the range of its dtype."""

    value: int
    of: str = INDEX_DTYPE

    def __post_init__(self) -> None:
        _typed(self, self.of)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class FloatImm(Scalar):
    """A float constant that its dtype holds exactly."""

    value: float
    of: str = "float32"

    def __post_init__(self) -> None:
        _typed(self, self.of)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class BoolImm(Scalar):
    """True or False."""

    value: bool

    def __post_init__(self) -> None:
        _typed(self, "bool")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Axis(Scalar):
    """A loop variable, running from 0 to ``extent`` - 1; unique by name within a block."""

    name: str
    extent: int

    def __post_init__(self) -> None:
        _typed(self, INDEX_DTYPE)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Acc(Scalar):
    """The finished accumulator, inside ``post``: its value, or for argmax and argmin its index."""

    of: str

    def __post_init__(self) -> None:
        _typed(self, self.of)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Load(Scalar):
    """One element of a buffer, an index expression of an integer dtype per axis."""

    buffer: Buffer
    index: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        _typed(self, self.buffer.dtype)

    def operands(self) -> tuple[Scalar, ...]:
        return self.index


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bin(Scalar):
    """``a op b`` with ``op`` of BINARY; both sides of one dtype, ``/`` on floats only.

    Raises:
        LoweringError: the operation is unknown or the dtypes do not fit it.
    """

    op: str
    a: Scalar
    b: Scalar

    def __post_init__(self) -> None:
        if self.op not in BINARY:
            raise LoweringError(f"unknown operation {self.op!r}", fix=legal_names(self.op, BINARY))
        left = self.a.dtype
        right = self.b.dtype
        floats = left.startswith("float")
        logical = left == "bool"
        legal = left == right and (
            self.op in COMPARISONS
            or (
                (logical if self.op in LOGICAL else not logical)
                and not (floats and self.op in (*BITWISE, "truncdiv"))
                and (floats or self.op != "/")
            )
        )
        if not legal:
            raise LoweringError(f"{self.op} of {left} and {right}", fix="insert a cast")
        _typed(self, "bool" if self.op in COMPARISONS else left)

    def operands(self) -> tuple[Scalar, ...]:
        return self.a, self.b


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Un(Scalar):
    """``neg`` and ``abs`` of numbers (the smallest integer wraps), ``not`` of bool or of all bits.

    Raises:
        LoweringError: the operation is unknown or does not exist for the dtype.
    """

    op: str
    a: Scalar

    def __post_init__(self) -> None:
        if self.op not in UNARY:
            raise LoweringError(f"unknown operation {self.op!r}", fix=legal_names(self.op, UNARY))
        if self.a.dtype.startswith("float") if self.op == "not" else self.a.dtype == "bool":
            raise LoweringError(f"{self.op} of {self.a.dtype}", fix="insert a cast")
        _typed(self, self.a.dtype)

    def operands(self) -> tuple[Scalar, ...]:
        return (self.a,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Cast(Scalar):
    """The value in another dtype; see the module for what each pair of kinds does."""

    to: str
    a: Scalar

    def __post_init__(self) -> None:
        _typed(self, self.to)

    def operands(self) -> tuple[Scalar, ...]:
        return (self.a,)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Select(Scalar):
    """``a`` where ``condition`` holds, else ``b``; only the chosen side is evaluated.

    So the condition may guard a load that is out of range elsewhere.

    Raises:
        LoweringError: the condition is no bool, or the sides differ in dtype.
    """

    condition: Scalar
    a: Scalar
    b: Scalar

    def __post_init__(self) -> None:
        if self.condition.dtype != "bool" or self.a.dtype != self.b.dtype:
            raise LoweringError(
                f"select of {self.condition.dtype}, {self.a.dtype} and {self.b.dtype}",
                fix="give a bool and two sides of one dtype",
            )
        _typed(self, self.a.dtype)

    def operands(self) -> tuple[Scalar, ...]:
        return self.condition, self.a, self.b


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Intrin(Scalar):
    """A named function of INTRINSICS, of the dtype of its first argument.

    * floats: TRANSCENDENTAL (``pow`` of two), ROUNDING, ``fmod`` (sign of the dividend);
    * ``fixed_point_multiply(x, multiplier, shift)`` of an integer and two int32:
      floor(x * multiplier * 2^(shift - 31) + 1/2) in 64 bits, wrapped to 32 and then to the dtype
      of x; a multiplier of exactly 2^30 is a shift in the dtype of x, half added before it;
    * ``ipow(x, y)`` of integers of one dtype: x to the power y; below 0 it truncates 1 / x^-y;
    * ``isqrt(x)``: floor(sqrt(x)) of an int64 in [0, 2^62);
    * ``saturating_cast(x)`` to ``to``: an integer or float clamped to the range of ``to``.

    Raises:
        LoweringError: the name is unknown, or the number or dtypes of arguments do not fit it.
    """

    name: str
    args: tuple[Scalar, ...]
    to: str | None = None

    def __post_init__(self) -> None:
        if self.name not in INTRINSICS:
            raise LoweringError(
                f"unknown intrinsic {self.name!r}", fix=legal_names(self.name, INTRINSICS)
            )
        dtypes = [arg.dtype for arg in self.args]
        legal = len(dtypes) == _ARITY.get(self.name, 1) and (
            (self.to is not None) == (self.name == "saturating_cast")
        )
        if legal and self.name == "fixed_point_multiply":
            legal = dtypes[1:] == ["int32", "int32"] and "int" in dtypes[0]
        elif legal and self.name == "ipow":
            legal = len(set(dtypes)) == 1 and "int" in dtypes[0]
        elif legal and self.name == "isqrt":
            legal = dtypes == ["int64"]
        elif legal and self.name != "saturating_cast":
            legal = dtypes[0].startswith("float") and len(set(dtypes)) == 1
        if not legal:
            raise LoweringError(f"{self.name} of {', '.join(dtypes) or 'nothing'}")
        _typed(self, self.to or dtypes[0])

    def operands(self) -> tuple[Scalar, ...]:
        return self.args


def literal(value: bool | int | float, dtype: str) -> Scalar:
    """A constant of any dtype; a float is rounded to it.

    Raises:
        LoweringError: the dtype does not hold the integer.
    """
    if dtype == "bool":
        return BoolImm(bool(value))
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            return FloatImm(float(np.dtype(dtype).type(value)), dtype)
    low, high = integer_range(dtype)
    if not low <= int(value) <= high:
        raise LoweringError(f"{int(value)} is no {dtype}", fix=f"keep it in [{low}, {high}]")
    return IntImm(int(value), dtype)
