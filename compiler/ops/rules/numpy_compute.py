"""FNumpyCompute: what an operator computes on numpy arrays, for FoldConstant and the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.op import OpRule
from compiler.ir.ty import Type

Arrays = Sequence[NDArray[Any]]
NumpyCompute = Callable[[Any, Arrays, Type], list[np.ndarray[Any, Any]]]
"""``compute(attrs, arrays, out_type) -> results``: tuple arguments are flattened, left to right;
one result per tensor of ``out_type``, of exactly that dtype."""

FNumpyCompute: OpRule[NumpyCompute] = OpRule("FNumpyCompute", asked_by="the reference evaluator")


def of_arrays(function: Callable[..., Any]) -> NumpyCompute:
    """The rule of an operator without attributes: one result, of the arrays alone."""
    return lambda attrs, args, out_type: [function(*args)]
