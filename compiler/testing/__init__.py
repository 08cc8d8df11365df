"""Describe the modules of passes as plain lists for tests."""

from compiler.testing.lists import hw_groups, hw_host_ops, kernels

__all__ = ["hw_groups", "hw_host_ops", "kernels"]
