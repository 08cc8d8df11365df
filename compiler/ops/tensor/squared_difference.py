"""squared_difference: out = (lhs - rhs) ** 2, broadcast, in the dtype of the operands."""

from __future__ import annotations

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ops.tensor.broadcast import binary_op

binary_op(
    "squared_difference",
    lambda lhs, rhs: np.square(lhs - rhs),
    None,
)


@FBody.register("squared_difference")
def squared_difference_body(step: Step, words: Words) -> Value:
    """The difference times itself."""
    difference = words.subtract(*step.args)
    return words.multiply(difference, difference)
