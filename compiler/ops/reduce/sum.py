"""sum(axis, keepdims, exclude): integers wrap in their dtype; float16 adds in float32."""

from __future__ import annotations

import math
from typing import Any

from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.annotation.attach_simulated_quantize import as_input
from compiler.ops.nn.normalize import working
from compiler.ops.reduce.axes import ReduceAttrs, reduce_rel, reduced_axes
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    kind_of,
    with_args,
)
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    cast_if_needed,
    integers,
    require_fits,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.with_tables import with_tables
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind

sum_ = register_op(
    "sum",
    arg_names=("data",),
    attrs_type=ReduceAttrs,
    rel=reduce_rel("sum"),
    pattern=OpPattern.COMM_REDUCE,
)


@FNumpyCompute.register(sum_)
def sum_numpy(attrs: ReduceAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Over the named axes."""
    data = args[0]
    axes = reduced_axes("sum", data.ndim, attrs.axis, attrs.exclude)
    if data.dtype.kind == "f":
        total = working(data).sum(axis=axes, keepdims=attrs.keepdims)
    else:
        total = data.sum(axis=axes, keepdims=attrs.keepdims, dtype=data.dtype)
    return [total.astype(data.dtype, copy=False)]


def annotate_sum_of_narrow(
    ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext
) -> Expr | None:
    """Adds narrow integers into an accumulator."""
    if ctx.check_to_skip(ref_call) or kind_of(args[0]) is None:
        return None
    return QAnnotateExpr(with_args(ref_call, (as_input(args[0], ctx),)), QAnnotateKind.ACTIVATION)


FQAnnotateRewrite.register(sum_)(with_tables(annotate_sum_of_narrow))


@FQRealizeRewrite.register(sum_)
@with_tables
def sum_realize(ref_call: Call, args: tuple[Expr, ...], ctx: QuantizeContext) -> Expr | None:
    """The sum in the accumulator dtype, at the scale of its terms.

    Raises:
        IntegerOverflowError: so many terms that their sum may leave the accumulator.
    """
    (data,) = args
    attrs = ref_call.attrs
    assert isinstance(attrs, ReduceAttrs)
    if not isinstance(data, QRealizeIntExpr):
        return None
    shape = ref_call.args[0].tensor_type.concrete_shape
    data = to_scalar(data, len(shape), ctx.qconfig)
    axes = reduced_axes("sum", len(shape), attrs.axis, attrs.exclude)
    count = math.prod(shape[axis] for axis in axes)
    acc = ctx.qconfig.dtype_activation
    require_fits(count * data.bound, acc, ref_call)
    call = with_args(ref_call, (cast_if_needed(data, acc),))
    return integers(call, data.scale, acc, count * data.low, count * data.high)
