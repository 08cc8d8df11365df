"""nn.global_avg_pool2d: the mean of each channel; integers truncate the exact sum's quotient."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Args, Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ops.nn.average_pool import (
    annotate_average_pool,
    average_pool_scale,
    realize_average_pool,
)
from compiler.ops.nn.avg_pool2d import mean_of, widened
from compiler.ops.nn.pool import (
    GlobalPool2DAttrs,
    from_nchw,
    global_pool2d_rel,
    to_nchw,
)
from compiler.ops.rules.annotate import FQAnnotateRewrite, kind_of, unannotated, with_args
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.integer_calls import border
from compiler.ops.rules.layout import FConvertLayout, image_layout
from compiler.ops.rules.never_negative import FNeverNegative, all_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite, inner
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint, ZeroPoint, always
from compiler.qtypes.context import QuantizeContext

global_avg_pool2d = register_op(
    "nn.global_avg_pool2d",
    arg_names=("data",),
    attrs_type=GlobalPool2DAttrs,
    rel=global_pool2d_rel("nn.global_avg_pool2d"),
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(global_avg_pool2d)
def global_avg_pool2d_numpy(attrs: GlobalPool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Sums in float32 (float64 for float64) or int64."""
    data = to_nchw(args[0], attrs.layout)
    total = widened(data).sum(axis=(2, 3), keepdims=True)
    count = np.array(max(1, data.shape[2] * data.shape[3]))
    return [from_nchw(mean_of(total, count, data.dtype), attrs.layout)]


@FQPartitionRewrite.register(global_avg_pool2d)
def global_avg_pool2d_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr:
    """A border in front, always; the result is outside of any region."""
    return with_args(ref_call, (border(inner(args[0]), ctx.qconfig.dtype_input),))


@FQAnnotateRewrite.register(global_avg_pool2d)
def global_avg_pool2d_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Ends quantization for all nodes visited later, or pools like nn.avg_pool2d.

    ``stop_after_global_pool`` decides; True is Relay's behaviour.
    """
    if not ctx.qconfig.stop_after_global_pool:
        return annotate_average_pool(ref_call, args, ctx)
    if ctx.check_to_skip(ref_call) or kind_of(args[0]) is None:
        return None
    ctx.stopped = True
    return with_args(ref_call, (unannotated(args[0]),))


def _counts_of(call: Call) -> NDArray[Any]:
    layout = getattr(call.attrs, "layout", "NCHW")
    shape = call.args[0].tensor_type.concrete_shape
    return np.array([shape[layout.index("H")] * shape[layout.index("W")]])


FQRealizeRewrite.register(global_avg_pool2d)(realize_average_pool(_counts_of))
FQDomScale.register(global_avg_pool2d)(average_pool_scale(_counts_of))
FQZeroPoint.register(global_avg_pool2d)(always(ZeroPoint.CENTRES))


FNeverNegative.register(global_avg_pool2d)(all_positive)
FConvertLayout.register(global_avg_pool2d)(image_layout)


@FBody.register(global_avg_pool2d)
def global_avg_pool2d_body(step: Step, words: Words) -> Value:
    """The mean of height and width, 0 of no elements."""
    axes = tuple(sorted(step.attrs.layout.index(letter) for letter in "HW"))
    shape, dtype = shape_of(step.results[0]), step.results[0].type.dtype
    what = "mean" if all(shape_of(step.args[0])[axis] for axis in axes) else "sum"
    return words.word(what, step.args, shape, dtype, axis=axes, keepdims=True)
