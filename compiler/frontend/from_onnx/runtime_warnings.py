"""What onnxruntime computes otherwise than an ONNX file says: saturated products, lost zeros.

On x86 processors without VNNI onnxruntime's kernels for uint8 by int8 multiply with ``vpmaddubsw``,
which adds two products in 16 bits and saturates: 255 * 127 + 255 * 127 becomes 32767. onnxruntime
takes these kernels for int8 activations too where a graph has QuantizeLinear and DequantizeLinear
around float operators (QDQ). Weights in [-64, 64] never saturate (2 * 255 * 64 < 2^15), nor do the
kernels for two operands of one type. Measured with onnxruntime 1.31 on an emulated AVX2 processor.
Source: onnxruntime, "Quantize ONNX models", section on U8S8; its session option
``session.x64quantprecision``.

Its optimizer Pad_Fusion makes the zeros that a Pad puts in front of a MaxPool padding of that,
which no maximum sees: where all values of a window are negative, it is another one (1.31).
"""

from __future__ import annotations

import os

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from compiler.frontend.from_onnx.graph import abbreviated
from compiler.frontend.from_onnx.model_file import read_model, within
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS

LARGEST_SAFE_WEIGHT = 64
"""Twice this by 255 fits in 16 bits."""


_INTEGER_PRODUCTS = {
    "MatMulInteger": (0, 1, 2, 3),
    "QLinearMatMul": (0, 3, 2, 5),
    "QLinearConv": (0, 3, 2, 5),
    "QGemm": (0, 3, 2, 5),
    "MatMulIntegerToFloat": (0, 1, 4, 5),
    "QAttention": (0, 1, 6, 7),
}
"""Where an operator has its activations, the weights, and the zero points of both."""
# Operators that make uint8 of float activations themselves, and their weights.
_DYNAMIC_PRODUCTS = {"DynamicQuantizeMatMul": (1,), "DynamicQuantizeLSTM": (1, 2)}
_FLOAT_PRODUCTS = ("Conv", "MatMul", "Gemm")
_CONVOLUTIONS = ("Conv", "QLinearConv")
_NEVER_NEGATIVE = ("Relu", "Sigmoid", "HardSigmoid", "Softmax", "Softplus", "Abs", "Exp")
_SHOWN = 3


def runtime_warnings(source: str | os.PathLike[str] | bytes) -> tuple[str, ...]:
    """What a user of onnxruntime has to know of the file, one sentence per remedy; mostly none.

    Args:
        source: path of an ONNX file, or its content.
    Raises:
        OnnxImportError: the file cannot be read as ONNX.
    """
    graph = read_model(source, kinds=(TensorProto.INT8,)).graph
    found: list[str] = []
    reversed_convolutions: list[str] = []
    padded: list[str] = []
    for part in within(graph, onnx.GraphProto):
        values = _Values(part)
        for node in part.node:
            name = node.name or (node.output[0] if node.output else node.op_type)
            if values.saturates(node):
                found.append(name)
            elif values.convolves_int8_by_uint8(node):
                reversed_convolutions.append(name)
            elif values.sees_zeros(node):
                padded.append(name)
    warnings = []
    if found:
        warnings.append(
            f"{_told(found)}; set the session option session.x64quantprecision=1 there, or "
            "quantize with reduce_range=True"
        )
    if reversed_convolutions:
        warnings.append(f"{_told(reversed_convolutions)}; give ConvInteger uint8 activations")
    if padded:
        warnings.append(
            "onnxruntime computes something else from this file than it says: it takes the zeros "
            "of a Pad in front of a MaxPool for padding "
            f"({abbreviated(padded, _SHOWN)}); qsearch does not, nor "
            'does onnxruntime with InferenceSession(…, disabled_optimizers=["Pad_Fusion"])'
        )
    return tuple(warnings)


def _told(names: list[str]) -> str:
    return (
        "on x86 processors without VNNI (AVX2 only) onnxruntime may compute something else from "
        "this file than qsearch: its 8 bit kernels saturate sums of two products "
        f"({abbreviated(names, _SHOWN)})"
    )


class _Values:
    """Initializers and producers of one graph."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._constants = {tensor.name: tensor for tensor in graph.initializer}
        self._types = {
            info.name: info.type.tensor_type.elem_type
            for info in (*graph.input, *graph.value_info, *graph.output)
        }
        self._producers = {name: node for node in graph.node for name in node.output}
        for node in graph.node:
            if node.op_type == "Constant":
                for attribute in node.attribute:
                    if attribute.name == "value":
                        self._constants[node.output[0]] = attribute.t

    def saturates(self, node: onnx.NodeProto) -> bool:
        """Its kernel multiplies uint8 by int8 weights that are large enough."""
        if node.op_type in _DYNAMIC_PRODUCTS:
            weights = (_input(node, place) for place in _DYNAMIC_PRODUCTS[node.op_type])
            return any(self._is_large_int8(name, "") for name in weights)
        if node.op_type in _INTEGER_PRODUCTS:
            places = _INTEGER_PRODUCTS[node.op_type]
            data, weight, data_zero, zero = (_input(node, place) for place in places)
            if self._dtype(data, data_zero) != TensorProto.UINT8:
                return False
        elif node.op_type in _FLOAT_PRODUCTS and node.domain in STANDARD_DOMAINS:
            data_node, weight_node = (self._dequantized(_input(node, i)) for i in (0, 1))
            if data_node is None or weight_node is None:
                return False
            dtype = self._dtype(_input(data_node, 0), _input(data_node, 2))
            weight, zero = _input(weight_node, 0), _input(weight_node, 2)
            if dtype not in (TensorProto.UINT8, TensorProto.INT8):
                return False
        else:
            return False
        if node.op_type in _CONVOLUTIONS and self._is_depthwise(node, weight):
            return False
        return self._is_large_int8(weight, zero)

    def convolves_int8_by_uint8(self, node: onnx.NodeProto) -> bool:
        """ConvInteger has its operands the other way round in the kernel."""
        if node.op_type != "ConvInteger":
            return False
        data = self._dtype(_input(node, 0), _input(node, 2))
        weight = self._dtype(_input(node, 1), _input(node, 3))
        return (data, weight) == (TensorProto.INT8, TensorProto.UINT8)

    def sees_zeros(self, node: onnx.NodeProto) -> bool:
        """A MaxPool of what a Pad puts zeros around, and that may be negative."""
        pad = self._producers.get(_input(node, 0))
        if node.op_type != "MaxPool" or pad is None or pad.op_type != "Pad":
            return False
        given = {a.name: helper.get_attribute_value(a) for a in pad.attribute}
        value = self._constants.get(_input(pad, 2))
        if given.get("mode", b"constant") != b"constant" or given.get("value", 0.0) != 0:
            return False
        if _input(pad, 2) and (value is None or value.data_location == TensorProto.EXTERNAL):
            return False  # nobody knows it
        if value is not None and numpy_helper.to_array(value).any():
            return False
        source = self._producers.get(_input(pad, 0))
        return source is None or source.op_type not in _NEVER_NEGATIVE

    def _dequantized(self, name: str) -> onnx.NodeProto | None:
        node = self._producers.get(name)
        return node if node is not None and node.op_type == "DequantizeLinear" else None

    def _dtype(self, name: str, zero_point: str) -> int:
        """ONNX's number of the element type of a tensor or of its zero point; 0 if unknown."""
        for each in (zero_point, name):
            if each in self._constants:
                return int(self._constants[each].data_type)
            producer = self._producers.get(each)
            if producer is not None and producer.op_type == "DynamicQuantizeLinear":
                return TensorProto.UINT8
            if producer is not None and producer.op_type == "QuantizeLinear":
                zero = self._constants.get(_input(producer, 2))
                return TensorProto.UINT8 if zero is None else int(zero.data_type)
            if self._types.get(each):
                return int(self._types[each])
        return TensorProto.UNDEFINED

    def _is_large_int8(self, name: str, zero_point: str) -> bool:
        """int8 and not known to lie in [-64, 64]."""
        tensor = self._constants.get(name)
        if tensor is None:
            return self._dtype(name, zero_point) == TensorProto.INT8
        if tensor.data_type != TensorProto.INT8:
            return False
        values = numpy_helper.to_array(tensor).astype(np.int16)
        return bool(np.abs(values).max(initial=0) > LARGEST_SAFE_WEIGHT)

    def _is_depthwise(self, node: onnx.NodeProto, weight: str) -> bool:
        """One channel in and one out per group: another kernel, which adds up in 32 bits."""
        tensor = self._constants.get(weight)
        groups = next((a.i for a in node.attribute if a.name == "group"), 1)
        return tensor is not None and list(tensor.dims[:2]) == [groups, 1]


def _input(node: onnx.NodeProto, place: int) -> str:
    return node.input[place] if place < len(node.input) else ""
