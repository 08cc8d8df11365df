"""Prove a quantized module: dtypes, ranges of every value, and agreeing executors."""
