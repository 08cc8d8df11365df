"""Constants of audio features: windows and mel filters.

Source: the operators' specifications, ONNX since 17.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.opsets import from_onnx
from compiler.frontend.from_onnx.values import dtype_of
from compiler.ir.expr import Expr


def _window(node: OnnxNode, terms: Sequence[float]) -> Expr:
    """Sum of cosines with alternating signs."""
    (size,) = node.ints(0, "the size")
    period = size if node.attr("periodic", 1) else size - 1
    angle = 2 * np.pi * np.arange(size) / max(period, 1)
    values = sum((-1) ** k * a * np.cos(k * angle) for k, a in enumerate(terms))
    return node.const(values, dtype_of(node.attr("output_datatype", 1), node.label))


@from_onnx("HannWindow", since=17)
def hann_window(node: OnnxNode) -> Expr:
    """0.5 - 0.5 cos."""
    return _window(node, (0.5, 0.5))


@from_onnx("HammingWindow", since=17)
def hamming_window(node: OnnxNode) -> Expr:
    """25/46 - 21/46 cos."""
    return _window(node, (25 / 46, 21 / 46))


@from_onnx("BlackmanWindow", since=17)
def blackman_window(node: OnnxNode) -> Expr:
    """0.42 - 0.5 cos + 0.08 cos of twice the angle."""
    return _window(node, (0.42, 0.5, 0.08))


@from_onnx("MelWeightMatrix", since=17)
def mel_weight_matrix(node: OnnxNode) -> Expr:
    """Triangles between neighbouring mel frequencies, (bins of the spectrum, mel bins)."""
    given = [node.require_known(k, "a frequency").item() for k in range(5)]
    bins, length, rate = (int(v) for v in given[:3])
    low, high = (2595 * np.log10(1 + f / 700) for f in given[3:])
    mels = low + np.arange(bins + 2) * ((high - low) / (bins + 2))
    edges = ((length + 1) * (700 * (10 ** (mels / 2595) - 1)) // rate).astype(int)
    matrix = np.zeros((length // 2 + 1, bins))
    for k, (left, centre, right) in enumerate(zip(edges, edges[1:], edges[2:])):
        matrix[left : centre + 1, k] = np.linspace(0, 1, centre - left + 1)
        matrix[centre:right, k] = (right - np.arange(centre, right)) / max(right - centre, 1)
        matrix[centre, k] = 1
    return node.const(matrix, dtype_of(node.attr("output_datatype", 1), node.label))
