"""Model in, quantized and lowered module out; deterministic, single process."""

# Operators register when they are imported; any way into the package must meet the full registry.
import compiler.ops  # noqa: F401
