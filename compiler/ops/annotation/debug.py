"""debug: the identity; marks a place that a tap of the reference executor looks for."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ops.identity import identity_op
from compiler.ops.op_attrs import OpAttrs


@dataclass(frozen=True, eq=False)
class DebugAttrs(OpAttrs):
    """A word to recognise the place by."""

    debug_info: str = ""


debug = identity_op("debug", DebugAttrs)
