"""nn.max_pool2d: the largest value of each window; padding reads -inf or the dtype's minimum.
nn.global_max_pool2d: the largest value of each channel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.ty import Type
from compiler.lir.builder import LirBuilder, Reduction
from compiler.ops.nn.pool import (
    GlobalPool2DAttrs,
    Pool2DAttrs,
    from_nchw,
    global_pool,
    pool_loops,
    pool_windows,
    reduce_windows,
    to_nchw,
    windowed_pool,
)
from compiler.ops.reduce.reduction_loops import lowest
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import same_scale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.pass_through import (
    annotate_max_pool,
    keeps_integers,
    partition_pass_through,
    realize_max_pool,
)
from compiler.ops.rules.realize import FQRealizeRewrite

max_pool2d = windowed_pool("nn.max_pool2d")


@FNumpyCompute.register(max_pool2d)
def max_pool2d_numpy(attrs: Pool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN in a window gives NaN."""
    data = to_nchw(args[0], attrs.layout)
    out = pool_windows("nn.max_pool2d", attrs, data.shape[2], data.shape[3])
    lowest = -np.inf if data.dtype.kind == "f" else np.iinfo(data.dtype).min
    largest = reduce_windows(data, attrs, out, lowest, np.maximum)
    return [from_nchw(largest, attrs.out_layout or attrs.layout)]


FQPartitionRewrite.register(max_pool2d)(partition_pass_through)
FQAnnotateRewrite.register(max_pool2d)(annotate_max_pool)
FQRealizeRewrite.register(max_pool2d)(realize_max_pool)
keeps_integers(max_pool2d, scale=same_scale)


@FLower.register(max_pool2d)
def max_pool2d_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """Padding reads the lowest value."""
    (data,) = inputs
    attrs = Pool2DAttrs.of(call)
    least = lowest(data.dtype)
    return [pool_loops(b, data, attrs, out_types[0].concrete_shape, Reduction("max", least), least)]


@FBody.register(max_pool2d)
def max_pool2d_body(step: Step, words: Words) -> Value | None:
    """Of NCHW."""
    attrs, layout = step.attrs, step.attrs.layout
    out_layout = attrs.out_layout or layout
    if layout == out_layout == "NCHW":
        return None
    data = words.transpose(step.args[0], [layout.index(c) for c in "NCHW"])
    shape = [shape_of(step.results[0])[out_layout.index(c)] for c in "NCHW"]
    how = {name: value for name, value in attrs.items() if not name.endswith("layout")}
    found = words.word(step.name, [data], shape, data.type.dtype, **how)
    return words.transpose(found, ["NCHW".index(c) for c in out_layout])


# ---- global_max_pool2d -------------------------------------------------------------------------

global_max_pool2d = global_pool("nn.global_max_pool2d")


@FNumpyCompute.register(global_max_pool2d)
def global_max_pool2d_numpy(attrs: GlobalPool2DAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """NaN in a channel gives NaN."""
    largest = to_nchw(args[0], attrs.layout).max(axis=(2, 3), keepdims=True)
    return [from_nchw(largest, attrs.layout)]


@FBody.register("nn.global_max_pool2d")
def global_max_pool2d_body(step: Step, words: Words) -> Value:
    """The largest of height and width."""
    axes = sorted(step.attrs.layout.index(letter) for letter in "HW")
    return words.reduce("max", step.args[0], axes)
