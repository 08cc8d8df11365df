"""nn.batch_flatten: (N, d1, …, dk) becomes (N, d1*…*dk)."""

from __future__ import annotations

import math
from typing import Any

from compiler.ir.op import RESHAPE, OpPattern, define_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import Dim, TensorType, Type
from compiler.ops.arg_types import Types, tensor_of_rank
from compiler.ops.pass_through import moves_elements
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@define_op("nn.batch_flatten", arg_names=("data",), pattern=OpPattern.INJECTIVE, flags=(RESHAPE,))
def batch_flatten(types: Types, attrs: Any) -> Type:
    """Rank 2; an unknown inner size makes the product unknown."""
    data = tensor_of_rank("nn.batch_flatten", types, 0, "data", 1, at_least=True)
    inner = [d for d in data.shape[1:] if not isinstance(d, AnyDim)]
    known = len(inner) == len(data.shape) - 1
    size: Dim = math.prod(inner) if known else AnyDim()
    return TensorType((data.shape[0], size), data.dtype)


@FNumpyCompute.register(batch_flatten)
def batch_flatten_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Row-major order."""
    data = args[0]
    return [data.reshape(data.shape[0], math.prod(data.shape[1:]))]


moves_elements(batch_flatten)
