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
from itertools import accumulate, pairwise
from operator import mul
from typing import Final

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TensorType, is_dynamic
from compiler.ops.number_format import Array
from compiler.ops.transform.transpose import TransposeAttrs, permutation
from compiler.passes.opaque_primitives import TypedMutator

Shape = tuple[int, ...]

_PRODUCTS: Final = ("nn.conv2d", "nn.conv2d_transpose", "nn.dense")
_LIMITS: Final = ("nn.relu", "clip")
_AFFINE: Final = ("add", "multiply")
_RESHAPES: Final = ("reshape", "squeeze", "expand_dims")
_MOST_MOVES: Final = 4
"""Between a product and what follows it; an import makes two."""


@register_pass("HoistEpilogues", opt_level=0, required=("InferType",))
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
            constant = args[1 - place]
            assert isinstance(constant, Constant)
            held: Array | None = constant.data
            for move in moves:
                held = None if held is None else self._before(held, move)
            if held is None or held.size != max(held.shape, default=1):
                return None
            if held.size > 1:
                channels = (-1, *held.shape[int(np.argmax(held.shape)) + 1 :])
            else:
                channels = ()
            args[1 - place] = Constant(held.reshape(channels), span=constant.span)
        made: Expr = Call(call.op, tuple(args), call.attrs, span=call.span)
        self.types[made] = self.type_of(data)
        self.products.add(made)
        for move in reversed(moves):
            made = Call(move.op, (made,), move.attrs, span=move.span)
            self.types[made] = self.type_of(move)
        return made

    def _before(self, constant: Array, move: Call) -> Array | None:
        """A constant over the result of a move as one over its operand."""
        out = self.type_of(move)
        source = self.type_of(move.args[0])
        assert isinstance(out, TensorType)
        assert isinstance(source, TensorType)
        if is_dynamic(out) or is_dynamic(source) or constant.ndim > len(out.shape):
            return None
        after = out.concrete_shape
        before = source.concrete_shape
        data = constant.reshape((1,) * (len(after) - constant.ndim) + constant.shape)
        if any(own not in (1, size) for own, size in zip(data.shape, after)):
            return None  # it repeats the product
        if is_op_call(move, "transpose"):
            return data.transpose(np.argsort(permutation(TransposeAttrs.of(move).axes, len(after))))
        return _reshaped(data, after, before)


def _reshaped(data: Array, shape: Shape, wanted: Shape) -> Array | None:
    """Reshape an array that broadcasts to ``shape`` so that it broadcasts to the same elements
    under ``wanted``; return None where the axes of the two shapes overlap in part."""
    ends = [[*accumulate((1, *reversed(axes)), mul)][::-1] for axes in (shape, wanted)]
    cuts = sorted({*ends[0], *ends[1]}, reverse=True)
    if any(not inner or outer % inner for outer, inner in pairwise(cuts)):
        return None
    sizes = [outer // inner for outer, inner in pairwise(cuts)]
    axis_parts = [[cuts.index(end) for end in each] for each in ends]
    fine = [1] * len(sizes)
    for axis, (first, last) in enumerate(pairwise(axis_parts[0])):
        if data.shape[axis] > 1:
            fine[first:last] = sizes[first:last]
    spread = list(fine)
    found = []
    for first, last in pairwise(axis_parts[1]):
        if max(fine[first:last], default=1) > 1:
            spread[first:last] = sizes[first:last]
        found.append(math.prod(spread[first:last]))
    return np.broadcast_to(data.reshape(fine), spread).reshape(found)
