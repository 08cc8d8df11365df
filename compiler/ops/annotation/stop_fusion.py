"""annotation.stop_fusion: the identity; FuseOps does not look through it."""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, operand
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ir.type_relation import identity_rel
from compiler.ops.pass_through import annotate_pass_through, realize_keeping_channels
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.layout import FConvertLayout, data_layout
from compiler.ops.rules.never_negative import FNeverNegative, first_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always

stop_fusion = register_op(
    "annotation.stop_fusion", arg_names=("data",), rel=identity_rel, pattern=OpPattern.OPAQUE
)


@FNumpyCompute.register(stop_fusion)
def stop_fusion_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """The value itself."""
    return list(args)


FQAnnotateRewrite.register(stop_fusion)(annotate_pass_through)
FQRealizeRewrite.register(stop_fusion)(realize_keeping_channels)
FQDomScale.register(stop_fusion)(same_scale)
FQZeroPoint.register(stop_fusion)(always(ZeroPoint.KEEPS))


FNeverNegative.register(stop_fusion)(first_positive)
FConvertLayout.register(stop_fusion)(data_layout)


FBody.register("annotation.stop_fusion")(operand)
