"""InlineRequantize: requantizations as the sums, products and shifts that they are.

    before                                          after
    qnn.requantize(%0, multiplier=m, shift=s,   %1 = cast(%0, dtype="int64");
        low=-127, high=127, out_dtype="int8")       %2 = fixed_point_multiply(%1, m, s);
                                                    %3 = clip(%2, a_min=-127f, a_max=127f);
                                                    cast(%3, dtype="int8")

The calls are those of the operator's body, with ``high_half`` those that take the fewest and the
narrowest instructions of a processor: see ``ops/qnn/requantize.py``. Fires for vectors that are
constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ops.qnn.requantize import inlined


@register_pass("InlineRequantize", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class InlineRequantize(FunctionPass):
    """Write requantizations in words."""

    high_half: bool = False

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function, itself without a requantization."""
        return inlined(fn, self.high_half)
