"""What passes made of a module, as plain lists for tests."""

from compiler.testing.hardware_groups import hw_groups, hw_host_ops
from compiler.testing.kernel_list import kernels

__all__ = ["hw_groups", "hw_host_ops", "kernels"]
