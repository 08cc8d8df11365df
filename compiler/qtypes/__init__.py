"""Words that quantization passes and operator rules share."""
