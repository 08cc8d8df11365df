"""The metrics and costs of this package; each registers itself when it is imported."""

# ruff: noqa: F401

from workers.metrics import costs, size, sqnr, top_k
