"""Refuse a model whose layers multiply integers already: it has no real values left to calibrate.

So are models of onnxruntime's quantize_dynamic (DynamicQuantizeLinear, MatMulInteger, ConvInteger)
and of its QOperator format (QLinearConv, QLinearMatMul). They are imported and evaluated, but their
ranges are either computed anew for every input or baked into integers without a point.
"""

from __future__ import annotations

from compiler.errors import QuantizeError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, is_integer
from compiler.ops.rules.product_shape import FQProductShape


def refuse_integer_products(mod: IRModule) -> None:
    """Nothing, or an error for the first convolution or matrix product of integers.

    Args:
        mod: a typed float module, in front of annotation.

    Raises:
        QuantizeError: the layer, how many there are, and which model to give instead.
    """
    found = [node for node in post_order(mod["main"].body) if _multiplies_integers(node)]
    if not found:
        return
    first = found[0]
    assert isinstance(first, Call)
    assert isinstance(first.op, Op)
    more = f"; {len(found)} layers do so" if len(found) > 1 else ""
    raise QuantizeError(
        f"the model is quantized already: {first.op.name} multiplies integers "
        f"({first.args[0].checked_type}){more}",
        fix="give the float model it was made from, or its QDQ form (QuantizeLinear and "
        "DequantizeLinear around float layers), whose scales are kept",
        span=first.span,
    )


def _multiplies_integers(node: object) -> bool:
    if not isinstance(node, Call) or FQProductShape.get(node.op) is None:
        return False
    ty = node.args[0].checked_type_or_none
    return isinstance(ty, TensorType) and is_integer(ty.dtype)
