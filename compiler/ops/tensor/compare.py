"""equal, not_equal, less, less_equal, greater, greater_equal: broadcast, bool result."""

from __future__ import annotations

import numpy as np

from compiler.ops.tensor.broadcast import binary_op

for _name, _function, _symbol in (
    ("equal", np.equal, "=="),
    ("not_equal", np.not_equal, "!="),
    ("less", np.less, "<"),
    ("less_equal", np.less_equal, "<="),
    ("greater", np.greater, ">"),
    ("greater_equal", np.greater_equal, ">="),
):
    binary_op(_name, _function, _symbol, dtype="bool", numbers="any")
