"""declared_interface: what a model says of itself, before dimensions become numbers."""

from __future__ import annotations

import logging
import os
from typing import Final

import onnx

from compiler.errors import OnnxImportError
from compiler.frontend.cut_graph import Graph
from compiler.frontend.from_onnx.model_file import read_model
from compiler.frontend.from_onnx.node import dtype_of
from compiler.runtime.interface import Interface, Port
from compiler.text_output import abbreviated

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
    model = read_model(source, kinds=())
    graph = model.graph
    for entry in graph.output:
        if entry.doc_string:
            texts = abbreviated(entry.doc_string.split(", "), _SHOWN)
            log.warning("output %r is a place among the labels %r", entry.name, texts)
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [entry for entry in graph.input if entry.name not in weights]
    if columns := [entry.name for entry in inputs if _is_text(entry.type)]:
        numbers = [entry.name for entry in inputs if not _is_text(entry.type)]
        raise _texts_refused(model, columns, numbers)
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


_LAYOUT: Final = ("Identity", "Reshape", "Concat", "Squeeze", "Unsqueeze", "Flatten", "Transpose")
"""Operators that give texts for texts."""


def _is_text(kind: onnx.TypeProto) -> bool:
    return bool(kind.tensor_type.elem_type == onnx.TensorProto.STRING)


def _texts_refused(model: onnx.ModelProto, texts: list[str], numbers: list[str]) -> OnnxImportError:
    """Return the error that names columns of texts, and the calls that cut off their encoders."""
    graph = Graph(model)
    held = set(texts)
    encoded = list[str]()
    for node in graph.nodes:
        if held.isdisjoint(node.input):
            continue
        for name in node.output:
            kind = graph.types.get(name)
            if kind is None:
                text = node.op_type in _LAYOUT
            else:
                text = _is_text(kind)
            held.update([name] if text else [])
            encoded += [] if text else [name]
    outputs = [name for name in graph.outputs if name not in encoded]
    columns = ", ".join(map(repr, texts))
    verb = "hold" if len(texts) > 1 else "holds"
    return OnnxImportError(
        f"column{'s' * (len(texts) > 1)} {columns} {verb} texts, and a quantized model takes "
        "numbers",
        where=f"input {texts[0]!r}",
        fix="encode texts in front of the model: in Python, onnx.utils.extract_model(M, "
        f"'encoders.onnx', {texts}, {encoded}) writes the encoders, and "
        f"onnx.utils.extract_model(M, 'numbers.onnx', {[*encoded, *numbers]}, {outputs}) the "
        "model behind them; its data are what the encoders give",
    )
