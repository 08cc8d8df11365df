"""Random integer modules with limits inside their dtypes, in every form beside the reference.

A module has one or two inputs, which are limited at random numbers *inside* their dtypes, and a
chain of operators on them. Bounds are then narrower than dtypes, and what a form plans for bounds
(an operator left out, a narrower type, no tie) is there to be wrong. Limits are by tensor, by any
axis and by element; paddings may be larger than kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler import relay
from compiler.errors import CodegenError, CompilerError, LoweringError, OnnxExportError, PlanError
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, TupleGetItem, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, Type
from compiler.ops.op_call import op_call
from compiler.proof.derive import derive_static
from compiler.proof.replay import REPLAY_FLAGS, differing_elements
from compiler.targets.c.executor import CExecutor
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import Library
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.random_graphs import result_type

Array = NDArray[Any]
Shape = tuple[int, ...]
op = relay.op
DTYPES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64")
SHAPES: tuple[Shape, ...] = (
    (1, 3, 5, 5), (2, 4, 3, 6), (1, 16, 4, 4), (1, 33, 2, 3), (1, 1, 6, 6), (2, 2, 2, 2),
    (3, 1, 4, 1), (1, 5), (3, 7), (4, 4), (1, 17), (2, 3, 8), (3, 3, 3), (1, 6, 1), (4,), (70,),
)  # fmt: skip
CORE = "quantized_main"
MOST_ELEMENTS = 1500
POWER_OF_TWO = 1 << 30


@dataclass
class Growing:
    """A core as it grows.

    Attributes:
        values: those of the core, newest last, and their types.
        numbers: that stand in limits, which inputs take as well.
    """

    rng: np.random.Generator
    values: list[tuple[Expr, TensorType]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=lambda: [0])

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def some(self, *dtypes: str, rank: int = 0) -> tuple[Expr, TensorType]:
        """A value, the newest as likely as all others; cast where none has one of the dtypes."""
        fit = [v for v in self.values if not rank or len(v[1].shape) == rank] or self.values
        expr, ty = fit[-1] if self.chance(0.6) else self.pick(*fit)
        if dtypes and ty.dtype not in dtypes:
            dtype = self.pick(*dtypes)
            expr, ty = op.cast(expr, dtype=dtype), TensorType(ty.shape, dtype)
        return expr, ty

    def number(self, dtype: str) -> int:
        """Inside a dtype: beside powers of two, small, anywhere, seldom at an end."""
        low, high = ends(dtype)
        kind = self.rng.random()
        if kind < 0.1:
            found = self.pick(low, high, low + 1, high - 1)
        elif kind < 0.6:
            bits = int(self.rng.integers(0, int(high).bit_length()))
            bits = self.pick(bits, *(n for n in (7, 8, 15, 16, 31, 32) if 1 << n <= high))
            found = (1 << bits) + self.pick(-1, 0, 0, 1)
            found *= -1 if low and self.chance(0.5) else 1
        elif kind < 0.75:
            found = self.pick(*self.numbers)
        else:
            found = int(self.rng.integers(low // 2, high // 2 + 1))
        self.numbers.append(min(max(found, low), high))
        return self.numbers[-1]

    def constant(self, dtype: str, shape: Sequence[int], make: Callable[[], int]) -> Expr:
        """Numbers of a shape, often few different ones."""
        low, high = ends(dtype)
        some = [min(max(make(), low), high) for _ in range(self.pick(1, 3, 99))]
        flat = [self.pick(*some) for _ in range(int(np.prod(shape, dtype=int)))]
        return relay.const(np.array(flat, dtype).reshape(shape))

    def spread(self, shape: Shape) -> Shape:
        """A shape that broadcasts to another: a number, along one axis, of some axes, the same."""
        axis = int(self.rng.integers(len(shape))) if shape else 0
        along = tuple(n if a == axis else 1 for a, n in enumerate(shape))
        some = tuple(n if self.chance(0.5) else 1 for n in shape)
        found: Shape = self.pick((), along, along, some, shape)
        while found and found[0] == 1 and self.chance(0.5):
            found = found[1:]
        return found

    def ints(self, low: int, high: int, count: int) -> tuple[int, ...]:
        """From ``low`` to ``high``, both inclusive."""
        return tuple(self.rng.integers(low, high + 1, count).tolist())

    def add(self, make: Callable[[], Expr]) -> bool:
        """One more value, or the fields of a tuple, if it has a type and is small."""
        try:
            expr = make()
            assert isinstance(expr, Call)
            ty = self._type(expr)
        except (CompilerError, ValueError, TypeError):
            return False
        fields = ty.fields if isinstance(ty, TupleType) else (ty,)
        if not all(_is_small(f) for f in fields):
            return False
        for index, one in enumerate(fields):
            assert isinstance(one, TensorType)
            value: Expr = TupleGetItem(expr, index) if isinstance(ty, TupleType) else expr
            self.values.append((value, one))
        return True

    def _type(self, expr: Expr) -> Type | None:
        held = next((ty for value, ty in self.values if value is expr), None)
        if held is not None:
            return held
        if isinstance(expr, Constant):
            return TensorType(expr.data.shape, str(expr.data.dtype))
        if isinstance(expr, Tuple):
            return TupleType(tuple(self._type(f) for f in expr.fields))  # type: ignore[misc]
        assert isinstance(expr, Call)
        types = [self._type(arg) for arg in expr.args]
        return result_type(expr.op, expr.attrs, types)  # type: ignore[arg-type]


def ends(dtype: str) -> tuple[int, int]:
    """Smallest and largest number of an integer dtype."""
    if dtype == "bool":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _is_small(ty: Type | None) -> bool:
    whole = isinstance(ty, TensorType) and not ty.dtype.startswith("float")
    return whole and all(ty.concrete_shape) and ty.num_elements <= MOST_ELEMENTS  # type: ignore[union-attr]


def limited(g: Growing) -> None:
    """A clip at two numbers, or the larger or smaller of numbers of any shape; a relu."""
    x, ty = g.some()
    if ty.dtype == "bool":
        return
    kind = g.rng.random()
    if kind < 0.5:
        low, high = sorted((g.number(ty.dtype), g.number(ty.dtype)))
        if g.chance(0.05):
            low, high = high, low
        g.add(lambda: op.clip(x, a_min=float(low), a_max=float(high)))
    elif kind < 0.9:
        name = g.pick("maximum", "minimum")
        bound = g.constant(ty.dtype, g.spread(ty.concrete_shape), lambda: g.number(ty.dtype))
        g.add(lambda: getattr(op, name)(x, bound))
    else:
        g.add(lambda: op.nn.relu(x))


def narrowed(g: Growing) -> None:
    """A clip within a dtype, and a cast to it."""
    x, ty = g.some()
    dtype = g.pick(*DTYPES, "bool")
    if ty.dtype not in (dtype, "bool") and g.chance(0.8):
        own, other = ends(ty.dtype), ends(dtype)
        low, high = max(own[0], other[0]), min(own[1], other[1])
        if g.chance(0.5) and dtype != "bool":
            low, high = sorted(min(max(g.number(dtype), low), high) for _ in range(2))
        x = op.clip(x, a_min=float(low), a_max=float(high))
    g.add(lambda: op.cast(x, dtype=dtype))


def combined(g: Growing) -> None:
    """Two values, or a value and numbers, by any operator of two operands."""
    x, ty = g.some()
    names = ["add", "subtract", "multiply", "maximum", "minimum", "less", "equal", "greater"]
    names += ["bitwise_and", "bitwise_or", "bitwise_xor", "floor_divide", "divide"]
    names += ["less_equal", "greater_equal", "not_equal", "add", "subtract", "multiply"]
    if ty.dtype == "bool":
        names = ["logical_and", "logical_or", "logical_xor", "equal", "bitwise_and", "maximum"]
    name = g.pick(*names)
    fit = [v for v, t in g.values if t.dtype == ty.dtype]
    if g.chance(0.4) or not fit:
        small = name in ("multiply", "floor_divide", "divide")
        dtype = "int8" if small and ty.dtype != "bool" and ty.dtype[0] != "u" else ty.dtype
        other = g.constant(ty.dtype, g.spread(ty.concrete_shape), lambda: g.number(dtype) or 1)
    else:
        other = g.pick(*fit)
    x, other = (other, x) if g.chance(0.3) else (x, other)
    g.add(lambda: getattr(op, name)(x, other))


def of_one(g: Growing) -> None:
    """Operators of one operand."""
    x, ty = g.some()
    name = g.pick("negative", "abs", "negative", "abs", "copy", "round", "round_even", "floor")
    if ty.dtype == "bool":
        name = "logical_not"
    elif g.chance(0.1):
        name = "bitwise_not"
    g.add(lambda: getattr(op, name)(x))


def chosen(g: Growing) -> None:
    """A choice by a condition."""
    x, ty = g.some()
    fit = [v for v, t in g.values if t.dtype == ty.dtype]
    other = g.pick(*fit)
    if g.chance(0.5):
        other = g.constant(ty.dtype, g.spread(ty.concrete_shape), lambda: g.number(ty.dtype))
    condition, of = g.some()
    if of.dtype in ("int8", "int16", "int32") and g.chance(0.2):
        top = int(g.rng.integers(-3, 9))
        near = op.clip(condition, a_min=float(top - 1), a_max=float(top))
        condition = op.subtract(g.constant(of.dtype, (), lambda: top), near)
    elif of.dtype != "bool" and g.chance(0.5):
        condition = op.less(condition, g.constant(of.dtype, (), lambda: g.number(of.dtype)))
    g.add(lambda: op.where(condition, *((x, other) if g.chance(0.5) else (other, x))))


def shifted(g: Growing) -> None:
    """Shifts by numbers of any shape, or by a computed one."""
    x, ty = g.some(*DTYPES)
    most = np.iinfo(ty.dtype).bits - 1
    name = g.pick("right_shift", "right_shift", "left_shift")
    bits = g.constant(
        ty.dtype, g.spread(ty.concrete_shape), lambda: int(g.rng.integers(0, most + 1))
    )
    if g.chance(0.15):
        bits = op.clip(x, a_min=0.0, a_max=float(g.rng.integers(1, most + 1)))
    g.add(lambda: getattr(op, name)(x, bits))


def scaled(g: Growing) -> None:
    """Fixed-point factors, of the tensor or along an axis; powers of two are as likely."""
    x, ty = g.some(*DTYPES)
    if ty.dtype == "int32" and g.chance(0.3):
        axis = int(g.rng.integers(len(ty.shape))) if ty.shape and g.chance(0.7) else None
        size = (1,) if axis is None else (ty.concrete_shape[axis],)
        factors = g.constant("int32", size, lambda: int(g.rng.integers(1 << 30, 1 << 31)))
        exponents = g.constant("int32", size, lambda: int(g.rng.integers(-31, 2)))
        how: dict[str, Any] = {"rounding": "tflm", "compute_dtype": "int32", "out_dtype": "int32"}
        if axis is not None:
            g.add(lambda: op_call("qnn.requantize", x, factors, exponents, axis=axis, **how))
            return
        how |= {"multiplier": int(factors.data[0]), "shift": int(exponents.data[0])}
        g.add(lambda: op_call("qnn.requantize", x, **how))
        return
    least = g.pick(-36, -20, -10, -6)

    def multiplier() -> int:
        made = g.pick(
            POWER_OF_TWO, POWER_OF_TWO, int(g.rng.integers(1 << 30, 1 << 31)), (1 << 31) - 1
        )
        return int(made & ~127) if g.chance(0.5) else int(made)

    def shift() -> int:
        width = np.iinfo(ty.dtype).bits
        return int(g.pick(g.rng.integers(least, g.pick(0, 1, 4)), 1 - width, 0, 2 - width))

    if g.chance(0.4) or not ty.shape:
        m, e = multiplier() * g.pick(1, 1, 1, 1, 0), shift()
        g.add(lambda: op.fixed_point_multiply(x, multiplier=m, shift=e))
        return
    axis = int(g.rng.integers(-len(ty.shape), len(ty.shape)))
    size = (ty.concrete_shape[axis],)
    many = g.constant("int32", size, lambda: multiplier() * g.pick(1, 1, 1, 1, -1, 0))
    shifts = g.constant("int32", size, shift)
    g.add(lambda: op.fixed_point_multiply_per_axis(x, many, shifts, axis=axis))


def rounded(g: Growing) -> None:
    """``(x * m + rounding) >> n``, as the quantizer spells the three roundings."""
    dtype = g.pick("int64", "int64", "int32")
    x, ty = g.some()
    x = x if ty.dtype == dtype else op.cast(x, dtype=dtype)
    shape, other = g.spread(ty.concrete_shape), g.spread(ty.concrete_shape)
    reach = (1, 31) if dtype == "int64" else (1, 8)
    if g.chance(0.7):
        if g.chance(0.2):
            x = op.left_shift(x, g.constant(dtype, (), lambda: int(g.rng.integers(0, 5))))
        x = op.multiply(
            x,
            g.constant(
                dtype, other, lambda: int(g.rng.integers(1, 1 << int(g.rng.integers(*reach))))
            ),
        )
    most = g.pick(8, 31, 45) if dtype == "int64" else g.pick(4, 16)
    bits = g.constant(dtype, shape, lambda: int(g.rng.integers(0, most)))
    assert isinstance(bits, Constant)
    n = bits.data.astype(np.int64)
    half = np.left_shift(np.int64(1), n) >> 1
    below = np.maximum(half - 1, 0)

    def held(values: Array) -> Expr:
        return relay.const(values.astype(dtype))

    kind = g.pick("up", "away", "even")
    if kind == "up":
        total = op.add(x, held(half))
    elif kind == "away":
        total = op.add(
            x, op.where(op.less(x, held(np.zeros((), np.int64))), held(below), held(half))
        )
        if g.chance(0.5):
            sign = op.greater_equal(x, held(np.zeros((), np.int64)))
            total = op.add(x, op.where(sign, held(half), held(below)))
    else:
        odd = op.bitwise_and(op.right_shift(x, bits), held((n > 0).astype(np.int64)))
        total = op.add(op.add(x, held(below)), odd)
    g.add(lambda: op.right_shift(total, bits))


def convolved(g: Growing) -> None:
    """Dense, grouped, depthwise and transposed convolutions, in two layouts."""
    x, ty = g.some("int8", "uint8", "int16", rank=4)
    if len(ty.shape) != 4:
        return
    layout = g.pick("NCHW", "NCHW", "NHWC")
    channels = ty.concrete_shape[layout.index("C")]
    groups = g.pick(1, channels, 2 if channels % 2 == 0 else 1)
    each = g.pick(1, 2, 5) if groups == 1 else g.pick(1, 1, 2)
    kernel = g.ints(1, 3, 2)
    dtype = g.pick("int8", "int8", "uint8", "int16")
    spatial = {
        "strides": g.ints(1, 2, 2),
        "padding": g.ints(0, g.pick(0, 1, 4), 4),
        "dilation": g.pick((1, 1), g.ints(1, 2, 2)),
        "groups": groups,
        "data_layout": layout,
        "out_dtype": g.pick("int32", "int32", "int64"),
    }
    turned = g.chance(0.25)
    shape = (channels, each, *kernel) if turned else (each * groups, channels // groups, *kernel)
    weight = g.constant(dtype, shape, lambda: g.number(dtype))
    name = "conv2d_transpose" if turned else "conv2d"
    if g.add(lambda: getattr(op.nn, name)(x, weight, **spatial)) and g.chance(0.7):
        requantized(g, layout.index("C"))


def requantized(g: Growing, axis: int) -> None:
    """A bias, a limit, factors of channels or of another axis, a clip and a cast; or one number."""
    x, ty = g.values[-1]
    if not ty.shape:
        return
    axis = axis % len(ty.shape) if g.chance(0.85) else int(g.rng.integers(len(ty.shape)))
    count = ty.concrete_shape[axis]
    along = (count, *(1,) * (len(ty.shape) - 1 - axis))
    if g.chance(0.2):
        name = g.pick("multiply", "floor_divide", "divide")
        number = g.pick("int8", "int16", "int32")
        factor = g.constant(ty.dtype, g.pick((), (1,), along), lambda: g.number(number) or 1)
        g.add(lambda: getattr(op, name)(x, factor))
        return
    if g.chance(0.6):
        x = op.add(x, g.constant(ty.dtype, along, lambda: g.number(g.pick("int16", "int32"))))
    if g.chance(0.3):
        name = g.pick("minimum", "maximum")
        x = getattr(op, name)(x, g.constant(ty.dtype, along, lambda: g.number("int32")))
    elif g.chance(0.3):
        x = op.nn.relu(x)
    if g.chance(0.3) and ty.dtype == "int32":
        x = op.cast(x, dtype="int64")
    many = g.constant("int32", (count,), lambda: int(g.rng.integers(1 << 23, 1 << 24)) << 7)
    shifts = g.constant("int32", (count,), lambda: int(g.rng.integers(-14, 0)))
    x = op.fixed_point_multiply_per_axis(x, many, shifts, axis=axis)
    dtype = g.pick("int8", "uint8", "int16")
    low, high = sorted((g.number(dtype), g.number(dtype)))
    g.add(lambda: op.cast(op.clip(x, a_min=float(low), a_max=float(high)), dtype=dtype))


def composed(g: Growing) -> None:
    """qnn.requantize with any of its fields, for the tensor or along an axis."""
    x, ty = g.some("int8", "uint8", "int16", "int32", "int32", "int64")
    compute = "int64" if ty.dtype == "int64" else g.pick("int32", "int64", "int64")
    dtype = g.pick("int8", "uint8", "int16", "int32")
    axis = int(g.rng.integers(len(ty.shape))) if ty.shape and g.chance(0.6) else None
    powers = g.chance(0.3)

    def multiplier() -> int:
        return POWER_OF_TWO if powers else int(g.rng.integers(1 << 30, 1 << 31))

    down = g.pick(-32, -14, -6, 0)

    def shift() -> int:
        return int(g.rng.integers(down, g.pick(1, 4)))

    fields: dict[str, Any] = {"multiplier": multiplier(), "shift": shift()}
    vectors: list[Expr] = []
    if axis is not None:
        size = (ty.concrete_shape[axis],)
        kinds = g.pick("b", "ms", "msb")
        if "m" in kinds:
            vectors = [g.constant("int32", size, make) for make in (multiplier, shift)]
        if "b" in kinds:
            vectors.append(g.constant("int32", size, lambda: g.number("int16")))
        fields["axis"] = g.pick(axis, axis - len(ty.shape))
    if len(vectors) % 2 == 0 and g.chance(0.4):
        fields["bias"] = g.number("int16")
    if g.chance(0.8):
        low, high = sorted((g.number(dtype), g.number(dtype)))
        fields |= {"low": low, "high": high}
        fields["zero_point"] = g.pick(0, 0, g.number("int8"))
    fields |= {"rounding": g.pick("up", "up", "away", "even", "floor"), "relu": g.chance(0.3)}
    fields |= {"compute_dtype": compute, "out_dtype": dtype, "stored": g.chance(0.5)}
    g.add(lambda: op_call("qnn.requantize", x, *vectors, **fields))


def multiplied(g: Growing) -> None:
    """Dense layers and matrix products, with constants and of two values."""
    x, ty = g.some("int8", "uint8", "int16")
    if not ty.shape:
        return
    out = {"out_dtype": g.pick("int32", "int32", "int64")}
    dtype = g.pick("int8", "int8", "uint8", "int16")
    if len(ty.shape) == 3 and g.chance(0.7):
        fit = [v for v, t in g.values if len(t.shape) == 3 and t.dtype == ty.dtype]
        shape = (g.pick(1, ty.shape[0]), g.pick(1, 4), ty.shape[2])
        other = (
            g.pick(*fit, x) if g.chance(0.6) else g.constant(dtype, shape, lambda: g.number(dtype))
        )
        how = {"transpose_b": g.chance(0.7), "transpose_a": g.chance(0.2), **out}
        made = g.add(lambda: op.nn.batch_matmul(x, other, **how))
    else:
        units = g.pick(1, 4, 17)
        by_column = g.chance(0.3)
        size = ty.concrete_shape[-1]
        weight = g.constant(
            dtype, (size, units) if by_column else (units, size), lambda: g.number(dtype)
        )
        if by_column:
            made = g.add(lambda: op.nn.matmul(x, weight, transpose_b=False, **out))
        else:
            made = g.add(lambda: op.nn.dense(x, weight, **out))
    if made and g.chance(0.6):
        requantized(g, -1)


def pooled(g: Growing) -> None:
    """Windows, of which some reach padding only."""
    x, ty = g.some(*DTYPES, rank=4)
    kind = g.pick("max", "avg", "avg", "global_avg", "global_max")
    if kind == "avg" and g.chance(0.3):
        x = op.multiply(
            x, g.constant(ty.dtype, (), lambda: g.number("uint8" if ty.dtype[0] == "u" else "int8"))
        )
    layout = g.pick("NCHW", "NCHW", "NHWC")
    if kind.startswith("global"):
        g.add(lambda: getattr(op.nn, f"{kind}_pool2d")(x, layout=layout))
        return
    how = {
        "pool_size": g.ints(1, 3, 2),
        "strides": g.ints(1, 3, 2),
        "padding": g.ints(0, g.pick(0, 1, 4), 4),
        "dilation": g.pick((1, 1), g.ints(1, 2, 2)),
        "ceil_mode": g.chance(0.4),
        "layout": layout,
        **({"count_include_pad": g.chance(0.5)} if kind == "avg" else {}),
    }
    g.add(lambda: getattr(op.nn, f"{kind}_pool2d")(x, **how))


def reduced(g: Growing) -> None:
    """Over any axes, the batch among them."""
    x, ty = g.some()
    if not ty.shape:
        return
    axes = [a for a in range(len(ty.shape)) if g.chance(0.4)] or [0]
    name = g.pick("sum", "mean", "sum", "mean", "max", "min", "argmax", "argmin")
    how: dict[str, Any] = {"axis": axes, "keepdims": g.chance(0.6)}
    if name.startswith("arg"):
        how |= {"axis": axes[:1], "select_last_index": g.chance(0.5)}
    if ty.dtype == "bool":
        name = g.pick("all", "any")
    elif name in ("sum", "mean") and g.chance(0.5):
        x = op.cast(x, dtype=g.pick("int32", "int64"))
    if g.chance(0.15):
        how = {"axis": g.pick(*axes, None), "exclusive": g.chance(0.5)}
        name, how["dtype"] = "cumsum", g.pick(ty.dtype, "int32", "int64")
    g.add(lambda: getattr(op, name)(x, **how))


def moved(g: Growing) -> None:
    """Other orders, places and shapes of the same elements."""
    x, ty = g.some()
    shape, rank = ty.concrete_shape, len(ty.shape)
    if not rank:
        return
    axis = int(g.rng.integers(rank))
    padding = [list(g.ints(0, 2, 2)) if g.chance(0.5) else [0, 0] for _ in shape]
    sizes = {"size": g.ints(1, 9, 2), "method": "nearest_neighbor"}
    coordinates = g.pick("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    rounding = g.pick("", "floor", "ceil", "round_prefer_ceil")
    begins, lasts = (
        [g.ints(-n - 1, n, 1)[0] for n in shape],
        [g.ints(-n - 1, n + 1, 1)[0] for n in shape],
    )
    steps = [g.pick(1, 1, 2, -1) for _ in shape]
    fill = g.constant(ty.dtype, (), lambda: g.number(ty.dtype))
    others = [v for v, t in g.values if t.dtype == ty.dtype]
    parts = Tuple((x, g.pick(*others), *((x,) * g.pick(0, 1))))
    indices = relay.const(np.array(g.ints(-2, shape[axis] + 1, g.pick(1, 4)), "int32"))
    makers: tuple[Callable[[], Expr], ...] = (
        lambda: op.transpose(x, axes=g.rng.permutation(rank).tolist()),
        lambda: op.reshape(x, newshape=[*g.pick([-1], [1, -1], [-1, shape[-1]], [shape[0], -1])]),
        lambda: op.expand_dims(x, axis=axis),
        lambda: op.squeeze(x),
        lambda: op.nn.pad(x, fill, pad_width=padding),
        lambda: op.nn.pad(x, fill, pad_width=[[0, 0], [0, 0], [1, 2], [2, 0]]),
        lambda: op.nn.pad(x, fill, pad_width=padding, pad_mode=g.pick("reflect", "edge")),
        lambda: op.strided_slice(x, begin=begins, end=lasts, strides=steps),
        lambda: op.reverse(x, axis=axis),
        lambda: op.tile(x, reps=[g.pick(1, 2) for _ in shape]),
        lambda: op.repeat(x, repeats=2, axis=axis),
        lambda: op.concatenate(parts, axis=axis),
        lambda: op.stack(parts, axis=axis),
        lambda: op.split(x, indices_or_sections=shape[axis], axis=axis),
        lambda: op.take(x, indices, axis=axis, mode=g.pick("clip", "wrap")),
        lambda: op.broadcast_to(x, shape=(2, *shape)),
        lambda: op.gather(x, relay.const(g.rng.integers(0, shape[axis], shape)), axis=axis),
        lambda: op.gather_nd(x, relay.const(np.array([[0, 0], [shape[0] - 1, 0]], "int32").T)),
        lambda: op.nn.depth_to_space(x, block_size=2),
        lambda: op.nn.space_to_depth(x, block_size=2),
        lambda: op.nn.upsampling(
            x, scale_h=g.pick(1.5, 2, 3), scale_w=2, align_corners=g.chance(0.3)
        ),
        lambda: op.image.resize2d(
            x, coordinate_transformation_mode=coordinates, rounding_method=rounding, **sizes
        ),
        lambda: op.layout_transform(x, src_layout="NCHW", dst_layout="NHWC"),
        lambda: op.nn.batch_flatten(x),
        lambda: op.reshape_like(x, g.pick(*others)),
    )
    g.add(g.pick(*makers))


def looked_up(g: Growing) -> None:
    """Tables and computed places; sums and limits in front, which a table may take up."""
    x, ty = g.some("int8", "uint8", "int16", "uint16")
    if g.chance(0.5):
        low, high = sorted((g.number(ty.dtype), g.number(ty.dtype)))
        x = op.clip(
            op.add(x, g.constant(ty.dtype, (), lambda: g.number("uint8"))), a_min=low, a_max=high
        )
    dtype = g.pick("int8", "uint8", "int16", "int32", "int64")
    if g.chance(0.6):
        table = g.constant(dtype, (g.pick(1, 5, 200, 256, 1000),), lambda: g.number(dtype))
        g.add(lambda: op.lookup(x, table))
        return
    rows, of = g.some()
    axis = int(g.rng.integers(max(len(of.shape), 1)))
    g.add(lambda: op.take(rows, x, axis=g.pick(axis, None), mode=g.pick("clip", "wrap")))


def normalized(g: Growing) -> None:
    """Softmax and standardization of integers."""
    x, ty = g.some("int8", "int16")
    if not ty.shape:
        return
    axis = int(g.rng.integers(-len(ty.shape), len(ty.shape)))
    if g.chance(0.5):
        table = g.constant("int32", (g.pick(1, 9, 256),), lambda: abs(g.number("int16")))
        if ty.dtype == "int8" and g.chance(0.3):
            g.add(lambda: op.nn.fixed_point_softmax(x, table, axis=axis))
            return
        g.add(lambda: op.nn.integer_softmax(x, table, axis=axis, out_bits=g.pick(7, 15)))
        return
    how = {
        "epsilon": int(g.rng.integers(0, 99)),
        "root_bits": g.pick(0, 4),
        "out_bits": g.pick(5, 12),
    }
    g.add(lambda: op.nn.integer_standardize(x, axis=axis, centred=g.chance(0.7), **how))


def biased(g: Growing) -> None:
    """An addition along any axis."""
    x, ty = g.some(*DTYPES)
    if not ty.shape:
        return
    axis = int(g.rng.integers(-len(ty.shape), len(ty.shape)))
    bias = g.constant(ty.dtype, (ty.concrete_shape[axis],), lambda: g.number(ty.dtype))
    g.add(lambda: op.nn.bias_add(x, bias, axis=axis))


OPERATORS = (
    limited, narrowed, combined, of_one, chosen, shifted, scaled, rounded, convolved, multiplied,
    pooled, reduced, moved, looked_up, normalized, biased, moved, pooled, moved, reduced, convolved,
    moved, combined, composed,
)  # fmt: skip
GROW = (*OPERATORS, limited, limited, narrowed, combined, scaled, rounded, convolved, moved)


def core_of(rng: np.random.Generator, first: Callable[[Growing], None] | None = None) -> Growing:
    """A random core.

    Args:
        first: what grows behind the limits of the inputs; None for anything.
    """
    g = Growing(rng)
    for number in range(g.pick(1, 1, 2)):
        ty = TensorType(g.pick(*SHAPES), g.pick(*DTYPES))
        g.values.append((Var(f"q{number}", ty), ty))
    for value in list(g.values):
        g.values.append(value)
        limited(g)
    before = len(g.values)
    for _ in range(4):
        if first is not None and len(g.values) == before:
            first(g)
    for _ in range(g.pick(0, 1, 2, 4)):
        g.pick(*GROW)(g)
        if g.chance(0.3):
            limited(g)
    return g


def module_of(g: Growing) -> IRModule:
    """The core, with conversions around it that change nothing.

    Raises:
        CompilerError: it has no type.
    """
    given = [value for value in dict.fromkeys(v for v, _ in g.values) if isinstance(value, Var)]
    types = [ty for value in given for v, ty in g.values if v is value][: len(given)]
    results = [g.values[-1], *([g.pick(*g.values)] if g.chance(0.3) else [])]
    results = [r for r in results if not isinstance(r[0], Var)] or g.values[-1:]
    results = list({id(value): (value, ty) for value, ty in results}.values())
    types = [next(ty for v, ty in g.values if v is value) for value in given]

    def fresh(name: str, of: Sequence[TensorType]) -> tuple[Var, ...]:
        return tuple(Var(f"{name}{n}", ty) for n, ty in enumerate(of))

    names = {name: GlobalVar(name) for name in ("quantize_inputs", CORE, "dequantize_outputs")}
    inputs, held, made = fresh("x", types), fresh("x", types), fresh("r", [t for _, t in results])
    quantized = Call(names["quantize_inputs"], inputs)
    parts = tuple(TupleGetItem(quantized, n) for n in range(len(given)))
    found = Call(names[CORE], parts)
    functions = {
        names["quantize_inputs"]: Function(held, Tuple(held)),
        names[CORE]: Function(tuple(given), Tuple(tuple(v for v, _ in results))),
        names["dequantize_outputs"]: Function(
            made, Tuple(tuple(op.cast(r, dtype="float32") for r in made))
        ),
        GlobalVar("main"): Function(
            inputs,
            Call(
                names["dequantize_outputs"],
                tuple(TupleGetItem(found, n) for n in range(len(results))),
            ),
        ),
    }
    return infer_module(IRModule(functions))


def inputs_of(mod: IRModule, g: Growing, count: int) -> list[list[Array]]:
    """Inputs of the core: at the ends, beside the numbers of its limits, anywhere."""
    found = []
    for number in range(count):
        arrays = []
        for param in mod[CORE].params:
            ty = param.tensor_type
            low, high = ends(ty.dtype)
            near = np.clip([n + d for n in g.numbers for d in (-1, 0, 1)], low, high)
            places = g.rng.choice(near, ty.concrete_shape)
            anywhere = g.rng.integers(low, high, ty.concrete_shape, endpoint=True)
            share = (0.0, 1.0, 0.5)[number % 3]
            mixed = np.where(g.rng.random(ty.concrete_shape) < share, anywhere, places)
            arrays.append(mixed.astype(ty.dtype))
        found.append(arrays)
    return found


ENGINE, EXACT, IN_C = "engine", "integer ONNX", "C"
_NO_FORM: dict[str, type[CompilerError] | tuple[type[CompilerError], ...]] = {
    EXACT: OnnxExportError,
    IN_C: (LoweringError, CodegenError),
}


@dataclass
class Found:
    """What a search met.

    Attributes:
        counts: modules, proved ones, and runs and refusals of each form.
        differ, unforeseen: places of modules of which a form has other bits, or ends otherwise.
    """

    counts: Counter[str] = field(default_factory=Counter)
    differ: list[str] = field(default_factory=list)
    unforeseen: list[str] = field(default_factory=list)

    def add(self, other: Found) -> None:
        """What another search met, too."""
        self.counts.update(other.counts)
        self.differ += other.differ
        self.unforeseen += other.unforeseen

    def compare(
        self, form: str, place: str, wanted: list[list[Array]], run: Callable[[int], Any]
    ) -> None:
        """One form of one module, on all its inputs."""
        try:
            different = sum(
                differing_elements(outputs, run(n))[1] for n, outputs in enumerate(wanted)
            )
        except PlanError as error:
            self.counts[f"{form} refuses"] += 1
            if error.__cause__ is not None:  # a defect of the planner, foreseen or not
                self.unforeseen.append(f"{place}, {form}: {error.what}")
            return
        except CompilerError as error:
            self.counts[f"{form} refuses"] += 1
            if not isinstance(error, _NO_FORM.get(form, ())):
                self.unforeseen.append(f"{place}, {form}: {error.what}")
            return
        except Exception as error:  # what verify calls unforeseen
            self.unforeseen.append(f"{place}, {form}: {error!r}")
            return
        self.counts[form] += 1
        if different:
            self.differ.append(f"{place}, {form}: {different} elements")


def search(
    seed: int,
    indices: Iterable[int],
    compiled: int = 0,
    inputs: int = 6,
    kernels: Sequence[Library] = (),
    operators: Sequence[Callable[[Growing], None]] = OPERATORS,
    only_proved: bool = False,
) -> Found:
    """Run random modules of a seed in every form.

    Args:
        compiled: that many proved modules are one compilation; 0 compiles none.
        inputs: of each module.
        kernels: run these of the engine, and no other form.
        operators: what grows first, in turn.
        only_proved: leave the engine out, too, where the proof refuses a module.
    """
    found = Found()
    waiting: list[tuple[str, IRModule, list[list[Array]], list[list[Array]]]] = []
    for index in indices:
        rng = np.random.default_rng([seed, index])
        place = f"seed {seed}, index {index}"
        g = core_of(rng, operators[index % len(operators)])
        try:
            mod = module_of(g)
        except CompilerError:
            found.counts["no type"] += 1
            continue
        found.counts["modules"] += 1
        given = inputs_of(mod, g, inputs)
        reference = ReferenceExecutor(mod, CORE)
        wanted = [reference.run(each) for each in given]
        for isa in kernels:
            run = _runs(lambda m=mod, isa=isa: EngineExecutor(m, CORE, isa), given)
            found.compare(ENGINE, f"{place}, {isa.isa}", wanted, run)
        if kernels:
            continue
        try:
            holds = derive_static(mod).holds
        except Exception as error:  # the proof has no errors for a typed module
            found.unforeseen.append(f"{place}, proof: {error!r}")
            continue
        if holds or not only_proved:
            run = _runs(lambda m=mod: EngineExecutor(m, CORE), given)
            found.compare(ENGINE, place, wanted, run)
        if not holds:
            continue
        found.counts["proved"] += 1
        found.compare(EXACT, place, wanted, _runs(lambda m=mod: IntegerExecutor(m, CORE), given))
        waiting.append((place, mod, given, wanted))
        if compiled and len(waiting) >= compiled:
            _in_c(found, waiting)
            waiting = []
    if compiled and waiting:
        _in_c(found, waiting)
    return found


def _runs(make: Callable[[], Any], given: list[list[Array]]) -> Callable[[int], Any]:
    """Outputs by number of the input; the executor is made for the first."""
    made: list[Any] = []

    def run(number: int) -> Any:
        if not made:
            made.append(make())
        return made[0].run(given[number])

    return run


def _in_c(
    found: Found, waiting: list[tuple[str, IRModule, list[list[Array]], list[list[Array]]]]
) -> None:
    """The cores of many modules as one C library; what has no C is left out of it."""
    library = _library(mod[CORE] for _, mod, _, _ in waiting)
    for number, (place, mod, given, wanted) in enumerate(waiting):

        def run(n: int, number: int = number, mod: IRModule = mod, given: Any = given) -> Any:
            whole = library or CExecutor(mod, CORE, REPLAY_FLAGS)
            return (whole.callee(f"core{number}") if library else whole).run(given[n])

        found.compare(IN_C, place, wanted, run)


def _library(cores: Iterable[Function]) -> CExecutor | None:
    """A library of all cores; None where one of them has no C."""
    names, functions, inputs, results = [], {}, [], []
    for number, core in enumerate(cores):
        names.append(GlobalVar(f"core{number}"))
        functions[names[-1]] = core
        params = [Var(f"x{len(inputs) + n}", p.tensor_type) for n, p in enumerate(core.params)]
        inputs += params
        results.append(Call(names[-1], tuple(params)))
    # Fields, not the tuples, are the results of main.
    fields = [
        TupleGetItem(call, n)
        for call, core in zip(results, functions.values())
        for n in range(len(core.body.fields))
    ]
    functions[GlobalVar("main")] = Function(tuple(inputs), Tuple(tuple(fields)))
    try:
        return CExecutor(infer_module(IRModule(functions)), "main", REPLAY_FLAGS)
    except CompilerError:
        return None
