"""Where two modules part: run on the same inputs, nodes matched, the first difference named."""

from compiler.difference.comparing import Difference, NodeDifference, compare_modules
from compiler.difference.inputs import random_inputs

__all__ = ["Difference", "NodeDifference", "compare_modules", "random_inputs"]
