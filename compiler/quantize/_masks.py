"""Attention masks: numbers that stand for minus infinity become ones that integers can hold.

    before                                          after
    nn.softmax(add(%scores, -inf where masked))     nn.softmax(add(%scores, -512 where masked))
    nn.softmax(where(mask, -1e9, %scores))          nn.softmax(add(%scores, -512 where masked))
    nn.softmax(add(%scores, %m * -3.4e38))          nn.softmax(add(%scores, %m * -512))
    nn.softmax(%scores + (%m + -inf where masked))  nn.softmax((%scores + %m) + -512 where masked)
    where(isnan(%computed), 0, %computed)           %computed
    where(equal(%computed, -inf), 0, %other)        %other
    equal(max(where(%m, 0, -inf)), -inf)            less(max(where(%m, 0, -512)), -256)

A scale that reaches to -10000 leaves nothing of the scores, and minus infinity has no scale at all.
Softmax sees differences only: exp(-512) is 0 in float32 as well. That the scale of the sum does not
reach to -512 either is seen to where it is measured (``calibration/profile_function.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Op, Var, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import behind, mentions
from compiler.ops.op_call import op_call
from compiler.passes.opaque_primitives import OpaquePrimitives
from compiler.quantize._rewriting import with_body

LIMIT = 512.0
"""What a masked score is lowered by."""

_ALWAYS = {"isnan": False, "isinf": False, "isfinite": True}
"""What is asked of computed values, and the answer for integers."""
_MOVES = ("broadcast_to", "expand_dims", "reshape", "squeeze", "tile", "transpose")


def bounded_masks(mod: IRModule) -> IRModule:
    """The module with bounded masks in ``main``; the very same where there are none.

    Args:
        mod: typed; constants folded.
    """
    main: Function = mod["main"]
    if not mentions(main, ("nn.softmax", "where", *_ALWAYS)):
        return mod
    return with_body(mod, _Bounds().mutate(main).body)


class _Bounds(OpaquePrimitives):
    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        if isinstance(post.op, Op) and post.op.name in _ALWAYS:
            return post if _is_given(post.args[0]) else _whole(_ALWAYS[post.op.name], pre)
        if is_op_call(post, "equal") and any(_is(-np.inf, arg) for arg in post.args):
            return post if any(map(_is_given, post.args)) else _masked_whole(pre, post)
        if is_op_call(post, "logical_and") and any(_is(False, arg) for arg in post.args):
            return _whole(False, pre)
        if is_op_call(post, "where"):
            return _decided(pre, post)
        if not is_op_call(post, "nn.softmax"):
            return post
        moves, scores = behind(post.args[0], _MOVES)
        new = _masked_scores(scores)
        if new is scores:
            return post
        return Call(post.op, (_moved(new, moves),), post.attrs, span=post.span)


def _decided(pre: Call, choice: Call) -> Expr:
    """Without a guard against what integers cannot be, such as rows that are masked as a whole."""
    for place, answer in ((1, True), (2, False)):
        if _is(answer, choice.args[0]) and pre.args[place].checked_type == pre.checked_type:
            return choice.args[place]
    return choice


def _masked_whole(pre: Call, post: Call) -> Expr:
    """Whether a row of a mask is minus infinity; what is computed of integers is not."""
    for mask, low in (post.args, post.args[::-1]):
        moves, value = behind(mask, (*_MOVES, "max"))
        if isinstance(low, Constant) and is_op_call(value, "where"):
            between = Constant(np.asarray(-LIMIT / 2, low.data.dtype))
            return op_call("less", _moved(_bounded(value), moves), between, span=post.span)
    return _whole(False, pre)


def _is_given(value: Expr) -> bool:
    """Of an input, which may mark with NaN or infinity what is missing."""
    return isinstance(behind(value, _MOVES)[1], Var)


def _is(answer: float, mask: Expr) -> bool:
    return isinstance(mask, Constant) and bool((mask.data == answer).all())


def _whole(answer: bool, call: Call) -> Constant:
    return Constant(np.full(call.tensor_type.concrete_shape, answer), span=call.span)


def _masked_scores(scores: Expr) -> Expr:
    if not is_op_call(scores, "where", "add"):
        return scores
    if is_op_call(scores, "where"):
        return _added(scores)
    scores = _apart(scores)
    return with_operands(scores, (scores.op, *map(_bounded, scores.args)))


def _apart(total: Call) -> Call:
    """a + (b + mask) as (a + b) + mask."""
    for place, side in enumerate(total.args):
        if not is_op_call(side, "add"):
            continue
        for at, mask in enumerate(side.args):
            if isinstance(mask, Constant) and _raised(mask) is not mask:
                rest = op_call("add", total.args[1 - place], side.args[1 - at], span=total.span)
                return op_call("add", rest, mask, span=side.span)
    return total


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


def _bounded(side: Expr) -> Expr:
    moves, value = behind(side, _MOVES)
    if isinstance(value, Constant):
        new: Expr = _raised(value)
    elif is_op_call(value, "multiply", "where"):
        # Of a product: a mask of zeros and ones, times what stands for minus infinity.
        any_size = is_op_call(value, "where")
        raised = [
            _raised(arg) if isinstance(arg, Constant) and (any_size or arg.data.size == 1) else arg
            for arg in value.args
        ]
        new = with_operands(value, (value.op, *raised))
    else:
        return side
    return side if new is value else _moved(new, moves)


def _raised(constant: Constant) -> Constant:
    data = constant.data
    if data.dtype.kind != "f" or not data.size or not data.min() < -LIMIT:
        return constant
    return Constant(np.maximum(data, np.asarray(-LIMIT, data.dtype)), span=constant.span)


def _moved(value: Expr, moves: Sequence[Call]) -> Expr:
    for move in reversed(moves):
        value = Call(move.op, (value, *move.args[1:]), move.attrs, span=move.span)
    return value
