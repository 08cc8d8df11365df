"""annotation.stop_fusion: the identity; FuseOps does not look through it."""

from __future__ import annotations

from compiler.ops.identity import identity_op
from compiler.ops.pass_through import annotate_pass_through, realize_keeping_channels
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, same_scale
from compiler.ops.rules.layout import FConvertLayout, data_layout
from compiler.ops.rules.never_negative import FNeverNegative, first_positive
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always

stop_fusion = identity_op("annotation.stop_fusion")


FQAnnotateRewrite.register(stop_fusion)(annotate_pass_through)
FQRealizeRewrite.register(stop_fusion)(realize_keeping_channels)
FQDomScale.register(stop_fusion)(same_scale)
FQZeroPoint.register(stop_fusion)(always(ZeroPoint.KEEPS))


FNeverNegative.register(stop_fusion)(first_positive)
FConvertLayout.register(stop_fusion)(data_layout)
