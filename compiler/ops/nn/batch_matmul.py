"""nn.batch_matmul: out[b,m,n] = sum_k x[b,m,k] * y[b,n,k]; y is (B, N, K) unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.errors import TypeInferenceError
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, merge_dim, tensor_of_rank
from compiler.ops.nn.product_dtype import product_dtype
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.tensor.broadcast import broadcast_shape

OP = "nn.batch_matmul"


@dataclass(frozen=True, eq=False)
class BatchMatmulAttrs(OpAttrs):
    """Which sides are given transposed; Relay's default is y."""

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = True


@define_op(
    OP, arg_names=("x", "y"), attrs_type=BatchMatmulAttrs, pattern=OpPattern.OUT_ELEMWISE_FUSABLE
)
def batch_matmul(types: Types, attrs: BatchMatmulAttrs) -> Type:
    """(B, M, N); a batch of 1 serves every batch of the other side.

    Raises:
        TypeInferenceError: ranks are not 3, or the batches or summed axes differ.
    """
    x = tensor_of_rank(OP, types, 0, "x", 3)
    y = tensor_of_rank(OP, types, 1, "y", 3)
    m, xk = x.shape[1:] if not attrs.transpose_a else (x.shape[2], x.shape[1])
    n, yk = y.shape[1:] if attrs.transpose_b else (y.shape[2], y.shape[1])
    merge_dim(OP, xk, yk, f"length of the summed axis of {x} and {y}")
    try:
        batch = broadcast_shape(OP, x.shape[:1], y.shape[:1])
    except TypeInferenceError:
        raise TypeInferenceError(
            f"{OP}: x has {x.shape[0]} batches but y has {y.shape[0]}", where=f"x {x}, y {y}"
        ) from None
    return TensorType((*batch, m, n), product_dtype(OP, x, y, attrs.out_dtype))
