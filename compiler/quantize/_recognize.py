"""Before partition: give back their names to operators that have an integer form as a whole."""

from __future__ import annotations

import compiler.passes.outline_formulas
import compiler.passes.recover_layer_norm
import compiler.passes.recover_rms_norm  # noqa: F401  (named below)
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Sequential
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._masks import bounded_masks

PASSES = ("RecoverLayerNorm", "RecoverRmsNorm", "OutlineFormulas")


def recognized(mod: IRModule, qconfig: QConfig) -> IRModule:
    """``mod`` with norms and unary_formula where ``integer_tables`` can make use of them, and masks
    that have a scale.

    Args:
        mod: result of ``prerequisite_optimize``; returned as it is without ``integer_tables``.
    """
    if not qconfig.integer_tables:
        return mod
    return bounded_masks(Sequential(PASSES, name="recognize")(mod))
