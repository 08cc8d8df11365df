"""squared_difference: out = (lhs - rhs) ** 2, broadcast, in the dtype of the operands."""

from __future__ import annotations

import numpy as np

from compiler.lir.scalars import Bin
from compiler.ops.rules.lower import elementwise
from compiler.ops.tensor.broadcast import binary_op

binary_op(
    "squared_difference",
    lambda lhs, rhs: np.square(lhs - rhs),
    elementwise(lambda attrs, a, b: Bin("*", Bin("-", a, b), Bin("-", a, b)), reads=2),
)
