"""The inputs of a graph as parameters: unknown dimensions get their values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import onnx

from compiler.errors import OnnxImportError, legal_names
from compiler.frontend.from_onnx.node import GraphValues, dtype_of, refuse_huge
from compiler.ir.expr import Var
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType

_NAMELESS: Final = frozenset(("", "?"))
"""Exporters write "?" for dimensions that differ."""


@dataclass(frozen=True, slots=True)
class InputShapes:
    """Sizes for the unknown dimensions of the graph inputs.

    Attributes:
        dims: sizes by the name of a dimension; "x:2" is axis 2 of input x, named or not.
        shapes: whole shapes by input; they go before ``dims``.
        keep_dynamic: leave what has no size as ``?``.
        batches: names of a batch, which is 1 on every axis where it has no other size.
    """

    dims: Mapping[str, int]
    shapes: Mapping[str, Sequence[int]]
    keep_dynamic: bool = False
    batches: frozenset[str] = frozenset()


def bind_inputs(graph: onnx.GraphProto, inputs: InputShapes, values: GraphValues) -> list[Var]:
    """A parameter for every input that is no initializer, bound under its name.

    Raises:
        OnnxImportError: a dimension without a value, or a value for none.
    """
    params: list[Var] = []
    infos = [info for info in graph.input if not values.is_initializer(info.name)]
    names = [info.name for info in infos]
    for name in inputs.shapes:
        if name not in names:
            raise OnnxImportError(
                f"a shape was given for {name!r}, which is not an input of the model",
                fix=legal_names(name, names),
            )
    known_dims = {d.dim_param for i in graph.input for d in i.type.tensor_type.shape.dim}
    for name in inputs.dims:
        if name not in known_dims and not _names_axis(name, graph):
            raise OnnxImportError(
                f"a value was given for dimension {name!r}, which no input of the model has",
                fix=legal_names(name, known_dims - _NAMELESS),
            )
    sequences = _sequences(graph)
    batches = _batch_names(info for info in infos if info.name not in sequences)
    inputs = replace(inputs, batches=batches)
    for info in infos:
        ty = _input_type(info, inputs, info.name in sequences)
        refuse_huge(ty, f"input {info.name!r}")
        var = Var(info.name, ty)
        var.set_checked_type(ty)
        values.bind(info.name, var)
        params.append(var)
    return params


def _batch_names(infos: Iterable[onnx.ValueInfoProto]) -> frozenset[str]:
    """Leading dimensions that are called a batch: states of layers have it on another axis."""
    names = {dim.dim_param for info in infos for dim in info.type.tensor_type.shape.dim[:1]}
    return frozenset(name for name in names if "batch" in name.casefold())


def _sequences(graph: onnx.GraphProto) -> set[str]:
    """Tensors whose leading dimension counts the steps of a recurrence, and not a batch."""
    return {
        node.input[0]
        for node in graph.node
        if node.op_type in ("RNN", "GRU", "LSTM")
        and node.input
        and not any(attribute.name == "layout" and attribute.i for attribute in node.attribute)
    }


def _input_type(info: onnx.ValueInfoProto, inputs: InputShapes, sequence: bool) -> TensorType:
    where = f"input {info.name!r}"
    if not info.type.HasField("tensor_type"):
        raise OnnxImportError("only tensors can be inputs", where=where)
    tensor = info.type.tensor_type
    dtype = dtype_of(tensor.elem_type, where)
    given = inputs.shapes.get(info.name)
    if not tensor.HasField("shape"):
        if given is None:
            given = _shape_by_axes(info.name, inputs)
        if given is None:
            raise OnnxImportError(
                "the shape of an input is not known, not even its rank",
                where=where,
                fix=f"give every axis a size: --dim {info.name}:0=… --dim {info.name}:1=…",
            )
        return TensorType(tuple(int(v) for v in given), dtype)
    declared = tensor.shape.dim
    if given is None:
        batch = None if sequence else 0
        dims = (_dim(d, axis, inputs, info.name, batch) for axis, d in enumerate(declared))
        return TensorType(tuple(dims), dtype)
    if len(declared) != len(given) or any(
        d.dim_value > 0 and d.dim_value != v  # 0 and -1 stand for an unknown size
        for d, v in zip(declared, given)
    ):
        raise OnnxImportError(
            f"shape {tuple(given)} does not fit the model's {_shape_text(declared)}",
            where=where,
            fix="the given shape must keep the model's fixed dimensions",
        )
    return TensorType(tuple(int(v) for v in given), dtype)


def _names_axis(key: str, graph: onnx.GraphProto) -> bool:
    """True for "x:2" where x is an input with such an axis, or without a shape at all."""
    name, colon, axis = key.rpartition(":")
    info = next((i for i in graph.input if i.name == name), None)
    if info is None or not colon or not axis.isdigit():
        return False
    tensor = info.type.tensor_type
    return not tensor.HasField("shape") or int(axis) < len(tensor.shape.dim)


def _shape_by_axes(name: str, inputs: InputShapes) -> tuple[int, ...] | None:
    """Shape of an input that declares none, where every axis from 0 on has a size."""
    sizes: list[int] = []
    while f"{name}:{len(sizes)}" in inputs.dims:
        sizes.append(int(inputs.dims[f"{name}:{len(sizes)}"]))
    return tuple(sizes) or None


def _dim(
    dim: onnx.TensorShapeProto.Dimension,
    axis: int,
    inputs: InputShapes,
    name: str,
    batch: int | None,
) -> Dim:
    by_axis = inputs.dims.get(f"{name}:{axis}")
    if dim.HasField("dim_value") and dim.dim_value > 0:
        if by_axis not in (None, dim.dim_value):
            raise OnnxImportError(
                f"dimension {axis} is {dim.dim_value} in the model, not {by_axis}",
                where=f"input {name!r}",
                fix="the given shape must keep the model's fixed dimensions",
            )
        return int(dim.dim_value)
    if by_axis is not None:
        return int(by_axis)
    if dim.dim_param in inputs.dims:
        return int(inputs.dims[dim.dim_param])
    if inputs.keep_dynamic:
        return AnyDim()
    # The leading dimension of a model's input is the batch; candidates are judged one by one.
    if axis == batch or dim.dim_param in inputs.batches:
        return 1
    if dim.HasField("dim_value") and dim.dim_value == 0:
        return 0  # such as a cache of keys that holds nothing yet
    named = dim.dim_param not in _NAMELESS
    title = repr(dim.dim_param) if named else "without a name"
    option = f"--dim {dim.dim_param if named else f'{name}:{axis}'}=…"
    raise OnnxImportError(
        f"dimension {axis} ({title}) has no value",
        where=f"input {name!r}",
        fix=f"give it with {option}",
    )


def _shape_text(dims: Sequence[onnx.TensorShapeProto.Dimension]) -> str:
    parts = [str(d.dim_value) if d.HasField("dim_value") else d.dim_param or "?" for d in dims]
    return f"({', '.join(parts)})"
