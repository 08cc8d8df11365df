"""A module prepared and grouped for an accelerator. Costs, reports, drawings and command lists all
use ``group_for_hardware``, so they agree.

RemoveMarkers:
    before                                 after
    %0 = cast(%x, dtype="int8");           %0 = cast(%x, dtype="int8");
    %1 = annotation.stop_fusion(%0);       cast(%0, dtype="int32")
    cast(%1, dtype="int32")

A marker is where a quantized value is stored narrow by a compiler that writes every kernel's result
to memory. An accelerator says itself what one pass of data can do: its description links requant
to the residual adder, and a marker between the two would cost a group that only requantizes.
"""

from __future__ import annotations

from compiler.fusion.hardware.fuse_op_hw import FuseOpHW
from compiler.fusion.hardware.group_calls import group_functions
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import MARKERS
from compiler.fusion.preparation import BEFORE_FUSION
from compiler.ir.expr import Call, Expr, Function, Op
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, Pass, PassContext, register_pass, run_named
from compiler.passes.inline_requantize import InlineRequantize
from compiler.passes.opaque_primitives import OpaquePrimitives
from compiler.passes.simplify_expr import SimplifyExpr


@register_pass("RemoveMarkers", opt_level=1, required=("InferType",))
class RemoveMarkers(FunctionPass):
    """Remove annotation.stop_fusion and annotation.cast_hint, which compute nothing."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function without markers, itself when it has none."""
        return _MarkerRemover().mutate(fn)


class _MarkerRemover(OpaquePrimitives):
    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        is_marker = isinstance(post.op, Op) and post.op.name in MARKERS
        if is_marker:
            return post.args[0]
        return post


BEFORE_GROUPS: tuple[Pass, ...] = (
    InlineRequantize(),
    RemoveMarkers(),
    # The quantizer casts to the dtype a value has already where two layers agree on it.
    SimplifyExpr(ops=("cast",)),
    *BEFORE_FUSION,
)
"""Passes that ``group_for_hardware`` runs before FuseOpHW."""


def group_for_hardware(mod: IRModule, hdfg: HDFG) -> IRModule:
    """The module with its hardware groups drawn; ``mod`` itself if it has groups of ``hdfg``.

    Args:
        mod: typed, or typable; float or integer, partitioned or not. Values stay the same bits.
        hdfg: the accelerator.

    Raises:
        CompilerError: the module is ill-typed.
    """
    if group_functions(mod, hdfg.name):
        return mod
    return run_named(mod, (*BEFORE_GROUPS, FuseOpHW(hdfg)), "group for hardware")
