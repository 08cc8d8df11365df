"""Declaration of convolutions and matrix products, and the dtype of the result, which is out_dtype,
or that of the operands."""

from __future__ import annotations

from functools import partial

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import TensorType, is_float, is_integer

weighted_op = partial(
    register_op, arg_names=("data", "weight"), pattern=OpPattern.OUT_ELEMWISE_FUSABLE
)
"""An operator of data and weight; what follows joins its loops."""


def product_dtype(op: str, data: TensorType, weight: TensorType, out_dtype: str) -> str:
    """The dtype the operands are widened to and accumulated in.

    Raises:
        TypeInferenceError: the operands differ in dtype (two integer dtypes may differ when
            ``out_dtype`` is given), or floats would be accumulated in integers.
    """
    if data.dtype != weight.dtype and not (
        out_dtype and is_integer(data.dtype) and is_integer(weight.dtype)
    ):
        raise TypeInferenceError(
            f"{op}: data is {data.dtype} but weight is {weight.dtype}",
            where=f"data {data}, weight {weight}",
            fix="cast one side",
        )
    if data.dtype == "bool":
        raise TypeInferenceError(f"{op}: operands are bool", fix="insert a cast")
    result = out_dtype or data.dtype
    if is_float(data.dtype) and not is_float(result):
        raise TypeInferenceError(
            f"{op}: out_dtype {out_dtype!r} cannot accumulate {data.dtype}", fix="cast the result"
        )
    return result
