"""SimplifyExpr of data movement: pairs that cancel out, pairs that are one movement, no-ops.

The operators are reshape, transpose, concatenate and strided_slice.
"""

from __future__ import annotations

from typing import Any

from compiler.ir.expr import Call, Expr, Op, Tuple, is_op_call
from compiler.ir.op import RESHAPE
from compiler.ir.ty import TensorType, is_dynamic
from compiler.ops.op_call import op_call
from compiler.ops.rules.simplify import FSimplifyExpr, TypeOf
from compiler.ops.transform.transpose import TransposeAttrs, permutation


def _only_reshapes(expr: Expr) -> bool:
    return isinstance(expr, Call) and isinstance(expr.op, Op) and RESHAPE in expr.op.flags


@FSimplifyExpr.register("reshape", "squeeze", "expand_dims", "nn.batch_flatten")
def simplify_reshape(call: Call, type_of: TypeOf) -> Expr | None:
    """Nothing, when the shape is what it was before; one reshape for two."""
    out, data = type_of(call), call.args[0]
    assert isinstance(out, TensorType)
    if is_dynamic(out) or is_dynamic(type_of(data)):
        return None
    if type_of(data) == out:
        return data
    if not _only_reshapes(data):
        return None
    assert isinstance(data, Call)
    source = data.args[0]
    if is_dynamic(type_of(source)):
        return None
    if type_of(source) == out:
        return source
    # A 0 in newshape would mean "as before", so empty tensors keep their two steps.
    if not is_op_call(call, "reshape") or 0 in out.shape:
        return None
    return op_call("reshape", source, newshape=out.concrete_shape, span=call.span)


@FSimplifyExpr.register("transpose")
def simplify_transpose(call: Call, type_of: TypeOf) -> Expr | None:
    """Nothing, when every axis stays; one permutation for two."""
    source, axes = call.args[0], _permutation(call, type_of)
    merged = is_op_call(source, "transpose")
    if merged:
        assert isinstance(source, Call)
        inner = _permutation(source, type_of)
        source, axes = source.args[0], tuple(inner[a] for a in axes)
    if axes == tuple(range(len(axes))):
        return source
    return op_call("transpose", source, axes=axes, span=call.span) if merged else None


def _permutation(call: Call, type_of: TypeOf) -> tuple[int, ...]:
    ty = type_of(call)
    assert isinstance(ty, TensorType)
    return permutation(TransposeAttrs.of(call).axes, len(ty.shape))


@FSimplifyExpr.register("concatenate")
def simplify_concatenate(call: Call, type_of: TypeOf) -> Expr | None:
    """Its only part."""
    parts = call.args[0]
    return parts.fields[0] if isinstance(parts, Tuple) and len(parts.fields) == 1 else None


@FSimplifyExpr.register("strided_slice")
def simplify_strided_slice(call: Call, type_of: TypeOf) -> Expr | None:
    """The data, when all of it is taken in order."""
    attrs: Any = call.attrs
    data = call.args[0]
    if is_dynamic(type_of(data)) or type_of(data) != type_of(call):
        return None
    # A size of 1 can be taken by any stride; otherwise full length means stride 1 or -1.
    in_order = attrs.slice_mode == "size" or all(s > 0 for s in attrs.strides or ())
    return data if in_order else None
