"""nn.batch_matmul: out[b,m,n] = sum_k x[b,m,k] * y[b,n,k]; y is (B, N, K) unless told otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.lir.builder import LirBuilder
from compiler.lir.index import imm
from compiler.lir.scalars import Scalar
from compiler.ops.arg_types import Types, merge_dim, tensor_of_rank
from compiler.ops.nn.exact_matmul import matmul as product
from compiler.ops.nn.matmul_like import annotate_both_sides, realize_both_sides
from compiler.ops.nn.product_dtype import product_dtype
from compiler.ops.nn.product_loops import matmul_loops
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, product_scale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.product_shape import FQProductShape, ProductShape
from compiler.ops.rules.realize import FQRealizeRewrite
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


@FNumpyCompute.register(batch_matmul)
def batch_matmul_numpy(attrs: BatchMatmulAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Exact on integers."""
    assert isinstance(out_type, TensorType)
    x = args[0].transpose(0, 2, 1) if attrs.transpose_a else args[0]
    y = args[1].transpose(0, 2, 1) if attrs.transpose_b else args[1]
    return [product(x, y, out_type.dtype)]


@FQProductShape.register(batch_matmul)
def batch_matmul_product(call: Call) -> ProductShape:
    """K products a sum; scales are never per channel."""
    x = call.args[0].tensor_type.concrete_shape
    attrs = BatchMatmulAttrs.of(call)
    return ProductShape(x[1] if attrs.transpose_a else x[2])


FQAnnotateRewrite.register(batch_matmul)(annotate_both_sides)
FQRealizeRewrite.register(batch_matmul)(realize_both_sides)
FQDomScale.register(batch_matmul)(product_scale)


@FLower.register(batch_matmul)
def batch_matmul_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction; a batch of 1 is read by every batch."""
    x, y = inputs
    attrs = BatchMatmulAttrs.of(call)
    out = out_types[0]
    turned_a, turned_b = attrs.transpose_a, attrs.transpose_b

    def x_at(at: tuple[Scalar, ...], k: Scalar) -> tuple[Scalar, ...]:
        batch = imm(0) if x.shape[0] == 1 else at[0]
        return (batch, k, at[1]) if turned_a else (batch, at[1], k)

    def y_at(at: tuple[Scalar, ...], k: Scalar) -> tuple[Scalar, ...]:
        batch = imm(0) if y.shape[0] == 1 else at[0]
        return (batch, at[2], k) if turned_b else (batch, k, at[2])

    depth = x.shape[1] if turned_a else x.shape[2]
    return [matmul_loops(b, out.concrete_shape, depth, (x, x_at), (y, y_at), out.dtype)]


@FBody.register(batch_matmul)
def batch_matmul_body(step: Step, words: Words) -> Value | None:
    """Operands as they are multiplied."""
    attrs, result = step.attrs, step.results[0]
    if not attrs.transpose_a and not attrs.transpose_b:
        return None
    operands = []
    for value, turn in zip(step.args, (attrs.transpose_a, attrs.transpose_b)):
        rank = len(value.type.shape)
        order = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(words.transpose(value, order) if turn else value)
    dtype = result.type.dtype
    return words.word(
        step.name, operands, shape_of(result), dtype, out_dtype=dtype, transpose_b=False
    )
