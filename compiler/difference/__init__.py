"""Compare two modules: run both on equal inputs, match nodes, name the first difference."""

from compiler.difference.comparing import Difference, NodeDifference, compare_modules, random_inputs

__all__ = ["Difference", "NodeDifference", "compare_modules", "random_inputs"]
