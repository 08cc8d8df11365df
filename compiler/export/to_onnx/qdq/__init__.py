"""Integer modules as QuantizeLinear and DequantizeLinear around float operators."""
