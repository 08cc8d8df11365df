"""Models in float16 or float64 are computed in float32, in which quantization is simulated.

    before                                            after
    fn (%x: Tensor[(1, 4), float16]) {                fn (%x: Tensor[(1, 4), float32]) {
      nn.dense(cast(%x, dtype="float32"), w) }          nn.dense(%x, w) }

Weights keep their values, inputs and outputs become float32. Integers of 8 bits cannot tell the
precisions apart, and generated C has no float16.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.ty import TensorType, Type, is_float, tensor_fields
from compiler.ir.walk import post_order
from compiler.ops.tensor.cast import CastAttrs

WANTED = "float32"
_OTHERS = ("float16", "float64")


def in_single_precision(mod: IRModule) -> IRModule:
    """The module with a ``main`` in float32; the very same where it is that already.

    Args:
        mod: typed, one function.
    """
    main: Function = mod["main"]
    nodes = list(post_order(main))
    known = (node.checked_type_or_none for node in nodes[:-1])
    if len(mod.functions) > 1 or not any(ty is not None and _is_other(ty) for ty in known):
        return mod
    made = rebuilt(nodes, _in_float32)[main]
    assert isinstance(made, Function)
    return infer_module(mod.with_function("main", made.with_fields(ret_type=None)))


def _in_float32(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
    """The node in float32; None where only its operands change."""
    if isinstance(node, Var) and isinstance(node.checked_type_or_none, TensorType):
        ty = node.tensor_type
        if ty.dtype not in _OTHERS:
            return None
        return Var(node.name_hint, TensorType(ty.shape, WANTED), span=node.span)
    if isinstance(node, Constant):
        other = str(node.data.dtype) in _OTHERS
        return Constant(node.data.astype(np.float32), span=node.span) if other else None
    if not isinstance(node, Call) or node.attrs is None:
        return None
    named = {name: WANTED for name, value in node.attrs.items() if value in _OTHERS}
    if isinstance(node.attrs, CastAttrs) and is_float(node.attrs.dtype):
        (data,) = node.args
        if all(is_float(ty.dtype) for ty in tensor_fields(data.checked_type)):
            return new[data]
    if not named:
        return None
    args = tuple(new[arg] for arg in node.args)
    return Call(node.op, args, node.attrs.with_values(**named), span=node.span)


def _is_other(ty: Type) -> bool:
    return any(tensor.dtype in _OTHERS for tensor in tensor_fields(ty))
