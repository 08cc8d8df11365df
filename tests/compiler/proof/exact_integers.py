"""An evaluator of small partitioned modules in Python integers and fractions: the fuzzer's oracle.

It shares no code with the reference and the range rules: floats are fractions that are rounded
here, integers are Python's and never wrap; numpy holds them as objects. ``Escape`` says which
number left its dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from math import ceil, floor, inf, isinf, isnan, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Let, Tuple, TupleGetItem
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, bits, is_float

Array = NDArray[Any]
MOST_ELEMENTS = 10_000
"""Of one result; what is larger takes too long here."""
Real = Any
"""A Fraction, or one of the floats inf, -inf and nan."""
_MANTISSA = {"float16": (11, 15), "float32": (24, 127), "float64": (53, 1023)}


class Escape(Exception):
    """An exact number lies outside the dtype that has to hold it."""


class Unsupported(Exception):
    """Something that is not computed here."""


class Tensor:
    """Exact numbers, numpy holding Python objects; ``computed``: dequantize_outputs made it."""

    def __init__(self, numbers: Any, dtype: str, computed: bool = False) -> None:
        self.array, self.dtype, self.computed = np.array(numbers, object), dtype, computed


def ends(dtype: str) -> tuple[int, int]:
    """Smallest and largest integer of a dtype."""
    if dtype == "bool":
        return 0, 1
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
    """Its elements as integers or fractions."""
    data, dtype = node.data, node.tensor_type.dtype
    numbers = np.array(data.tolist(), object).reshape(data.shape)  # lists of nothing have no shape
    if is_float(dtype):
        numbers = _each(lambda v: v if isinf(v) or isnan(v) else Fraction(v), numbers)
    return Tensor(numbers, dtype)


def operator(node: Call, args: Sequence[Tensor]) -> Tensor:
    """One operator, element by element, window by window, or as a product.

    Raises:
        Unsupported: an operator, or an attribute of one, that is not computed here.
    """
    name, attrs = node.op.name, node.attrs  # type: ignore[union-attr]
    if not isinstance(node.checked_type, TensorType):
        raise Unsupported(f"{name} has more than one result")
    if node.checked_type.num_elements > MOST_ELEMENTS:
        raise Unsupported(f"{name} has {node.checked_type.num_elements} elements")
    dtype = node.tensor_type.dtype
    if name == "concatenate":
        (fields,) = args
        return Tensor(np.concatenate([f.array for f in fields], axis=attrs.axis), dtype)
    if any(isinstance(arg, list) for arg in args):
        raise Unsupported(f"{name} reads a tuple")
    arrays = [arg.array for arg in args]
    if name == "lookup":
        return Tensor(
            _each(lambda i: _entry(arrays[1], i - ends(args[0].dtype)[0]), arrays[0]), dtype
        )
    if name in _ON_TENSORS:
        return Tensor(_ON_TENSORS[name](attrs, arrays, dtype), dtype)
    compute = _elementwise(name, attrs, args[0].dtype, dtype)
    return Tensor(_each(compute, *arrays), dtype)


def _each(compute: Callable[..., Any], *arrays: Array) -> Array:
    """Element by element, shapes broadcast."""
    with np.errstate(invalid="ignore"):  # comparing NaN
        return np.asarray(np.frompyfunc(compute, len(arrays), 1)(*arrays), object)


def _dense(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    data, weight = args
    out = np.empty((*data.shape[:-1], len(weight)), object)
    for at in np.ndindex(*data.shape[:-1]):
        out[at] = [_dot(data[at], w, dtype) for w in weight]
    return out


def _convolution(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    data, weight = args
    if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", ""):
        raise Unsupported("a layout other than NCHW")
    per_group = len(weight) // attrs.groups
    windows = list(_windows(data, weight.shape[2:], attrs, 0))
    out = np.empty((len(data), len(weight), *_sizes(data, weight.shape[2:], attrs)), object)
    for (n, y, x), window in windows:
        for o, kernel in enumerate(weight):
            first = o // per_group * len(kernel)
            read = window[first : first + len(kernel)]
            out[n, o, y, x] = _dot(read.reshape(-1), kernel.reshape(-1), dtype)
    return out


def _max_pool(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    if attrs.layout != "NCHW" or attrs.ceil_mode:
        raise Unsupported("a layout other than NCHW, or ceil_mode")
    (data,) = args
    out = np.empty((*data.shape[:2], *_sizes(data, attrs.pool_size, attrs)), object)
    for (n, y, x), window in _windows(data, attrs.pool_size, attrs, ends(dtype)[0]):
        out[n, :, y, x] = [max(channel.reshape(-1)) for channel in window]
    return out


def _sizes(data: Array, kernel: Sequence[int], attrs: Any) -> list[int]:
    top, left, bottom, right = attrs.padding
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, attrs.dilation)]
    padded = (data.shape[2] + top + bottom, data.shape[3] + left + right)
    return [(size - r) // s + 1 for size, r, s in zip(padded, reach, attrs.strides)]


def _windows(
    data: Array, kernel: Sequence[int], attrs: Any, fill: int
) -> Iterator[tuple[tuple[int, int, int], Array]]:
    """((sample, row, column) of the result, the window (C, *kernel) it reads)."""
    top, left, bottom, right = attrs.padding
    size = (*data.shape[:2], data.shape[2] + top + bottom, data.shape[3] + left + right)
    padded = np.full(size, fill, object)
    padded[:, :, top : top + data.shape[2], left : left + data.shape[3]] = data
    height, width = _sizes(data, kernel, attrs)
    for n in range(len(data)):
        for y in range(height):
            for x in range(width):
                rows = [y * attrs.strides[0] + k * attrs.dilation[0] for k in range(kernel[0])]
                columns = [x * attrs.strides[1] + k * attrs.dilation[1] for k in range(kernel[1])]
                yield (n, y, x), padded[n][:, rows][:, :, columns]


def _mean(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    """The mean of each channel, truncated; partial sums are taken in int64."""
    (data,) = args
    if attrs.layout != "NCHW":
        raise Unsupported("a layout other than NCHW")
    out = np.empty((*data.shape[:2], 1, 1), object)
    for at in np.ndindex(*data.shape[:2]):
        total = _sum([int(v) for v in data[at].reshape(-1)], "int64")
        quotient = abs(total) // max(1, data[at].size)
        out[(*at, 0, 0)] = quotient if total >= 0 else -quotient
    return out


def _flat(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    return args[0].reshape(len(args[0]), -1)


def _scaled_per_axis(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    data, multipliers, shifts = args
    shape = [1] * data.ndim
    shape[attrs.axis] = -1
    factors = (multipliers.reshape(shape), shifts.reshape(shape))
    return _each(lambda x, m, e: _scaled(x, m, e, dtype), data, *factors)


def _entry(table: Array, place: int) -> Any:
    """An entry of a table; indices outside mean its ends."""
    return table[min(max(place, 0), len(table) - 1)]


def _take(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    data, indices = args
    if attrs.mode != "clip" or attrs.batch_dims or data.ndim != 1:
        raise Unsupported("take from more than a list")
    return _each(lambda i: _entry(data, i), indices)


def _row(array: Array, axis: int) -> Array:
    """The rows along an axis, each as a list of Python's numbers."""
    moved = np.moveaxis(array, axis, -1)
    rows = np.empty(moved.shape[:-1], object)
    for at in np.ndindex(*rows.shape):
        rows[at] = list(moved[at])
    return rows


def _along(attrs: Any, data: Array, compute: Callable[[list[int]], int]) -> Array:
    """One axis, reduced by a function of its elements."""
    if not isinstance(attrs.axis, tuple) or len(attrs.axis) != 1 or attrs.exclude:
        raise Unsupported("a reduction of other than one axis")
    (axis,) = attrs.axis
    reduced = _each(compute, _row(data, axis))
    return np.expand_dims(reduced, axis) if attrs.keepdims else reduced


def _reduction(compute: Callable[[list[int]], int]) -> Callable[[Any, Sequence[Array], str], Array]:
    return lambda attrs, args, dtype: _along(attrs, args[0], compute)


def _first(choose: Callable[..., int], attrs: Any, data: Array) -> Array:
    """Where the largest or smallest element stands for the first time, or for the last."""

    def place(row: list[int]) -> int:
        wanted = choose(row)
        places = [n for n, value in enumerate(row) if value == wanted]
        return places[-1] if attrs.select_last_index else places[0]

    return _along(attrs, data, place)


def _summed(attrs: Any, args: Sequence[Array], dtype: str) -> Array:
    return _along(attrs, args[0], lambda row: _sum(row, dtype))


_ON_TENSORS: dict[str, Callable[[Any, Sequence[Array], str], Array]] = {
    "nn.dense": _dense,
    "nn.conv2d": _convolution,
    "nn.max_pool2d": _max_pool,
    "nn.global_avg_pool2d": _mean,
    "nn.batch_flatten": _flat,
    "take": _take,
    "max": _reduction(max),
    "min": _reduction(min),
    "argmax": lambda attrs, args, dtype: _first(max, attrs, args[0]),
    "argmin": lambda attrs, args, dtype: _first(min, attrs, args[0]),
    "sum": _summed,
    "transpose": lambda attrs, args, dtype: np.transpose(args[0], attrs.axes),
    "fixed_point_multiply_per_axis": _scaled_per_axis,
}


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
    if name == "cast":
        return lambda a: _cast(a, source, dtype)
    if name not in _PLAIN:
        raise Unsupported(name)
    return _PLAIN[name]


_PLAIN: dict[str, Callable[..., Any]] = {
    "round": _half_away,
    "maximum": max,
    "minimum": min,
    "annotation.stop_fusion": lambda a: a,
    "copy": lambda a: a,
    "nn.relu": lambda a: max(a, 0),
    "greater_equal": lambda a, b: a >= b,
    "less": lambda a, b: a < b,
    "where": lambda condition, a, b: a if condition else b,
}


def _clip(attrs: Any, dtype: str) -> Callable[[Any], Any]:
    bounds = (attrs.a_min, attrs.a_max)
    if is_float(dtype) and any(map(isnan, bounds)):
        return lambda a: nan
    low, high = (v if isinf(v) else Fraction(0 if isnan(v) else v) for v in bounds)
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
    terms = [held(a, dtype, "operand") * held(b, dtype, "weight") for a, b in zip(row, weight)]
    return _sum(terms, dtype)


def _sum(terms: Sequence[int], dtype: str) -> int:
    """The sum; partial sums in any order reach those of the terms of one sign."""
    held(sum(t for t in terms if t > 0), dtype, "partial sum")
    held(sum(t for t in terms if t < 0), dtype, "partial sum")
    return held(sum(terms), dtype, "sum")
