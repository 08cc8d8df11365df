"""Elementwise operators that differ by one numpy function: exp, sqrt, round, negative, …

``round`` goes half away from zero (Relay); ``round_even`` half to even (ONNX). On integers the
roundings are identities, and negative and abs saturate (-128 gives 127).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy  # loads its parts when they are first used

from compiler.core.words import FBody, Words, operand
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import integer_range
from compiler.lir.routines import intrinsics
from compiler.lir.scalars import Bin, Intrin, Scalar, Select, Un
from compiler.ops.number_format import Array
from compiler.ops.rules.annotate import FQAnnotateRewrite, accumulating, kind_of, with_args
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.lower import FLower, elementwise, like_first
from compiler.ops.rules.never_negative import FNeverNegative, always_positive
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.realize import FQRealizeRewrite, QRealizeIntExpr, of_integers
from compiler.ops.rules.zero_point import FQZeroPoint, centred
from compiler.ops.tensor.number_rel import number_rel
from compiler.qtypes.context import QuantizeContext


def round_half_away(x: Array) -> Array:
    """sign(x) * floor(|x| + 1/2), exact for every float: 0.49999997 gives 0."""
    if x.dtype.kind != "f":
        return x
    # The largest float below one half: its sum with x reaches the next whole number from a half on.
    below = np.nextafter(x.dtype.type(0.5), x.dtype.type(0))
    return np.asarray(np.trunc(np.copysign(below, x) + x), x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) in the dtype of x, without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small), x.dtype)


def erf(x: Array) -> Array:
    """2/sqrt(pi) times the integral of exp(-t*t) from 0 to x, to double precision."""
    return np.asarray(scipy.special.erf(x.astype(np.float64)), x.dtype)


def _on_floats(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """Float16 computes in float32 and rounds once."""

    def compute(x: Array) -> Any:
        if x.dtype == np.float16:
            return np.asarray(function(x.astype(np.float32)), np.float16)
        return function(x)

    return compute


def _identity_on_integers(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    return lambda x: function(x) if x.dtype.kind == "f" else x


def _saturating(function: Callable[[Array], Any]) -> Callable[[Array], Any]:
    """The one signed value without a counterpart goes to the largest."""

    def compute(x: Array) -> Any:
        if x.dtype.kind != "i":
            return function(x)
        info = np.iinfo(x.dtype)
        return np.where(x == info.min, x.dtype.type(info.max), function(x))

    return compute


def _rsqrt(x: Array) -> Any:
    return 1 / np.sqrt(x)


FLOAT_ONLY: dict[str, Callable[[Array], Any]] = {
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": _rsqrt,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "atan": np.arctan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "tanh": np.tanh,
    "erf": erf,
    "sigmoid": sigmoid,
}
ANY_NUMBER: dict[str, Callable[[Array], Any]] = {
    "floor": _identity_on_integers(np.floor),
    "ceil": _identity_on_integers(np.ceil),
    "trunc": _identity_on_integers(np.trunc),
    "round": round_half_away,
    "round_even": _identity_on_integers(np.rint),
    "sign": np.sign,
    "negative": _saturating(np.negative),
    "abs": _saturating(np.abs),
    "copy": np.copy,
}


_ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "round_away"}
_ROUNDINGS["round_even"] = "round_even"


def unary_scalar(name: str, x: Scalar) -> Scalar:
    """The operator ``name`` of FLOAT_ONLY or ANY_NUMBER on one element."""
    floats = x.dtype.startswith("float")
    if name in FLOAT_ONLY:
        return Intrin(name, (x,))
    if name in _ROUNDINGS:
        if floats:
            return Intrin(_ROUNDINGS[name], (x,))
        return x
    if name in ("negative", "abs"):
        if x.dtype.startswith("uint"):
            if name == "abs":
                return x
            return Un("neg", x)
        if not floats:
            # The one value without a counterpart goes to the largest.
            x = Bin("max", x, like_first(integer_range(x.dtype)[0] + 1, x))
        return Un("neg" if name == "negative" else "abs", x)
    if name == "sign":
        zero = like_first(0, x)
        one = like_first(1, x)
        positive = Bin(">", x, zero)
        if x.dtype.startswith("uint"):
            return Select(positive, one, zero)
        # Neither above nor below: a zero, or a NaN.
        below = Select(Bin("<", x, zero), like_first(-1, x), x)
        return Select(positive, one, below)
    return x


def _register(name: str, function: Callable[[Array], Any]) -> None:
    rel = number_rel(name, floats_only=name in FLOAT_ONLY, bools=name == "copy")
    op = register_op(name, rel=rel, pattern=OpPattern.ELEMWISE)
    FNumpyCompute.register(op)(of_arrays(function))
    reads = 3 if name == "sign" else 1
    FLower.register(op)(elementwise(lambda attrs, x: unary_scalar(name, x), reads))


for _name, _function in FLOAT_ONLY.items():
    _register(_name, _on_floats(_function))
    intrinsics.register(_name)(_on_floats(_function))
for _name, _function in ANY_NUMBER.items():
    _register(_name, _function)
for _name, _rounding in _ROUNDINGS.items():
    intrinsics.register(_rounding)(ANY_NUMBER[_name])


FBody.register(
    "floor",
    "ceil",
    "trunc",
    "round",
    "round_even",
    "copy",
    "device_copy",
    "on_device",
    "annotation.cast_hint",
    "annotation.stop_fusion",
)(operand)


def _negated(x: Value, words: Words) -> Value:
    low, high = integer_range(x.type.dtype)
    held = words.maximum(x, -high) if low < 0 else x
    return words.subtract(words.constant(0, x.type.dtype), held)


@FBody.register("negative")
def negative_body(step: Step, words: Words) -> Value:
    """0 - x; of signed integers the smallest value goes to the largest."""
    return _negated(step.args[0], words)


@FBody.register("abs")
def abs_body(step: Step, words: Words) -> Value:
    """The larger of x and -x, which is never below 0."""
    (x,) = step.args
    if integer_range(x.type.dtype)[0] == 0:
        return x
    return words.maximum(words.maximum(_negated(x, words), x), 0)


@FQAnnotateRewrite.register("negative", needs_tables=True)
def negative_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """An accumulator: the smallest narrow integer has no counterpart."""
    if kind_of(args[0]) is None or ctx.check_to_skip(ref_call):
        return None
    return accumulating(ref_call, args[0])


@FQRealizeRewrite.register("negative", needs_tables=True)
@of_integers
def negative_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """-x at the same scale."""
    acc = ctx.qconfig.dtype_activation
    call = with_args(ref_call, (data.in_dtype(acc),))
    return data.like(call, dtype=acc)


FQDomScale.register("negative")(same_scale)


FQZeroPoint.register("sqrt")(centred)
FNeverNegative.register("abs", "exp", "sigmoid", "sqrt")(always_positive)
