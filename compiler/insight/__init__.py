"""Where a quantized module loses accuracy: per quantize point and per layer."""

from compiler.insight.examining import examine
from compiler.insight.records import Insight, LayerInsight, OutputInsight, PointInsight

__all__ = ["Insight", "LayerInsight", "OutputInsight", "PointInsight", "examine"]
