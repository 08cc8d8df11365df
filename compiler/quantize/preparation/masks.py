"""Attention masks: numbers that stand for minus infinity become ones that integers can hold.

    before                                          after
    nn.softmax(add(%scores, -inf where masked))     nn.softmax(add(%scores, -8192 where masked))
    nn.softmax(where(mask, -1e9, %scores))          nn.softmax(add(%scores, -8192 where masked))
    nn.softmax(add(%scores, %m * -3.4e38))          nn.softmax(add(%scores, %m * -8192))
    max(where(mask, -inf, %x))                      max(where(mask, -8192, %x))
    where(isnan(%computed), 0, %computed)           %computed
    where(equal(%computed, -inf), 0, %other)        %other
    equal(max(where(%m, 0, -inf)), -inf)            less(max(where(%m, 0, -8192)), -4096)
    cast(%real, "bool")                             not_equal(%real, 0)

Softmax and functions such as exp and sigmoid do not change below -8192. ``mask_values`` finds what
a mask passes through on its way to them: these values stay accumulators, so scores and biases keep
their scale beside it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    is_op_call,
)
from compiler.ir.module import IRModule
from compiler.ir.walk import behind, mentions, nodes_of, with_calls
from compiler.ops.annotation.minus_infinity import INFINITE, LIMIT, finite
from compiler.ops.nn.pad import PadAttrs
from compiler.ops.nn.softmax import SoftmaxAttrs
from compiler.ops.op_call import op_call
from compiler.ops.tensor.formula import varying_part
from compiler.ops.tensor.unary_formula import UnaryFormulaAttrs
from compiler.qtypes.report import BORDER_OPS
from compiler.quantize.conversions.operators import is_real
from compiler.quantize.rewriting import rewritten

_ALWAYS: Final = {"isnan": False, "isinf": False, "isfinite": True}
"""Questions to computed values, and the answer for integers."""
_MOVES: Final = ("broadcast_to", "expand_dims", "reshape", "squeeze", "tile", "transpose")
_EXTREMA: Final = ("max", "min")
_CUTS: Final = ("strided_slice", "split", "take", "gather")
_FIRST: Final = (*_MOVES, *BORDER_OPS, *_CUTS, *_EXTREMA)
_EVERY: Final = ("add", "subtract", "minimum", "maximum", "concatenate", "nn.pad")
_SOFTMAX: Final = ("nn.softmax", "nn.log_softmax")
_FAR: Final = 50.0
"""A constant of a larger magnitude may be a mask."""
_FACTOR: Final = 1e6
"""A larger factor stands for infinity."""


def mask_values(main: Function) -> frozenset[Expr]:
    """Values that may hold minus infinity in front of a softmax or of a function that is constant
    below -LIMIT, O(edges): constants, float inputs that softmaxes alone read so, and what sums,
    choices, extrema and moves make of these."""
    nodes = nodes_of(main)
    read, scores = _read_low(nodes, _EXTREMA)
    elsewhere = {main.body}
    for node in nodes:
        if node not in scores and not is_op_call(node, *_SOFTMAX):
            elsewhere.update(node.operands())
    found: set[Expr] = set()
    for node in nodes:
        if node not in read and not is_op_call(node, *_EXTREMA):
            low = False
        elif isinstance(node, Constant):
            real = node.data.dtype.kind == "f" and node.data.size > 0
            low = real and bool(np.abs(node.data).max() > _FAR)
        elif isinstance(node, Var):
            low = node in scores and node not in elsewhere and is_real(node)
        else:
            low = not found.isdisjoint(_terms(node))
        if low:
            found.add(node)
    return frozenset(found)


def masked_inputs(main: Function) -> frozenset[Expr]:
    """Float inputs that may hold minus infinity: softmax, exp or sigmoid make 0 of it."""
    return frozenset(node for node in _read_low(nodes_of(main))[0] if isinstance(node, Var))


def _read_low(nodes: Sequence[Expr], more: Sequence[str] = ()) -> tuple[set[Expr], set[Expr]]:
    """Values that are read down to -LIMIT only; those that softmaxes read.

    Args:
        more: operators whose operands count as well.
    """
    read: set[Expr] = set()
    scores: set[Expr] = set()
    for node in reversed(nodes):
        if is_op_call(node, *_SOFTMAX):
            scores.add(node.args[0])
            read.add(node.args[0])
        elif is_op_call(node, "exp", "sigmoid", *more):
            read.add(node.args[0])
        elif is_op_call(node, "unary_formula"):
            if varying_part(UnaryFormulaAttrs.of(node).formula)[0] > -LIMIT:
                read.add(node.args[0])
        elif node in read:
            read.update(_terms(node))
            if node in scores:
                scores.update(_terms(node))
    return read, scores


def _terms(node: Expr) -> Sequence[Expr]:
    """Operands whose minus infinity is that of the result."""
    if isinstance(node, Tuple):
        return node.fields
    if isinstance(node, TupleGetItem):
        return (node.tuple,)
    if not isinstance(node, Call) or not isinstance(node.op, Op):
        return ()
    if node.op.name in _FIRST:
        return node.args[:1]
    if node.op.name in _EVERY:
        return node.args
    if node.op.name == "where":
        return node.args[1:]
    if node.op.name == "multiply":
        # A large factor makes a mask of zeros and ones; a small one scales what may be masked.
        for place, factor in enumerate(node.args):
            if isinstance(factor, Constant) and factor.data.size == 1:
                large = np.abs(factor.data).max() > _FAR
                return (factor if large else node.args[1 - place],)
    return ()


def bounded_masks(mod: IRModule) -> IRModule:
    """The module with bounded masks in ``main``; the very same where there are none.

    Args:
        mod: typed; constants folded.
    """
    main: Function = mod["main"]
    names = (*_SOFTMAX, "where", "unary_formula", "cast", *_EVERY, *_ALWAYS)
    if not mentions(main, names):
        return mod
    nodes = nodes_of(main)
    low = _read_low(nodes)[0]
    factors = {arg for node in nodes if is_op_call(node, "multiply") for arg in node.operands()}

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(node, Constant):
            if node not in low:
                most = INFINITE
            elif node in factors:
                most = _FACTOR
            else:
                most = LIMIT
            data = finite(node.data, most)
            if data is node.data:
                return None
            return Constant(data, span=node.span)
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            return None
        args = [new[arg] for arg in node.args]
        return _rewritten(node, args, low)

    return rewritten(mod, made)


def _rewritten(node: Call, args: list[Expr], low: set[Expr]) -> Expr | None:
    """The call over new operands without what integers cannot hold; None for others."""
    assert isinstance(node.op, Op)
    if node.op.name == "isnan" and (rows := _masked_rows(node.args[0], args[0])):
        return rows
    if node.op.name in _ALWAYS:
        if _is_given(node.args[0]):
            return None
        return _whole(_ALWAYS[node.op.name], node)
    if node.op.name == "equal":
        for place, other in enumerate(node.args):
            if not _is(-np.inf, other) or any(map(_is_given, node.args)):
                continue
            mask = behind(node.args[1 - place], (*_MOVES, "max"))[1]
            if mask not in low and not is_op_call(mask, "where"):
                return _whole(False, node)
            middle = Constant(np.asarray(-LIMIT / 2, np.float32))
            return op_call("less", args[1 - place], middle, span=node.span)
    if node.op.name == "logical_and" and any(_is(False, arg) for arg in args):
        return _whole(False, node)
    if node.op.name == "where":
        for place, answer in ((1, True), (2, False)):
            if _is(answer, args[0]) and node.args[place].checked_type == node.checked_type:
                return args[place]
    if node.op.name == "cast" and node.tensor_type.dtype == "bool" and is_real(node.args[0]):
        return op_call("not_equal", args[0], Constant(np.zeros((), np.float32)), span=node.span)
    if node.op.name == "nn.pad" and node in low and any(_is(-LIMIT, arg) for arg in args[1:]):
        return _padded(node, args[0])
    if node.op.name == "nn.softmax":
        moves, scores = behind(args[0], _MOVES)
        if is_op_call(scores, "where"):
            summed = _added(scores)
        else:
            summed = scores
        if summed is not scores:
            return node.with_fields(args=(with_calls(summed, moves),))
    return None


def _masked_rows(old: Expr, weights: Expr) -> Expr | None:
    """Rows of a softmax along the last axis that are masked as a whole, where its mask tells.

    Args:
        old: the weights before masks were bounded.
    """
    if not is_op_call(old, "nn.softmax") or not isinstance(weights, Call):
        return None
    scores = weights.args[0]
    axis = SoftmaxAttrs.of(weights).axis
    if not isinstance(scores, Call) or axis % len(old.tensor_type.shape) + 1 < len(
        old.tensor_type.shape
    ):
        return None
    for mask in scores.args if is_op_call(scores, "add") else ():
        if _is_mask_alone(mask):
            largest = op_call("max", mask, axis=(-1,), keepdims=True)
            return op_call("less", largest, Constant(np.asarray(-LIMIT / 2, np.float32)))
    return None


def _is_mask_alone(value: Expr) -> bool:
    """True for what is made of constants, inputs and choices, and of no scores."""
    waiting = [value]
    seen = {value}
    while waiting:
        node = waiting.pop()
        terms = _terms(node)
        if not terms and not isinstance(node, Constant | Var):
            return False
        waiting += set(terms) - seen
        seen.update(terms)
    return bool(_terms(value))


def _is_given(value: Expr) -> bool:
    """Return whether the value is an input, which may mark missing values with NaN or infinity."""
    return isinstance(behind(value, _MOVES)[1], Var)


def _is(answer: float, mask: Expr) -> bool:
    return isinstance(mask, Constant) and bool((mask.data == answer).all())


def _whole(answer: bool, call: Call) -> Constant:
    return Constant(np.full(call.tensor_type.concrete_shape, answer), span=call.span)


def _added(choice: Call) -> Expr:
    """A choice between scores and minus infinity, as a sum."""
    condition, *branches = choice.args
    for place, masked in enumerate(branches):
        if isinstance(masked, Constant) and (masked.data <= -LIMIT).all():
            levels = [np.zeros((), masked.data.dtype)] * 2
            levels[place] = np.asarray(-LIMIT, masked.data.dtype)
            if isinstance(condition, Constant):
                mask: Expr = Constant(np.where(condition.data, *levels), span=choice.span)
            else:
                mask = op_call("where", condition, *map(Constant, levels), span=choice.span)
            return op_call("add", branches[1 - place], mask, span=choice.span)
    return choice


def _padded(call: Call, data: Expr) -> Expr:
    """Padding with minus infinity, as a sum: in the integers of the data it would be a score."""
    zero = Constant(np.zeros((), np.float32))
    width = PadAttrs.of(call).pad_width
    sizes = zip(call.args[0].tensor_type.concrete_shape, width)
    inside = np.zeros([size if any(ends) else 1 for size, ends in sizes], np.float32)
    mask = np.pad(inside, np.maximum(width, 0), constant_values=-LIMIT)
    return op_call("add", call.with_fields(args=(data, zero)), Constant(mask), span=call.span)
