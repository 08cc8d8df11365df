"""Elementwise operators that differ by one numpy function: exp, sqrt, round, negative, …

``round`` goes half away from zero (Relay); ``round_even`` half to even (ONNX). On integers the
roundings are identities, and negative and abs saturate (-128 gives 127).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.error_function import erf
from compiler.ops.tensor.number_rel import number_rel

Array = NDArray[Any]


def round_half_away(x: Array) -> Array:
    """sign(x) * floor(|x| + 1/2), exact for every float: 0.49999997 gives 0."""
    if x.dtype.kind != "f":
        return x
    whole = np.trunc(x)
    return np.asarray(np.where(np.abs(x - whole) >= 0.5, whole + np.sign(x), whole), x.dtype)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) in the dtype of x, without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small), x.dtype)


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


def _register(name: str, function: Callable[[Array], Any]) -> None:
    rel = number_rel(name, floats_only=name in FLOAT_ONLY, bools=name == "copy")
    op = register_op(name, arg_names=("data",), rel=rel, pattern=OpPattern.ELEMWISE)

    @FNumpyCompute.register(op)
    def compute(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
        return [function(args[0])]


for _name, _function in FLOAT_ONLY.items():
    _register(_name, _on_floats(_function))
for _name, _function in ANY_NUMBER.items():
    _register(_name, _function)
