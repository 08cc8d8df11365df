"""equal, not_equal, less, less_equal, greater, greater_equal: broadcast, bool result.

Bools are equal or not; they have no order, as in ONNX.
"""

from __future__ import annotations

import numpy as np

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ops.tensor.broadcast import binary_op

for _name, _function, _symbol, _numbers in (
    ("equal", np.equal, "==", "any"),
    ("not_equal", np.not_equal, "!=", "any"),
    ("less", np.less, "<", "number"),
    ("less_equal", np.less_equal, "<=", "number"),
    ("greater", np.greater, ">", "number"),
    ("greater_equal", np.greater_equal, ">=", "number"),
):
    binary_op(_name, _function, _symbol, dtype="bool", numbers=_numbers)


@FBody.register("not_equal", "less_equal", "greater", "greater_equal")
def comparison_body(step: Step, words: Words) -> Value:
    """By equal and less, of exchanged operands or denied."""
    a, b = step.args
    if step.name == "not_equal":
        return words.negation(words.equal(a, b))
    found = words.less(a, b) if step.name == "greater_equal" else words.less(b, a)
    return found if step.name == "greater" else words.negation(found)
