"""Words that quantization passes and operator rules share; published by compiler.quantize."""
