"""CancelTransposes: let transposes go past elementwise operators, so that they meet and cancel.

    before                                          after
    %0 = transpose(%x, axes=[0, 2, 3, 1]);          %0 = add(%x, bias[1,C,1,1]);
    %1 = add(%0, bias[C]);                          nn.relu(%0)
    %2 = nn.relu(%1);
    transpose(%2, axes=[0, 3, 1, 2])

Exports of channels-last frameworks put a pair around every convolution. A transpose moves behind a
unary operator, and behind a broadcast one whose other operands are constants, scalars or transposed
alike; two that meet are one. The function stays as it is unless fewer transposes are left.
Not handled: a transpose in front of pooling, padding, reductions or concatenate.
"""

from __future__ import annotations

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TensorType
from compiler.ir.walk import mentions, post_order
from compiler.ops.op_call import op_call
from compiler.ops.rules.layout import treats_axes_alike
from compiler.ops.transform.transpose import TransposeAttrs, permutation
from compiler.passes.opaque_primitives import OpaquePrimitives

Axes = tuple[int, ...]


@register_pass("CancelTransposes", opt_level=0, required=("InferType",))
class CancelTransposes(FunctionPass):
    """Remove transposes that undo each other across elementwise operators."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with fewer transposes, or itself."""
        if not mentions(fn, ("transpose",)):
            return fn
        new = _Mover().mutate(fn)
        if _transposes(new) < _transposes(fn):
            return new
        return fn


def _transposes(fn: Function) -> int:
    return sum(is_op_call(node, "transpose") for node in post_order(fn))


class _Mover(OpaquePrimitives):
    """Moves every transpose toward the results; ``axes`` has the axes of all transposes."""

    def __init__(self) -> None:
        super().__init__()
        self.axes: dict[Expr, Axes] = {}

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        if is_op_call(post, "transpose"):
            axes = TransposeAttrs.of(pre).axes
            return self._merged(post, permutation(axes, len(pre.tensor_type.shape)))
        if not treats_axes_alike(post.op):
            return post
        ty = pre.checked_type
        found = {self.axes[arg] for arg in post.args if arg in self.axes}
        if len(found) != 1 or not isinstance(ty, TensorType):
            return post
        axes = found.pop()
        args = [self._source(arg, axes) for arg in post.args]
        if len(axes) != len(ty.shape) or any(arg is None for arg in args):
            return post
        moved = post.fresh_copy(args=tuple(a for a in args if a is not None))
        return self._transposed(moved, axes)

    def _merged(self, call: Call, axes: Axes) -> Expr:
        source = call.args[0]
        inner = self.axes.get(source)
        if inner is None:
            self.axes[call] = axes
            return call
        assert isinstance(source, Call)
        both = tuple(inner[a] for a in axes)
        if both == tuple(range(len(both))):
            return source.args[0]
        return self._transposed(source.args[0], both)

    def _transposed(self, data: Expr, axes: Axes) -> Call:
        call = op_call("transpose", data, axes=axes)
        self.axes[call] = axes
        return call

    def _source(self, arg: Expr, axes: Axes) -> Expr | None:
        """Return the value that is ``arg`` for a broadcast when transposed by ``axes``; None where
        there is none."""
        if arg in self.axes:
            assert isinstance(arg, Call)
            return arg.args[0]
        if isinstance(arg, Constant):
            return _turned(arg, axes)
        ty = arg.checked_type_or_none
        if isinstance(ty, TensorType) and not ty.shape:
            return arg
        return None


def _turned(constant: Constant, axes: Axes) -> Constant | None:
    data = constant.data
    if data.ndim == 0:
        return constant
    if data.ndim > len(axes):
        return None
    full = data.reshape((1,) * (len(axes) - data.ndim) + data.shape)
    return Constant(np.ascontiguousarray(full.transpose(np.argsort(axes))), span=constant.span)
