"""The body of every requantization in its place."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.core.legalize import forget
from compiler.core.words import Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt_function
from compiler.ir.ty import integer_range
from compiler.ir.walk import mentions
from compiler.ops.qnn.requantize import (
    OP,
    TFLM,
    RequantizeAttrs,
    biased,
    factors_in,
    finished,
    limits_of,
    shifts_only,
    spelled,
)
from compiler.ops.rules.product_shape import FQProductShape

_NARROW = ("int8", "uint8", "int16", "uint16", "int32")
_HIGH = 32


def inlined_module(mod: IRModule, bare: bool = False) -> IRModule:
    """A typed module without requantizations: the calls of their bodies instead.

    Args:
        bare: their products stay requantizations, without other fields; those that round as TFLM
            does stay whole.
    """
    made = mod
    for var, function in mod.functions.items():
        if isinstance(function, Function) and mentions(function, (OP,)):
            made = made.with_function(var.name_hint, inlined(function, bare=bare))
    return mod if made is mod else infer_module(made)


def _high_half(step: Step, words: Words, data: Expr) -> Value | None:
    """The high half of one 64-bit sum, and all else in 32 bits; None where that is not the same

        cast((x * multiplier + (bias * multiplier + 2^(30 - shift))) >> 32, int32) >> (-1 - shift)

    Rounding and bias are one number, where sums and bias have room in int32. A relu is behind the
    product, and left out where a clip at 0 or above follows.
    """
    attrs, x, factors = step.attrs, step.args[0], factors_in(step)
    if factors is None or not factors.shift.size or x.type.dtype not in _NARROW:
        return None
    multiplier, shift, bias = factors
    fits = attrs.rounding == "up" and attrs.compute_dtype == "int64"
    fits = fits and -31 <= shift.min() <= shift.max() <= -1 and abs(attrs.zero_point) < 1 << 30
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
    limits = limits_of(attrs)
    if attrs.relu and (limits is None or limits[0] < 0):
        made = words.word("nn.relu", [made], shape_of(made), "int32")
    return finished(made, attrs, words)


def _largest(data: Expr) -> int | None:
    """Bound of |sum of products| of integers; None where nothing is known."""
    rule = FQProductShape.get(data.op) if isinstance(data, Call) else None
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


def inlined(fn: Function, high_half: bool = False, bare: bool = False) -> Function:
    """A typed function without requantizations: their bodies, or ``high_half``, in their places."""
    if not mentions(fn, (OP,)):
        return fn

    def new_form(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not is_op_call(node, OP) or (bare and RequantizeAttrs.of(node).rounding in TFLM):
            return None
        return _spelled(node, new, high_half, bare)

    return rebuilt_function(fn, new_form)


def _spelled(call: Call, new: Mapping[Expr, Expr], high_half: bool, bare: bool) -> Expr | None:
    data, *vectors = call.args
    known = [Value(v.tensor_type, data=v.data) for v in vectors if isinstance(v, Constant)]
    assert isinstance(call.op, Op)
    step = Step(call.op, call.attrs, (Value(data.tensor_type), *known), span=call.span)
    step.results = (Value(call.tensor_type, step),)
    if len(known) < len(vectors):
        return None
    words = Words(step)
    made = _high_half(step, words, data) if high_half else None
    result = made or spelled(step, words, bare and step.attrs.rounding != "floor")
    assert isinstance(result, Value)
    nodes: dict[Value, Expr] = {step.args[0]: new[data]}
    for word in words.steps:
        for arg in word.args:
            if arg.data is not None:
                nodes[arg] = Constant(arg.data)
        args = tuple(nodes[arg] for arg in word.args)
        quant = call.quant if word.name == OP or word.result is result else None
        nodes[word.result] = Call(word.op, args, word.attrs, span=call.span, quant=quant)
    forget((*words.steps, step), Step(call.op, None, ()))
    return nodes[result]
