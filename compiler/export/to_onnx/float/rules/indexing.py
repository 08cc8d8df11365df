"""Slices, gathers and ordering."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.emitter import Emitter, FToOnnx
from compiler.export.to_onnx.ordered import limited
from compiler.ir.dataflow import Step, Value
from compiler.ops.transform.scatter import is_of_rows
from compiler.ops.transform.strided_slice import slices_of


@FToOnnx.register("strided_slice")
def strided_slice(step: Step, e: Emitter) -> str:
    """Slice; sizes become ends."""
    shape = step.args[0].type.concrete_shape
    cuts = slices_of(shape, step.attrs)
    starts = []
    ends = []
    for axis, (begin, end, stride) in cuts.items():
        first, last, _ = slice(begin, end, stride).indices(shape[axis])
        starts.append(first)
        ends.append(last if last >= 0 else -shape[axis] - 1)
    strides = [stride for _, _, stride in cuts.values()]
    inputs = [e.name(step.args[0]), *(e.ints(v) for v in (starts, ends, [*cuts], strides))]
    return e.node("Slice", inputs)


def _indices(value: Value, size: int, mode: str, e: Emitter) -> str:
    """Indices brought into range the way ``mode`` says, in a dtype that ONNX takes.

    onnxruntime refuses what is too large and counts what is negative from the end.
    """
    last = max(size - 1, 0)
    if value.data is not None:
        data = value.data.astype(np.int64)
        return e.writer.constant(data % size if mode == "wrap" else np.clip(data, 0, last))
    name, dtype = _as_index(value, e)
    if mode == "wrap":
        return e.node("Mod", [name, e.writer.constant(np.asarray(size, dtype))], fmod=0)
    return limited(e, name, 0, last, dtype)


def _as_index(value: Value, e: Emitter) -> tuple[str, str]:
    """An integer tensor in int32 where that holds it, else in int64, and which of them."""
    own = value.type.dtype
    if own in ("int64", "uint32", "uint64"):
        dtype = "int64"
    else:
        dtype = "int32"
    name = e.name(value)
    return (name if own == dtype else e.writer.cast(name, dtype)), dtype


@FToOnnx.register("take")
def take(step: Step, e: Emitter) -> str:
    """Gather; without an axis from the flattened data."""
    data, indices = step.args
    name = e.name(data)
    axis = step.attrs.axis
    batch = step.attrs.batch_dims
    if batch not in (0, axis):
        raise e.refuse(step, f"batch_dims {batch} in front of axis {axis}")
    shape = data.type.concrete_shape
    if axis is None:
        name = e.node("Reshape", [name, e.ints([-1])])
        axis = 0
        shape = (data.type.num_elements,)
    index = _indices(indices, shape[axis % len(shape)], step.attrs.mode, e)
    if batch:
        if indices.data is None and _as_index(indices, e)[1] != "int64":
            index = e.writer.cast(index, "int64")
        tuples = e.node("Unsqueeze", [index, e.ints([-1])])
        return e.node("GatherND", [name, tuples], batch_dims=batch)
    return e.node("Gather", [name, index], axis=axis)


@FToOnnx.register("gather")
def gather(step: Step, e: Emitter) -> str:
    """GatherElements of indices that are clipped, as ours are."""
    data, indices = step.args
    inside = _indices(indices, data.type.concrete_shape[step.attrs.axis], "clip", e)
    return e.node("GatherElements", [e.name(data), inside], axis=step.attrs.axis)


@FToOnnx.register("gather_nd")
def gather_nd(step: Step, e: Emitter) -> str:
    """GatherND of clipped indices; ours has the index vector along the first axis."""
    data, indices = step.args
    batch = step.attrs.batch_dims
    shape = indices.type.concrete_shape
    name, dtype = _as_index(indices, e)
    sizes = np.asarray(data.type.concrete_shape[batch : batch + shape[0]])
    last = np.maximum(sizes - 1, 0).reshape(-1, *[1] * (len(shape) - 1))
    name = limited(e, name, np.asarray(0), last, dtype)
    if dtype != "int64":
        name = e.writer.cast(name, "int64")
    if len(shape) > 1:
        name = e.node("Transpose", [name], perm=[*range(1, len(shape)), 0])
    return e.node("GatherND", [e.name(data), name], batch_dims=batch)


@FToOnnx.register("scatter_nd")
def scatter_nd(step: Step, e: Emitter) -> str | None:
    """Rows by ScatterElements, which runtimes compute in order; without updates the data; other
    forms in words.

    ONNX leaves open which of several updates of one place stays. The last one has the largest
    number, so the largest number of a place says which row to gather.
    """
    data, indices, updates = step.args
    if not is_of_rows(data.type.concrete_shape, indices.type.concrete_shape):
        return None
    (rows, width), (count, _) = data.type.concrete_shape, updates.type.concrete_shape
    if not count:
        return e.node("Identity", [e.name(data)])
    places = e.node("Reshape", [_indices(indices, rows, "clip", e), e.ints([count])])
    sides = [e.name(data), e.name(updates)]
    mode = step.attrs.mode
    if mode == "update":
        old, new = (e.writer.constant(k) for k in (np.arange(rows), rows + np.arange(count)))
        order = e.node("ScatterElements", [old, places, new], axis=0, reduction="max")
        return e.node("Gather", [e.node("Concat", sides, axis=0), order], axis=0)
    places = e.node("Unsqueeze", [places, e.ints([1])])
    places = e.node("Expand", [places, e.ints([count, width])])
    return e.node("ScatterElements", [sides[0], places, sides[1]], axis=0, reduction=mode)


@FToOnnx.register("topk")
def topk(step: Step, e: Emitter) -> list[str]:
    """TopK, values and indices as asked."""
    attrs = step.attrs
    values, indices = e.writer.nodes(
        "TopK",
        [e.name(step.args[0]), e.ints([attrs.k])],
        2,
        axis=attrs.axis,
        largest=int(not attrs.is_ascend),
    )
    if attrs.ret_type == "values":
        return [values]
    index_type = step.results[-1].type.dtype
    if index_type == "int64":
        indices = indices
    else:
        indices = e.writer.cast(indices, index_type)
    if attrs.ret_type == "indices":
        return [indices]
    return [values, indices]
