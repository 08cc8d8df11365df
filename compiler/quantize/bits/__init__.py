"""Choose the bits of quantization points and layers, and count what they cost."""
