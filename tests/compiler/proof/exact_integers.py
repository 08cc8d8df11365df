"""An evaluator of small partitioned modules in Python integers and fractions: the fuzzer's oracle.

It shares no code with the reference, the range rules or numpy: floats are fractions that are
rounded here, integers never wrap. ``Escape`` says which number left its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isinf, isnan
from typing import Any

from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Let, Tuple, TupleGetItem
from compiler.ir.module import IRModule
from compiler.ir.ty import bits, is_float

Real = Any
"""A Fraction, or one of the floats inf, -inf and nan."""
_MANTISSA = {"float16": (11, 15), "float32": (24, 127), "float64": (53, 1023)}


class Escape(Exception):
    """An exact number lies outside the dtype that has to hold it."""


class Tensor:
    """(rows, columns) of exact numbers; ``computed`` says that dequantize_outputs made it."""

    def __init__(self, rows: list[list[Any]], dtype: str, computed: bool = False) -> None:
        self.rows, self.dtype, self.computed = rows, dtype, computed


def ends(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a dtype."""
    width = bits(dtype)
    return (0, 2**width - 1) if dtype[0] == "u" else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)


def held(number: int, dtype: str, what: str) -> int:
    """The number itself.

    Raises:
        Escape: the dtype does not hold it.
    """
    low, high = ends(dtype)
    if not low <= number <= high:
        raise Escape(f"{what}: {number} is no {dtype}")
    return number


def rounded(value: Real, dtype: str) -> Real:
    """To the nearest float of a dtype, ties to even."""
    if isinstance(value, float):
        return value
    digits, top = _MANTISSA[dtype]
    if value == 0:
        return Fraction(0)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, 1 - top) - digits + 1)
    whole = round(value / unit) * unit
    if abs(whole) >= Fraction(2) ** (top + 1):
        return inf if whole > 0 else -inf
    return whole


def _on_reals(function: Callable[..., Real]) -> Callable[..., Real]:
    """Infinities by Python's floats, everything finite in fractions."""

    def compute(*values: Real) -> Real:
        if any(isinstance(v, float) for v in values):
            return function(
                *(v if isinstance(v, float) else float(v > 0) - float(v < 0) for v in values)
            )
        return function(*values)

    return compute


def _half_away(value: Real) -> Real:
    if isinstance(value, float):
        return value
    return Fraction(floor(value + Fraction(1, 2)) if value >= 0 else ceil(value - Fraction(1, 2)))


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "subtract": lambda a, b: a - b,
    "multiply": lambda a, b: a * b,
}


class Evaluator:
    """Runs the functions of one module.

    Args:
        mod: typed.
        visit: called with every call of quantized_main and its result, in order.
    """

    def __init__(self, mod: IRModule, visit: Callable[[Call, Tensor], None]) -> None:
        self.mod, self.visit = mod, visit

    def run(self, name: str, args: Sequence[Any]) -> Any:
        """The result of a function, tuples as lists.

        Raises:
            Escape: an integer leaves its dtype.
        """
        function: Function = self.mod[name]
        result = self._value(function.body, dict(zip(function.params, args)), name)
        if name == "dequantize_outputs":
            for one in result if isinstance(result, list) else [result]:
                one.computed = True
        return result

    def _value(self, node: Expr, env: dict[Expr, Any], place: str) -> Any:
        if node in env:
            return env[node]
        if isinstance(node, Let):
            env[node.var] = self._value(node.value, env, place)
            return self._value(node.body, env, place)
        if isinstance(node, Constant):
            result: Any = constant(node)
        elif isinstance(node, Tuple):
            result = [self._value(field, env, place) for field in node.fields]
        elif isinstance(node, TupleGetItem):
            result = self._value(node.tuple, env, place)[node.index]
        else:
            assert isinstance(node, Call), node
            args = [self._value(arg, env, place) for arg in node.args]
            if isinstance(node.op, GlobalVar):
                result = self.run(node.op.name_hint, args)
            else:
                result = operator(node, args)
                if place == "quantized_main":
                    self.visit(node, result)
        env[node] = result
        return result


def constant(node: Constant) -> Tensor:
    """A scalar, a row or a matrix."""
    data, dtype = node.data, node.tensor_type.dtype
    rows = data.reshape((-1, data.shape[-1]) if data.ndim else (1, 1)).tolist()
    if is_float(dtype):
        rows = [[v if isinf(v) or isnan(v) else Fraction(v) for v in row] for row in rows]
    return Tensor(rows, dtype)


def operator(node: Call, args: Sequence[Tensor]) -> Tensor:
    """One operator, element by element or as a product."""
    name, attrs = node.op.name, node.attrs  # type: ignore[union-attr]
    dtype = node.tensor_type.dtype
    if name == "nn.dense":
        return Tensor([[_dot(row, w, dtype) for w in args[1].rows] for row in args[0].rows], dtype)
    if name == "fixed_point_multiply_per_axis":
        factors = list(zip(args[1].rows[0], args[2].rows[0]))
        rows = [
            [_scaled(x, m, e, dtype) for x, (m, e) in zip(row, factors)] for row in args[0].rows
        ]
        return Tensor(rows, dtype)
    compute = _elementwise(name, attrs, args[0].dtype, dtype)
    return Tensor(_broadcast(compute, [arg.rows for arg in args]), dtype)


def _broadcast(compute: Callable[..., Any], tables: list[list[list[Any]]]) -> list[list[Any]]:
    height, width = max(map(len, tables)), max(len(rows[0]) for rows in tables)
    return [
        [compute(*(t[y % len(t)][x % len(t[0])] for t in tables)) for x in range(width)]
        for y in range(height)
    ]


def _elementwise(name: str, attrs: Any, source: str, dtype: str) -> Callable[..., Any]:
    if name in _ARITHMETIC:
        if is_float(dtype):
            compute = _on_reals(_ARITHMETIC[name])
            return lambda a, b: rounded(compute(a, b), dtype)
        return lambda a, b: held(_ARITHMETIC[name](a, b), dtype, name)
    if name == "clip":
        return _clip(attrs, source)
    if name in ("left_shift", "right_shift"):
        return lambda a, n: _shift(name, a, n, dtype)
    if name == "fixed_point_multiply":
        return lambda a: _scaled(a, attrs.multiplier, attrs.shift, dtype)
    if name == "round":
        return _half_away
    if name == "maximum":
        return max
    assert name == "cast", name
    return lambda a: _cast(a, source, dtype)


def _clip(attrs: Any, dtype: str) -> Callable[[Any], Any]:
    low, high = Fraction(attrs.a_min), Fraction(attrs.a_max)
    if is_float(dtype):
        bottom, top = rounded(low, dtype), rounded(high, dtype)
        return lambda a: a if isinstance(a, float) and isnan(a) else max(min(a, top), bottom)
    first, last = ends(dtype)
    floor_, ceiling = (int(min(max(limit, first), last)) for limit in (low, high))
    return lambda a: max(min(a, ceiling), floor_)


def _shift(name: str, a: int, n: int, dtype: str) -> int:
    if not 0 <= n < bits(dtype):
        raise Escape(f"{name} by {n} bits")
    return held(a << n, dtype, name) if name == "left_shift" else a >> n


def _scaled(x: int, m: int, e: int, dtype: str) -> int:
    if m == 1 << 30:
        if e >= 1:
            return held(x << (e - 1), dtype, "shifted")
        right = 1 - e
        return 0 if right >= bits(dtype) else held(x + (1 << (right - 1)), dtype, "half") >> right
    left, right = max(e, 0), max(-e, 0)
    if right > 32:
        return 0
    product = held(held(x << left, "int64", "shifted") * m, "int64", "product")
    total = held(product + (1 << (30 + right)), "int64", "product with half")
    return held(held(total >> (31 + right), "int32", "result"), dtype, "result")


def _cast(a: Any, source: str, dtype: str) -> Any:
    if is_float(dtype):
        return rounded(a if isinstance(a, float) else Fraction(a), dtype)
    if not is_float(source):
        return held(a, dtype, "cast")
    low, high = ends(dtype)
    if isinstance(a, float):
        return 0 if isnan(a) else (high if a > 0 else low)
    return max(min(int(a), high), low)


def _dot(row: Sequence[int], weight: Sequence[int], dtype: str) -> int:
    """The sum; partial sums in any order reach those of the terms of one sign."""
    terms = [held(a, dtype, "operand") * held(b, dtype, "weight") for a, b in zip(row, weight)]
    held(sum(t for t in terms if t > 0), dtype, "partial sum")
    held(sum(t for t in terms if t < 0), dtype, "partial sum")
    return held(sum(terms), dtype, "sum")
