"""Choose ranges, and bind the scales of quantization points and weights."""
