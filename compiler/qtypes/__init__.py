"""Types that quantization passes and operator rules share; compiler.quantize re-exports them."""
