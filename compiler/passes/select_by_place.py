"""SelectByPlace: a topk becomes places, and the elements there.

    before                                        after
    %0 = topk(%x, k=3, axis=1);                   %0 = topk(%x, k=3, axis=1, ret_type="indices");
    (%0.0, %0.1)                                  (gather(%x, %0, axis=1), %0)

Values that are picked keep their scale, and places have none. Not handled: more than MOST elements,
which integer modules do not order, and what is not computed. A one_hot of real numbers is one of
truth values, times the difference of its numbers:

    one_hot(%i, 2f, 0f, depth=4)      multiply(cast(one_hot(%i, True, False, depth=4), float32), 2f)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import is_float
from compiler.ir.walk import behind, mentions
from compiler.ops.annotation.narrow_move import MOVES
from compiler.ops.op_call import op_call
from compiler.ops.transform.sort import MOST
from compiler.passes.recovered_calls import retyped


@register_pass("SelectByPlace", opt_level=0, required=("InferType",))
class SelectByPlace(FunctionPass):
    """Write what orders elements as their places."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with places, itself where nothing is ordered."""
        if not mentions(fn, ("topk", "one_hot")):
            return fn
        return retyped(fn, mod, _selected)


def _selected(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
    if isinstance(node, TupleGetItem) and is_op_call(node.tuple, "topk"):
        pair = new[node.tuple]
        if isinstance(pair, Tuple):
            return pair.fields[node.index]
        return None
    if not is_op_call(node, "topk", "one_hot"):
        return None
    attrs: Any = node.attrs
    if is_op_call(node, "one_hot"):
        return _chosen(node, attrs, new[node.args[0]])
    wanted = attrs.ret_type
    size = node.args[0].tensor_type.shape[attrs.axis]
    count = size if attrs.k < 1 else attrs.k
    known = wanted == "indices"
    given = isinstance(behind(node.args[0], MOVES)[1], Var)
    if known or given or not isinstance(count, int) or count > MOST:
        return None
    data = new[node.args[0]]
    order: dict[str, Any] = {"axis": attrs.axis, "is_ascend": attrs.is_ascend}
    places = op_call(
        "topk", data, k=count, ret_type="indices", dtype=attrs.dtype, span=node.span, **order
    )
    if wanted == "indices":
        return places
    values = op_call("gather", data, places, axis=attrs.axis, span=node.span)
    if wanted == "values":
        return values
    return Tuple((values, places))


def _chosen(node: Call, attrs: Any, index: Expr) -> Expr | None:
    """A one_hot of real numbers by truth values."""
    on, off = node.args[1:]
    if (
        not isinstance(on, Constant)
        or not isinstance(off, Constant)
        or not is_float(node.tensor_type.dtype)
    ):
        return None
    answers = (Constant(np.asarray(answer)) for answer in (True, False))
    how = {"depth": attrs.depth, "axis": attrs.axis, "dtype": "bool"}
    hit = op_call("one_hot", index, *answers, span=node.span, **how)
    found = op_call("cast", hit, dtype=node.tensor_type.dtype, span=node.span)
    step = on.data - off.data
    if step != 1:
        found = op_call("multiply", found, Constant(step), span=node.span)
    if off.data:
        return op_call("add", found, off, span=node.span)
    return found
