"""qnn.requantize(data, …): integers brought from one scale to another, limited and narrowed.

    x   = relu(data + bias)                              relu where the attribute says so
    y   = round(x * multiplier * 2^(shift - 31))         halves as ``rounding`` says
    out = max(min(y + zero_point, high), low)            as out_dtype

x and y are computed in ``compute_dtype``. Behind the data stand vectors, int32, of what varies
along ``axis``: none, bias, multiplier and shift, or multiplier, shift and bias; all else are
attributes. A multiplier lies in [2^30, 2^31), or is 0; 2^30 is a power of two, and a shift.
``inlined_module`` puts the body of every requantization in its place.
Sources: Relay qnn.requantize; TOSA RESCALE; ties as QConfig.rounding has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from compiler.core.legalize import forget
from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import OpPattern, define_op
from compiler.ir.rebuild import rebuilt_function
from compiler.ir.ty import TensorType, Type, bits, integer_range
from compiler.ir.walk import mentions
from compiler.ops.arg_types import Types, check_integer_dtype, integer_tensor, normalize_axis
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.layout import FConvertLayout, Order, Relaid, axis_layout, data_layout
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.tensor.fixed_point_multiply import (
    POWER_OF_TWO,
    PRODUCTS,
    multiplied_by,
    scaled,
    shifted_down,
)

OP: Final = "qnn.requantize"
RESCALING: Final = (OP, *PRODUCTS)
"""Operators that multiply integers by multiplier * 2^(shift - 31)."""
ROUNDINGS: Final = ("up", "away", "even", "floor", "tflm")
"""Halves go upward, away from zero, or to the even neighbour; "floor" rounds all downward. "tflm"
rounds twice in int32: x * 2^max(shift, 0) * multiplier * 2^-31 with halves upward, and that times
2^min(shift, 0) with halves away from zero (TensorFlow Lite, MultiplyByQuantizedMultiplier)."""
TFLM: Final = "tflm"
_WHOLE: Final = 1 << 53
"""Largest whole number up to which float64, the dtype of the bounds of clip, holds all."""
_MOST_RIGHT: Final = 32
"""|product| <= 2^62, so from a shift by 63 on the added half decides alone."""


class RequantizeAttrs(OpAttrs):
    """Fields of the scaling of integers.

    Attributes:
        multiplier, shift, bias: for all elements, where no vector has them.
        axis: of the data, along which vectors lie.
        rounding: one of ``ROUNDINGS``.
        relu: what is below 0 counts as 0 before it is scaled.
        low, high: of the result, the zero point included; None binds nothing.
        zero_point: what stands for 0 in the result.
        compute_dtype: of everything up to the limits; a bias is added in the data's dtype, or in
            int32 where that is narrower.
        stored: the result is memory, which no fused kernel looks through.
        own_factor: the multiplier is no quotient of the two scales that its values carry, since
            it multiplies the real values as well.
    """

    multiplier: int = POWER_OF_TWO
    shift: int = 1
    bias: int = 0
    axis: int = 1
    rounding: str = "up"
    relu: bool = False
    zero_point: int = 0
    low: int | None = None
    high: int | None = None
    compute_dtype: str = "int64"
    out_dtype: str = "int8"
    stored: bool = False
    own_factor: bool = False


class Factors(NamedTuple):
    """Multiplier, shift and bias, int64, in shapes that broadcast against the data."""

    multiplier: Array
    shift: Array
    bias: Array

    @property
    def scale(self) -> Array:
        """multiplier * 2^(shift - 31), float64."""
        up = np.clip(self.shift - 31, -1000, 1000)
        return np.asarray(np.ldexp(self.multiplier.astype(np.float64), up.astype(np.int32)))


@define_op(
    OP,
    arg_names=("data", "multiplier", "shift", "bias"),
    optional=3,
    attrs_type=RequantizeAttrs,
    pattern=OpPattern.BROADCAST,
)
def requantize(types: Types, attrs: RequantizeAttrs) -> Type:
    """The shape of the data, in ``out_dtype``.

    Raises:
        TypeInferenceError: the data are no integers, an attribute is not legal, or
            vectors are not as many, or as long, as they must be. See ``limits_fit`` for limits.
    """
    data = integer_tensor(OP, types, 0, "data")
    check_integer_dtype(OP, attrs.out_dtype)
    vectors = types[1:]
    legal = attrs.rounding in ROUNDINGS and attrs.compute_dtype in ("int32", "int64")
    legal = legal and 0 <= attrs.multiplier < 1 << 31 and -63 <= attrs.shift <= 63
    legal = legal and (attrs.rounding, attrs.compute_dtype) != ("tflm", "int64")
    if not legal or not -(1 << 31) <= attrs.bias < 1 << 31:
        raise TypeInferenceError(
            f"{OP}: {attrs}",
            fix=f"rounding is one of {', '.join(ROUNDINGS)}, compute_dtype int32 or int64, the "
            "multiplier in [0, 2^31), the shift in [-63, 63], the bias an int32",
        )
    if not limits_fit(attrs):
        raise TypeInferenceError(
            f"{OP}: low={attrs.low}, high={attrs.high}, zero_point={attrs.zero_point} of "
            f"{attrs.compute_dtype} to {attrs.out_dtype}",
            fix=f"give both limits or none, low <= high; {attrs.out_dtype}, {attrs.compute_dtype} "
            f"and float64 hold them, {attrs.compute_dtype} also without the zero point",
        )
    if vectors:
        size = data.shape[normalize_axis(OP, attrs.axis, len(data.shape))]
        wanted = TensorType((size,), "int32")
        for vector in vectors:
            if vector != wanted:
                raise TypeInferenceError(f"{OP}: a vector is {vector}, {wanted} is needed")
    return TensorType(data.shape, attrs.out_dtype)


def limits_fit(attrs: RequantizeAttrs) -> bool:
    """Return whether the limits are in order and no dtype wraps what lies within them."""
    low, high = attrs.low, attrs.high
    if low is None or high is None:
        return low is high
    held = all_hold((low, high), attrs.compute_dtype, attrs.out_dtype)
    held = held and all_hold((low - attrs.zero_point, high - attrs.zero_point), attrs.compute_dtype)
    zero = attrs.zero_point
    reach = max(-low, high, zero - low, high - zero)
    return held and low <= high and reach <= _WHOLE


def all_hold(numbers: Sequence[int], *dtypes: str) -> bool:
    """Return whether each of the dtypes holds all numbers."""
    ranges = [integer_range(dtype) for dtype in dtypes]
    return all(low <= min(numbers) and max(numbers) <= high for low, high in ranges)


def factors_of(attrs: RequantizeAttrs, vectors: Arrays, rank: int) -> Factors:
    """The multiplier and shift that scale the integers, and the bias added before."""
    lying = () if not vectors else (-1, *(1,) * (rank - 1 - attrs.axis % rank))
    known = [np.asarray(each, np.int64).reshape(lying) for each in vectors]
    plain = [np.asarray(n, np.int64) for n in (attrs.multiplier, attrs.shift, attrs.bias)]
    many = len(known) > 1
    return Factors(*(known[:2] if many else plain[:2]), *(known[2 * many :] or plain[2:]))


def factors_in(step: Step) -> Factors | None:
    """``factors_of`` a call, or of a fixed-point product; None where vectors are computed."""
    if step.name in PRODUCTS:
        found = multiplied_by(step)
        if found is None:
            return None
        return Factors(*found, np.zeros((), np.int64))
    known = [value.data for value in step.args[1:] if value.data is not None]
    if len(known) + 1 < len(step.args):
        return None
    return factors_of(step.attrs, known, len(shape_of(step.args[0])))


def limits_of(attrs: RequantizeAttrs) -> tuple[int, int] | None:
    """Ends of the scaled integers, the zero point taken off; None where nothing binds them."""
    if attrs.low is None or attrs.high is None:
        return None
    return attrs.low - attrs.zero_point, attrs.high - attrs.zero_point


def shifts_only(multiplier: Array, shift: Array, rounding: str, dtype: str) -> bool:
    """True if all factors are powers of two, and shifts of a dtype in one direction."""
    if rounding in ("away", TFLM) or (multiplier != POWER_OF_TWO).any():
        return False
    return bool((shift >= 1).all() or ((shift <= 1).all() and (1 - shift < bits(dtype)).all()))


def rescaled(x: Array, multiplier: Array, shift: Array, rounding: str) -> Array:
    """x * multiplier * 2^(shift - 31), rounded, in the dtype of x."""
    if rounding == "up":
        result: Array = scaled(x, multiplier, shift)
        return result
    if rounding == "tflm":
        wide = np.left_shift(x.astype(np.int64), np.maximum(shift, 0)).astype(np.int32)
        product = np.right_shift(wide * multiplier + (1 << 30), 31).astype(np.int32)
        down = np.maximum(-shift, 0).astype(np.int32)
        return _halves(product, down, "away").astype(x.dtype)
    if shifts_only(multiplier, shift, rounding, str(x.dtype)):
        if (shift >= 1).all():
            return np.asarray(np.left_shift(x, (shift - 1).astype(x.dtype)))
        return _halves(x, (1 - shift).astype(x.dtype), rounding)
    left = np.maximum(shift, 0)
    right = np.minimum(np.maximum(-shift, 0), _MOST_RIGHT) + 31
    product = np.left_shift(x.astype(np.int64), left) * multiplier
    return np.asarray(_halves(product, right, rounding).astype(np.int32).astype(x.dtype))


def _halves(x: Array, down: Array, rounding: str) -> Array:
    """x * 2^-down in the dtype of x, but not for "up"; down 0 changes nothing."""
    some = np.asarray(down > 0, x.dtype)
    half = np.left_shift(some, np.maximum(down, 1) - 1)
    if rounding == "even":
        x = x + (half - some) + (np.right_shift(x, down) & some)
    elif rounding == "away":
        x = x + (half - some * (x < 0))
    return np.asarray(np.right_shift(x, down))


def bias_dtype(dtype: str) -> str:
    """The dtype in which a bias is added to integers of a dtype."""
    if bits(dtype) >= 32:
        return dtype
    return "int32"


@FNumpyCompute.register(requantize)
def requantize_numpy(attrs: RequantizeAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Limits of the scaled sum, in the order of the module's first lines."""
    x, (multiplier, shift, bias) = args[0], factors_of(attrs, args[1:], args[0].ndim)
    if bias.any():
        x = x.astype(bias_dtype(str(x.dtype)))
        x = x + bias.astype(x.dtype)
    x = (np.maximum(x, 0) if attrs.relu else x).astype(attrs.compute_dtype)
    y = rescaled(x, multiplier, shift, attrs.rounding)
    limits = limits_of(attrs)
    if limits is not None:
        low, high = limits
        y = np.maximum(np.minimum(y, y.dtype.type(high)), y.dtype.type(low))
    return [(y + y.dtype.type(attrs.zero_point)).astype(attrs.out_dtype)]


@FBody.register(requantize)
def requantize_body(step: Step, words: Words) -> Value | None:
    """A sum, a relu, a fixed-point product or a shift, a clip, a sum and a cast."""
    attrs = step.attrs
    factors = factors_in(step)
    if factors is None:
        return None
    x = summed(step, factors, words)
    return finished(scaled_sum(x, factors, attrs, words), attrs, words)


def summed(step: Step, factors: Factors, words: Words) -> Value:
    """The data with bias and relu."""
    x = biased(step.args[0], factors.bias, words)
    if step.attrs.relu:
        return words.word("nn.relu", [x], shape_of(x), x.type.dtype)
    return x


def biased(x: Value, bias: Array, words: Words) -> Value:
    """The sum of integers and a bias, in ``bias_dtype``."""
    if not bias.any():
        return x
    x = words.cast(x, bias_dtype(x.type.dtype))
    # A zero point is subtracted, as readers of these words expect it.
    less = not bias.ndim and bias < 0
    held = words.constant(-bias if less else bias, x.type.dtype)
    if less:
        return words.binary("subtract", x, held)
    return words.add(x, held)


def finished(x: Value, attrs: RequantizeAttrs, words: Words) -> Value:
    """Append what follows the product: a clip, the zero point, a cast, the end of a kernel."""
    limits = limits_of(attrs)
    if limits is not None:
        low, high = map(float, limits)
        x = words.word("clip", [x], shape_of(x), x.type.dtype, a_min=low, a_max=high)
    if attrs.zero_point:
        x = words.add(words.cast(x, attrs.compute_dtype), attrs.zero_point)
    x = words.cast(x, attrs.out_dtype)
    if attrs.stored:
        x = words.word("annotation.stop_fusion", [x], shape_of(x), x.type.dtype)
    return x


@FConvertLayout.register(requantize)
def requantize_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """The axis of the vectors follows that of the data."""
    return (axis_layout if len(call.args) > 1 else data_layout)(call, orders)


def scaled_sum(x: Value, factors: Factors, attrs: RequantizeAttrs, words: Words) -> Value:
    """The fixed-point product in ``compute_dtype``, of powers of two a shift; int32 where it was
    rounded away from zero or to even, and int32 holds the limits."""
    x = words.cast(x, attrs.compute_dtype)
    multiplier, shift, _ = factors
    dtype = x.type.dtype
    shape = shape_of(x)
    down = 1 - shift

    def along(values: Array, of: str = dtype) -> Value:
        return words.constant(values, of)

    if shifts_only(multiplier, shift, attrs.rounding, dtype):
        if (down <= 0).all():
            if down.any():
                return words.binary("left_shift", x, along(-down))
            return x
        return shifted_down(x, down, attrs.rounding, words)
    if attrs.rounding == "up":
        return _product(x, multiplier, shift, attrs.axis, words)
    if attrs.rounding == "tflm":
        left = np.maximum(shift, 0)
        right = np.maximum(-shift, 0)
        if left.any():
            x = words.binary("left_shift", x, along(left))
        product = _product(x, multiplier, np.zeros_like(shift), attrs.axis, words)
        if not right.any():
            return product
        below = words.binary("right_shift", product, 31)
        if not right.all():
            below = words.binary("bitwise_and", below, along(np.where(right > 0, -1, 0)))
        half = np.where(right > 0, np.left_shift(np.int64(1), np.maximum(right, 1) - 1), 0)
        moved = words.add(words.add(product, along(half)), below)
        return words.binary("right_shift", moved, along(right))
    left = np.maximum(shift, 0)
    right = np.minimum(np.maximum(-shift, 0), _MOST_RIGHT) + 31
    wide = words.cast(x, "int64")
    if left.any():
        wide = words.binary("left_shift", wide, along(left, "int64"))
    product = words.multiply(wide, along(multiplier, "int64"))
    if attrs.rounding == "away":
        half = np.left_shift(np.int64(1), right - 1)
        zero = words.constant(0, "int64")
        above = words.word("greater_equal", [product, zero], shape, "bool")
        ends = (along(end, "int64") for end in (half, half - 1))
        summed = words.add(product, words.where(above, *ends))
        result = words.binary("right_shift", summed, along(right, "int64"))
    else:
        result = shifted_down(product, right, attrs.rounding, words)
    result = words.cast(result, "int32")
    limits = limits_of(attrs)
    if limits is None or all_hold(limits, "int32"):
        return result
    return words.cast(result, dtype)


def _product(x: Value, multiplier: Array, shift: Array, axis: int, words: Words) -> Value:
    """x * multiplier * 2^(shift - 31) with halves upward, one factor or one for each channel."""
    dtype = x.type.dtype
    shape = shape_of(x)
    if not multiplier.ndim:
        one = {"multiplier": int(multiplier), "shift": int(shift)}
        return words.word("fixed_point_multiply", [x], shape, dtype, **one)
    many = [x, *(words.constant(each.reshape(-1), "int32") for each in (multiplier, shift))]
    name = "fixed_point_multiply_per_axis"
    return words.word(name, many, shape, dtype, axis=axis % len(shape))


# ---- in words, for Relay's texts -----------------------------------------------------------------


_NARROW = ("int8", "uint8", "int16", "uint16", "int32")
_HIGH = 32
_SPELLED = (OP, "image.mix")
"""Operators that only a dataflow knows by name; loops and Relay's texts have their bodies."""


def inlined_module(mod: IRModule) -> IRModule:
    """A typed module without requantizations and mixes: the calls of their bodies instead."""
    made = mod
    for var, function in mod.functions.items():
        if isinstance(function, Function) and mentions(function, _SPELLED):
            made = made.with_function(var.name_hint, inlined(function))
    if made is mod:
        return mod
    return infer_module(made)


def _high_half(step: Step, words: Words, data: Expr) -> Value | None:
    """The high half of one 64-bit sum, and all else in 32 bits; None where that is not the same

        cast((x * multiplier + (bias * multiplier + 2^(30 - shift))) >> 32, int32) >> (-1 - shift)

    Rounding and bias are one number, where sums and bias have room in int32. A relu is behind the
    product, and left out where a clip at 0 or above follows; factors are not negative then. Limits
    and zero point are numbers of int32, and so is every sum behind the product.
    """
    attrs = step.attrs
    x = step.args[0]
    factors = factors_in(step)
    if factors is None or not factors.shift.size or x.type.dtype not in _NARROW:
        return None
    multiplier, shift, bias = factors
    limits = limits_of(attrs)
    fits = attrs.rounding == "up" and attrs.compute_dtype == "int64"
    fits = fits and -31 <= shift.min() <= shift.max() <= -1
    fits = fits and not (attrs.relu and multiplier.min() < 0)
    if limits is None:
        fits = fits and not attrs.zero_point
    else:
        fits = fits and all_hold((*limits, attrs.low, attrs.high, attrs.zero_point), "int32")
    if not fits or shifts_only(multiplier, shift, attrs.rounding, attrs.compute_dtype):
        return None
    addend = np.left_shift(np.int64(1), 30 - shift)
    most = _largest(data)
    if most is not None and most + int(np.abs(bias).max(initial=0)) < 1 << 31:
        addend = addend + bias * multiplier
    else:
        x = biased(x, bias, words)
    factor = words.word(
        "cast", [words.constant(multiplier, "int32")], multiplier.shape, "int64", dtype="int64"
    )
    product = words.multiply(words.cast(x, "int64"), factor)
    high = words.binary("right_shift", words.add(product, words.constant(addend, "int64")), _HIGH)
    made = words.cast(high, "int32")
    if (shift != -1).any():
        made = words.binary("right_shift", made, words.constant(-1 - shift, "int32"))
    if attrs.relu and (limits is None or limits[0] < 0):
        made = words.word("nn.relu", [made], shape_of(made), "int32")
    return finished(made, attrs, words)


def _largest(data: Expr) -> int | None:
    """Bound of |sum of products| of integers; None where nothing is known."""
    if isinstance(data, Call):
        rule = FQProductShape.get(data.op)
    else:
        rule = None
    if rule is None or not isinstance(data, Call) or data.tensor_type.dtype != "int32":
        return None
    size = rule(data).terms
    for arg in data.args[:2]:
        dtype = arg.tensor_type.dtype
        if dtype not in _NARROW:
            return None
        low, high = integer_range(dtype)
        size *= max(-low, high)
    return size


def inlined(fn: Function, high_half: bool = False) -> Function:
    """A typed function without requantizations and mixes: their bodies, or ``high_half``, in their
    places."""
    if not mentions(fn, _SPELLED):
        return fn

    def new_form(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if is_op_call(node, *_SPELLED):
            return _spelled(node, new, high_half)
        return None

    return rebuilt_function(fn, new_form)


def _spelled(call: Call, new: Mapping[Expr, Expr], high_half: bool) -> Expr | None:
    data, *vectors = call.args
    known = [Value(v.tensor_type, data=v.data) for v in vectors if isinstance(v, Constant)]
    assert isinstance(call.op, Op)
    step = Step(call.op, call.attrs, (Value(data.tensor_type), *known), span=call.span)
    step.results = (Value(call.tensor_type, step),)
    if len(known) < len(vectors):
        return None
    words = Words(step)
    if high_half and step.name == OP:
        made = _high_half(step, words, data)
    else:
        made = None
    result = made or FBody.require(step.op)(step, words)
    assert isinstance(result, Value)
    nodes: dict[Value, Expr] = {step.args[0]: new[data]}
    for word in words.steps:
        for arg in word.args:
            if arg.data is not None:
                nodes[arg] = Constant(arg.data)
        args = tuple(nodes[arg] for arg in word.args)
        quant = call.quant if word.result is result else None
        nodes[word.result] = Call(word.op, args, word.attrs, span=call.span, quant=quant)
    forget((*words.steps, step), Step(call.op, None, ()))
    return nodes[result]
