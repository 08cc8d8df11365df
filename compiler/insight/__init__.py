"""Where a quantized module loses accuracy: per quantize point and per layer."""

from compiler.insight.examining import examine
from compiler.insight.layer_sqnr import LayerSqnr, layer_sqnr
from compiler.insight.records import Insight, LayerInsight, OutputInsight, PointInsight

__all__ = [
    "Insight",
    "LayerInsight",
    "LayerSqnr",
    "OutputInsight",
    "PointInsight",
    "examine",
    "layer_sqnr",
]
