"""read_kernels: what this onnxruntime adds up for each product of a file, from its optimized graph.

    file                                            optimized graph        kind
    DQ, DQ → Conv → Q                               QLinearConv            INTEGER
    DQ, DQ (bias of a scale of its own) → Conv      FusedConv              FLOAT
    DQ of a weight → MatMul of floats               MatMulNBits            BLOCKS

The optimizer keeps the name of a node within the name of the one in its place.
Source: onnxruntime, SessionOptions.optimized_model_filepath; docs/ContribOperators.md, MatMulNBits.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import onnx

from compiler.frontend.from_onnx.model_file import within
from compiler.judgement.nodes import attribute
from compiler.targets.ort.session import optimized_model

Kind = Literal["integer", "blocks", "float"]
INTEGER: Final = "integer"
BLOCKS: Final = "blocks"
FLOAT: Final = "float"

_INTEGER_OPERATORS: Final = frozenset(
    (
        "ConvInteger",
        "DynamicQuantizeMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QGemm",
        "QLinearConv",
        "QLinearConvTranspose",
        "QLinearMatMul",
    )
)
_INT8_DATA: Final = 4
"""Accuracy level of a MatMulNBits that rounds its data to int8."""
_MARK: Final = re.compile(r"#(\d+)#")


def read_kernels(model: onnx.ModelProto) -> dict[str, Kind]:
    """Return the kind of the kernel by the first output of each node that the optimizer keeps.

    Raises:
        CodegenError: onnxruntime refuses the model.
    """
    marked = onnx.ModelProto()
    marked.CopyFrom(model)
    outputs = {}
    for index, node in enumerate(within(marked.graph, onnx.NodeProto)):
        node.name = f"#{index}#"
        outputs[index] = next(iter(node.output), "")
    kernels: dict[str, Kind] = {}
    for node in within(optimized_model(marked).graph, onnx.NodeProto):
        for index in _MARK.findall(node.name):
            kernels[outputs[int(index)]] = _kind_of(node)
    return kernels


def _kind_of(node: onnx.NodeProto) -> Kind:
    if node.op_type in _INTEGER_OPERATORS:
        return INTEGER
    if node.op_type == "MatMulNBits" and attribute(node, "accuracy_level", 0) == _INT8_DATA:
        return BLOCKS
    return FLOAT
