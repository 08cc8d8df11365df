"""Shipped test helpers: tiny models, comparisons, conformance suites."""

from compiler.testing.hardware_groups import hw_groups, hw_host_ops

__all__ = ["hw_groups", "hw_host_ops"]
