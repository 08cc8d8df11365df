"""Operators of Relay's qnn namespace: what is written with real scales in a quantized model."""
