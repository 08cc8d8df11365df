"""declared_interface: what a model says of itself, before dimensions become numbers."""

from __future__ import annotations

import logging
import os
from typing import Final

import onnx

from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.graph import abbreviated
from compiler.frontend.from_onnx.model_file import read_model
from compiler.frontend.from_onnx.values import dtype_of
from compiler.runtime.interface import Interface, Port

log = logging.getLogger("compiler.frontend")

_SHOWN: Final = 12
"""Labels in a message."""


def declared_interface(source: str | os.PathLike[str] | bytes) -> Interface:
    """Inputs that are not initializers, and outputs, in the order of the file; where that leaves a
    type open it is float32. A warning names the texts of labels that are numbers here.

    Raises:
        OnnxImportError: the file cannot be read as ONNX, or an input or output has an element type
            that modules do not have.
    """
    graph = read_model(source, kinds=()).graph
    for entry in graph.output:
        if entry.doc_string:
            texts = abbreviated(entry.doc_string.split(", "), _SHOWN)
            log.warning("output %r is a place among the labels %r", entry.name, texts)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in weights]
    for entry in inputs:
        if entry.type.tensor_type.elem_type == onnx.TensorProto.STRING:
            raise OnnxImportError(
                f"column {entry.name!r} holds texts, and a quantized model takes numbers",
                where=f"input {entry.name!r}",
                fix="encode texts in front of the model: export the steps of the pipeline behind "
                "the encoder (onnx.utils.extract_model, or the later steps of scikit-learn), and "
                "give it what the encoder gives",
            )
    taken = tuple(map(_port, inputs))
    return Interface(taken, tuple(map(_port, graph.output)))


def _port(entry: onnx.ValueInfoProto) -> Port:
    tensor = entry.type.tensor_type
    dims: list[int | str] = [
        int(d.dim_value) if d.dim_value > 0 else d.dim_param or "?" for d in tensor.shape.dim
    ]
    dtype = "float32"
    if tensor.elem_type in onnx.helper.get_all_tensor_dtypes():
        dtype = dtype_of(tensor.elem_type, f"tensor {entry.name!r}")
    return Port(entry.name, dtype, tuple(dims))
