"""The passes before FuseOps and before FuseOpHW."""

from __future__ import annotations

from compiler.ir.pass_infra import Pass
from compiler.passes.canonicalize_cast import CanonicalizeCast
from compiler.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from compiler.passes.fold_constant import FoldConstant
from compiler.passes.simplify_inference import SimplifyInference

BEFORE_FUSION: tuple[Pass, ...] = (
    SimplifyInference(),
    # What several layers read as the same narrow integers is narrowed once, where it is made.
    EliminateCommonSubexpr(),
    CanonicalizeCast(),
    FoldConstant(),
)
"""One computation of everything, and a widening cast in each consumer: FuseOps and FuseOpHW both
draw their groups on this form."""
