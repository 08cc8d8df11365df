"""Ryzen AI: int8 for activations and weights, scales that are powers of two (AMD's XINT8).

Sources: "Model Compatibility" of the Ryzen AI documentation (opset, operators), the table of INT8
operators of Vitis AI 6.2, "Power-of-Two Scales (XINT8) Quantization" of AMD Quark's documentation,
and Quark's refinement of positions for the compiler (shift_cut, shift_bias, shift_read and
shift_write). A position is the number of fractional bits: minus the exponent of the scale.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import MappingProxyType
from typing import Final

from compiler.targets.npu import rules
from compiler.targets.npu.rules import Levels, Profile, QdqFile, told

_OPERATORS: Final = (
    "Abs Add And AveragePool BatchNormalization Clip Concat Conv ConvTranspose DepthToSpace Div "
    "Flatten Gather Gemm GlobalAveragePool GlobalMaxPool HardSigmoid HardSwish Identity LeakyRelu "
    "MatMul Max MaxPool Min Mul Pad PRelu ReduceMean Relu Reshape Resize Sigmoid Slice Softmax "
    "SpaceToDepth Split Squeeze Sub Tanh Transpose Unsqueeze Upsample"
)
_SHIFT_CUT: Final = 0, 16
_MOST_SHIFT_BIAS: Final = 15
_ACCUMULATOR: Final = 24
_SHIFT_READ: Final = 0, 7
_SHIFT_WRITE: Final = {"Add": (-7, 25), "Mul": (0, 32)}


def _position(levels: Levels | None) -> int | None:
    """Fractional bits; None where the scale is not one power of two."""
    if levels is None or levels.one is None or math.frexp(levels.one)[0] != 0.5:
        return None
    return 1 - math.frexp(levels.one)[1]


def _power_of_two(file: QdqFile) -> Iterator[tuple[str, str]]:
    """All scales are one power of two for a tensor."""
    for node, levels in file.borders():
        if _position(levels) is None:
            yield told(node), "its scale is not one power of two"


def _shift_cut(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Check the bits by which sums of products are shifted to become the result."""
    for node in file.operators("Conv", "Gemm"):
        read = [_position(file.read(name)) for name in node.input[:2]]
        out = _position(file.written(node.output[0]))
        if out is None or None in read:
            continue
        cut = sum(one for one in read if one is not None) - out
        if not _SHIFT_CUT[0] <= cut <= _SHIFT_CUT[1]:
            yield told(node), f"its sums are shifted by {cut} bits, not {_SHIFT_CUT}"
        bias = _position(file.read(node.input[2])) if len(node.input) > 2 else None
        shift = None if bias is None else cut + out - bias
        least = min(0, 8 + cut - _ACCUMULATOR)
        if shift is not None and not least <= shift <= _MOST_SHIFT_BIAS:
            yield told(node), f"its bias is shifted by {shift} bits, not {least} to 15"


def _elementwise(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Check the bits by which operands are brought to one position, and the result from it."""
    for node in file.operators("Add", "Mul"):
        found = [_position(file.read(name)) for name in node.input]
        out = _position(file.written(node.output[0]))
        read = [one for one in found if one is not None]
        if out is None or len(read) < len(found):
            continue
        between = max(read) - min(read)
        if node.op_type == "Add" and between > _SHIFT_READ[1]:
            yield told(node), f"its operands are {between} bits apart, not {_SHIFT_READ}"
        write = (min(read) if node.op_type == "Add" else sum(read)) - out
        least, most = _SHIFT_WRITE[node.op_type]
        if not least <= write <= most:
            yield told(node), f"its result is shifted by {write} bits, not {least} to {most}"


RYZENAI: Final = Profile(
    "ryzenai",
    MappingProxyType(
        {
            "dtype_input": "int8",
            "nbit_input": 8,
            "requantization": "power_of_two",
            "activation_scheme": "symmetric",
            "weight_granularity": "tensor",
            "keep_output_wide": False,
            "layers": {},
        }
    ),
    MappingProxyType(
        {
            "opset": rules.opset(17, 17),
            "static shapes": rules.static_shapes,
            "operators": rules.operators(_OPERATORS),
            "constant scales": rules.constant_scales,
            "one scale": rules.one_scale,
            "power of two": _power_of_two,
            # Quark writes uint8 around 128, which are the integers of int8.
            "dtypes": rules.dtypes({"int8": 0, "uint8": 128}, ("int8",)),
            "biases": rules.biases(("int8", "int32")),
            "quantized": rules.quantized,
            "moves keep the scale": rules.moves_keep_scale,
            "shift cut": _shift_cut,
            "elementwise shifts": _elementwise,
        }
    ),
)
