"""equal, not_equal, less, less_equal, greater, greater_equal: broadcast, bool result.

Bools are equal or not; they have no order, as in ONNX.
"""

from __future__ import annotations

import numpy as np

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
