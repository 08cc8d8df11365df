"""Shipped test helpers: tiny models, comparisons, conformance suites."""

from compiler.testing.hardware_groups import hw_groups, hw_host_ops
from compiler.testing.kernel_list import kernels

__all__ = ["hw_groups", "hw_host_ops", "kernels"]
