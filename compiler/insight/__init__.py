"""Find where a quantized module loses accuracy: per quantize point and per layer."""

from compiler.insight.examining import examine as examine
from compiler.insight.layers import LayerSqnr as LayerSqnr
from compiler.insight.layers import layer_sqnr as layer_sqnr
from compiler.insight.records import Insight as Insight
from compiler.insight.records import LayerInsight as LayerInsight
from compiler.insight.records import OutputInsight as OutputInsight
from compiler.insight.records import PointInsight as PointInsight
