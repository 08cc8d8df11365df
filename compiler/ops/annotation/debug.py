"""debug: the identity; marks a place that a tap of the reference executor looks for."""

from __future__ import annotations

from compiler.ops.identity import identity_op
from compiler.ops.op_attrs import OpAttrs


class DebugAttrs(OpAttrs):
    """A word to recognise the place by."""

    debug_info: str = ""


debug = identity_op("debug", DebugAttrs)
