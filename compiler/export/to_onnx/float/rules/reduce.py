"""Reductions."""

from __future__ import annotations

import math

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.ordered import extreme_along
from compiler.ir.dataflow import Step
from compiler.ops.reduce.axes import axes_of

_SAME = {
    "sum": "ReduceSum",
    "mean": "ReduceMean",
    "prod": "ReduceProd",
    "logsumexp": "ReduceLogSumExp",
}


@FToOnnx.register(*_SAME)
def same(step: Step, e: Emitter) -> str:
    """The reduction of ONNX that is the same."""
    op_type = _SAME[step.name]
    axes = axes_of(step)
    inputs = [e.name(step.args[0])]
    # ONNX reads "no axes" as all of them.
    if not axes:
        return e.node("Identity", inputs)
    if op_type == "ReduceSum":  # whose axes are an input in opset 17
        return e.node(op_type, [*inputs, e.ints(axes)], keepdims=int(step.attrs.keepdims))
    return e.node(op_type, inputs, axes=axes, keepdims=int(step.attrs.keepdims))


@FToOnnx.register("max", "min", "all", "any")
def extremum(step: Step, e: Emitter) -> str:
    """The largest or the smallest along the axes; of bools as numbers 0 and 1: ONNX compares bools
    from opset 20 on only."""
    data = step.args[0]
    dtype = step.args[0].type.dtype
    if dtype != "bool":
        return extremum_in(step, e, dtype)
    numbers = Emitter(e.writer)
    numbers.bind(data, e.writer.cast(e.name(data), "int32"))
    return e.writer.cast(extremum_in(step, numbers, "int32"), "bool")


def extremum_in(step: Step, e: Emitter, dtype: str) -> str:
    """The extremum of an argument that the emitter holds in ``dtype``."""
    axes = axes_of(step)
    data = step.args[0]
    if not axes:
        return e.node("Identity", [e.name(data)])
    # Only int64 needs the shape, which may be open in a float model.
    shape = data.type.concrete_shape if dtype == "int64" else ()
    largest = step.name in ("max", "any")
    keepdims = bool(step.attrs.keepdims)
    return extreme_along(e, largest, e.name(data), shape, axes, keepdims, dtype)


@FToOnnx.register("argmax", "argmin")
def arg_reduce(step: Step, e: Emitter) -> str:
    """ArgMax or ArgMin of one axis; of all axes after flattening."""
    found = position_in(step, e, step.args[0].type.dtype)
    dtype = step.result.type.dtype
    if dtype == "int64":
        return found
    return e.writer.cast(found, dtype)


def position_in(step: Step, e: Emitter, dtype: str) -> str:
    """``argmax`` or ``argmin``, as int64, of an argument that the emitter holds in ``dtype``.

    Raises:
        OnnxExportError: several axes are reduced, but not all.
    """
    axes = axes_of(step)
    data = step.args[0]
    attrs = step.attrs
    name = e.name(data)
    keepdims = int(attrs.keepdims)
    flat = len(axes) != 1
    # Only int64 and several axes need the shape, which may be open in a float model.
    if dtype == "int64" or flat:
        shape = data.type.concrete_shape
    else:
        shape = ()
    if flat:
        if len(axes) != len(data.type.shape):
            raise e.refuse(step, f"axes {axes} of rank {len(data.type.shape)}")
        name = e.node("Reshape", [name, e.ints([-1])])
        axes = [0]
        shape = (math.prod(shape),)
    op_type = "ArgMax" if step.name == "argmax" else "ArgMin"
    if dtype == "int64":
        # Through the element itself, which ``ordered`` finds rightly.
        best = extreme_along(e, step.name == "argmax", name, shape, axes, True, dtype)
        op_type = "ArgMax"
        name = e.writer.cast(e.node("Equal", [name, best]), "int32")
    found = e.node(
        op_type,
        [name],
        axis=axes[0],
        keepdims=keepdims,
        select_last_index=int(attrs.select_last_index),
    )
    if flat:
        return e.node("Reshape", [found, e.ints(step.result.type.concrete_shape)])
    return found
