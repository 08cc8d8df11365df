"""Qualcomm's QNN (HTP): uint16 for activations, int8 for weights.

Sources: "QNN Execution Provider" of onnxruntime's documentation (operators, static shapes, dtypes
of MatMul), onnxruntime's ``get_qnn_qdq_config`` (scales of Sigmoid and Tanh, weights of MatMul, one
dtype for all operands of an operator).
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from compiler.targets.npu import rules
from compiler.targets.npu.rules import WEIGHTED, Profile, QdqFile, told

_OPERATORS: Final = (
    "Abs Add And ArgMax ArgMin Asin Atan AveragePool BatchNormalization Clip Concat Conv "
    "ConvTranspose Cos DepthToSpace Div Elu Equal Exp Expand Flatten Floor Gather Gelu Gemm "
    "GlobalAveragePool Greater GreaterOrEqual GridSample HardSwish Identity InstanceNormalization "
    "LRN LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization MatMul Max "
    "MaxPool Min Mul Neg Not Or PRelu Pad Pow ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "Relu Reshape Resize Round Sigmoid Sign Sin Slice Softmax SpaceToDepth Split Sqrt Squeeze Sub "
    "Tanh Tile TopK Transpose Unsqueeze Where"
)
_RANGES: Final = {
    ("Sigmoid", "uint16"): (2.0**-16, 0),
    ("Sigmoid", "int16"): (2.0**-15, 0),
    ("Tanh", "uint16"): (2.0**-15, 1 << 15),
    ("Tanh", "int16"): (2.0**-15, 0),
}
"""Scale and zero point that results of 16 bits have."""
_CHANNELS: Final = {"Conv": 0, "ConvTranspose": 1, "Gemm": 0}
"""Axis of the scales of weights; other operators have one scale."""


def _fixed_ranges(file: QdqFile) -> Iterator[tuple[str, str]]:
    for node in file.operators("Sigmoid", "Tanh"):
        written = file.written(node.output[0])
        wanted = None if written is None else _RANGES.get((node.op_type, written.dtype))
        if written is None or wanted is None:
            continue
        if written.one != wanted[0] or written.zero is None or int(written.zero) != wanted[1]:
            yield told(node), f"its result has not scale {wanted[0]:g} and zero point {wanted[1]}"


def _channels(file: QdqFile) -> Iterator[tuple[str, str]]:
    for node in file.operators(*WEIGHTED):
        weight = file.read(node.input[1])
        if weight is None or weight.scale is None or weight.scale.size == 1:
            continue
        axis = _CHANNELS.get(node.op_type)
        if node.op_type == "Gemm" and not file.attribute(node, "transB", 0):
            axis = 1
        if weight.axis != axis:
            yield told(node), "its weights have several scales, or along another axis"


def _one_dtype(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Operands and result of what computes no products have one dtype; a product of two computed
    tensors has at most one of 16 bits."""
    for node in file.operators():
        read = [file.read(name) for name in node.input]
        computed = [one.dtype for one in read if one is not None and one.held is None]
        written = file.written(node.output[0])
        if node.op_type == "MatMul" and computed.count("uint16") > 1:
            yield told(node), "it multiplies two tensors of 16 bits"
        found = {*computed, *(() if written is None else (written.dtype,))}
        if node.op_type not in WEIGHTED and len(found) > 1:
            yield told(node), f"its tensors are of {' and '.join(sorted(found))}"


def _opset_of_bits(file: QdqFile) -> Iterator[tuple[str, str]]:
    """16 bits are of opset 21, or of com.microsoft."""
    version = {one.domain: one.version for one in file.model.opset_import}.get("", 1)
    for node, levels in file.borders():
        if levels.dtype.endswith("16") and not node.domain and version < 21:
            yield told(node), f"opset {version} has no {levels.dtype}"


QNN: Final = Profile(
    "qnn",
    MappingProxyType(
        {
            # Of 16: sums of large layers stay within int32.
            "nbit_input": 14,
            "dtype_input": "int16",
            # Zero points gain nothing at 16 bits.
            "activation_scheme": "unsigned",
            "keep_output_wide": False,
            "layers": {},
        }
    ),
    MappingProxyType(
        {
            "opset": rules.opset(11, 21),
            "static shapes": rules.static_shapes,
            "operators": rules.operators(_OPERATORS),
            "constant scales": rules.constant_scales,
            "one scale": rules.one_scale,
            "opset of 16 bits": _opset_of_bits,
            "dtypes": rules.dtypes({"uint16": None, "uint8": None}, ("int8", "uint8")),
            "weights by channel": _channels,
            "biases": rules.biases(("int32",)),
            "quantized": rules.quantized,
            "one dtype": _one_dtype,
            "moves keep the scale": rules.moves_keep_scale,
            "sigmoid and tanh": _fixed_ranges,
        }
    ),
)
