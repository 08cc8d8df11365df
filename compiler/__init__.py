"""Model in, quantized and lowered module out; deterministic, single process."""
