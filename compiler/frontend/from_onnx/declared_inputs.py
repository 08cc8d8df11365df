"""declared_inputs: what a model says of its own inputs, before dimensions become numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass

import onnx

from compiler.frontend.from_onnx.model_file import read_model
from compiler.runtime.interface import Interface, Port


@dataclass(frozen=True, slots=True)
class DeclaredInput:
    """One graph input as the file declares it.

    Attributes:
        name: of the input.
        dtype: numpy's name of the element type; "" where the file leaves it open.
        dims: per axis a size, the name of a dimension, or "?" for one without a name.
    """

    name: str
    dtype: str
    dims: tuple[int | str, ...]

    @property
    def unknown_axes(self) -> tuple[int, ...]:
        """Axes that the file gives no size for."""
        return tuple(axis for axis, dim in enumerate(self.dims) if isinstance(dim, str))


def declared_inputs(source: str | os.PathLike[str] | bytes) -> tuple[DeclaredInput, ...]:
    """The inputs of a model that are not initializers, in the order of the file.

    Raises:
        OnnxImportError: the file cannot be read as ONNX.
    """
    return _inputs(read_model(source, kinds=()).graph)


def declared_interface(source: str | os.PathLike[str] | bytes) -> Interface:
    """Inputs that are not initializers, and outputs, in the order of the file.

    Raises:
        OnnxImportError: the file cannot be read as ONNX.
    """
    graph = read_model(source, kinds=()).graph
    taken, given = (
        tuple(Port(d.name, d.dtype or "float32", d.dims) for d in ports)
        for ports in (_inputs(graph), map(_declared, graph.output))
    )
    return Interface(taken, given)


def _inputs(graph: onnx.GraphProto) -> tuple[DeclaredInput, ...]:
    weights = {tensor.name for tensor in graph.initializer}
    return tuple(_declared(entry) for entry in graph.input if entry.name not in weights)


def _declared(entry: onnx.ValueInfoProto) -> DeclaredInput:
    tensor = entry.type.tensor_type
    dims: list[int | str] = [
        int(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim
    ]
    dtype = ""
    if tensor.elem_type in onnx.helper.get_all_tensor_dtypes():
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return DeclaredInput(entry.name, dtype, tuple(dims))
