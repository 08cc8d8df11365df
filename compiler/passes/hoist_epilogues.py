"""HoistEpilogues: what follows a product moves in front of reshapes and transposes, to the product.

    before                                          after
    %0 = nn.conv2d(%x, %w);                         %0 = nn.conv2d(%x, %w);
    %1 = squeeze(%0, axis=[2]);                     %1 = add(%0, bias[C,1,1]);
    %2 = add(%1, bias[C,1]);                        %2 = nn.relu(%1);
    nn.relu(%2)                                     squeeze(%2, axis=[2])

Convolutions of one and three axes are imported so. There batch norms are folded into weights, and
no integers are spent on values that a relu cuts off. Constants have one number for each channel.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TensorType, is_dynamic
from compiler.ops.transform.transpose import TransposeAttrs, permutation
from compiler.passes.opaque_primitives import TypedMutator

_PRODUCTS: Final = ("nn.conv2d", "nn.conv2d_transpose", "nn.dense")
_LIMITS: Final = ("nn.relu", "clip")
_AFFINE: Final = ("add", "multiply")
_RESHAPES: Final = ("reshape", "squeeze", "expand_dims")
_MOST_MOVES: Final = 4
"""Between a product and what follows it; an import makes two."""


@register_pass("HoistEpilogues", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class HoistEpilogues(FunctionPass):
    """Put the constants and the limits of a product next to it."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function, itself where nothing moves."""
        return _Hoister().mutate(fn)


class _Hoister(TypedMutator):
    """``products`` are products with what follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.products: set[Expr] = set()

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        place = 0
        if is_op_call(post, *_PRODUCTS):
            self.products.add(post)
            return post
        if is_op_call(post, *_AFFINE):
            place = int(isinstance(post.args[0], Constant))
            if not isinstance(post.args[1 - place], Constant):
                return post
        elif not is_op_call(post, *_LIMITS):
            return post
        data = post.args[place]
        moves: list[Call] = []
        while len(moves) < _MOST_MOVES and is_op_call(data, *_RESHAPES, "transpose"):
            moves.append(data)
            data = data.args[0]
        if data not in self.products:
            return post
        if not moves:
            self.products.add(post)
            return post
        return self._hoisted(post, place, data, moves) or post

    def _hoisted(self, call: Call, place: int, data: Expr, moves: list[Call]) -> Expr | None:
        args = list(call.args)
        args[place] = data
        if len(args) > 1:
            constant: Any = args[1 - place]
            for move in moves:
                constant = self._before(constant, move)
                if constant is None:
                    return None
            args[1 - place] = constant
        made: Expr = Call(call.op, tuple(args), call.attrs, span=call.span)
        self.types[made] = self.type_of(data)
        self.products.add(made)
        for move in reversed(moves):
            made = Call(move.op, (made,), move.attrs, span=move.span)
            self.types[made] = self.type_of(move)
        return made

    def _before(self, constant: Constant, move: Call) -> Constant | None:
        """What a constant of one number, or one for each channel, is in front of a move."""
        out, source = self.type_of(move), self.type_of(move.args[0])
        assert isinstance(out, TensorType)
        assert isinstance(source, TensorType)
        if is_dynamic(out) or is_dynamic(source) or constant.data.ndim > len(out.shape):
            return None
        data, after, before = constant.data, out.concrete_shape, source.concrete_shape
        if data.size == 1:
            return Constant(data.reshape(()), span=constant.span)
        axis = len(after) - data.ndim + int(np.argmax(data.shape))
        if not data.size == max(data.shape) == after[axis]:
            return None
        place = _axis_before(move, axis, before, after)
        if place is None:
            return None
        shape = (data.size, *(1,) * (len(before) - 1 - place))
        return Constant(data.reshape(shape), span=constant.span)


def _axis_before(
    move: Call, axis: int, before: tuple[int, ...], after: tuple[int, ...]
) -> int | None:
    """Which axis in front of a move is an axis behind it; None where none is."""
    if is_op_call(move, "transpose"):
        return permutation(TransposeAttrs.of(move).axes, len(after))[axis]
    ahead = math.prod(after[:axis])
    for place, size in enumerate(before):
        if size == after[axis] and math.prod(before[:place]) == ahead:
            return place
    return None
