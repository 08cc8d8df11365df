"""Constants of audio features: windows and mel filters.

Source: the operators' specifications, ONNX since 17.
"""

from __future__ import annotations

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode, dtype_of, refuse_huge
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.ir.expr import Expr
from compiler.ir.ty import TensorType


@from_onnx("MelWeightMatrix", since=17)
def mel_weight_matrix(node: OnnxNode) -> Expr:
    """Triangles between neighbouring mel frequencies, (bins of the spectrum, mel bins)."""
    given = [node.require_known(k, "a frequency").item() for k in range(5)]
    bins, length, rate = (int(v) for v in given[:3])
    refuse_huge(TensorType((max(length, 0) // 2 + 1, max(bins, 0)), "float64"), node.label)
    low, high = (2595 * np.log10(1 + f / 700) for f in given[3:])
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    matrix = np.zeros((length // 2 + 1, bins))
    for k, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:])):
        matrix[left : centre + 1, k] = np.linspace(0, 1, centre - left + 1)
        matrix[centre:right, k] = (right - np.arange(centre, right)) / max(right - centre, 1)
        matrix[centre, k] = 1
    return node.const(matrix, dtype_of(node.attr("output_datatype", 1), node.label))
