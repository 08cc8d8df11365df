"""nn.matmul: out[m,n] = sum_k a[m,k] * b[k,n], either side transposed on request.
nn.batch_matmul: out[b,m,n] = sum_k x[b,m,k] * y[b,n,k]; y is (B, N, K) unless told otherwise.
nn.dense: out[…,u] = sum_k data[…,k] * weight[u,k].
"""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr
from compiler.ir.op import OpPattern, define_op, register_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import IncompleteType, TensorType, Type, is_dynamic, is_float
from compiler.ir.type_relation import Reporter, is_known
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types, merge_dim, tensor_of_rank
from compiler.ops.nn.exact_matmul import matmul as product
from compiler.ops.nn.matmul_like import (
    annotate_both_sides,
    annotate_dense,
    realize_both_sides,
    realize_matmul_like,
    weighted_scale,
    zero_point_of_data,
)
from compiler.ops.nn.product_dtype import product_dtype, weighted_op
from compiler.ops.nn.product_loops import matmul_loops, turned
from compiler.ops.number_format import Array
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale, product_scale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.product_shape import FQProductShape, ProductShape
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.simplify import FCanonicalize
from compiler.ops.rules.zero_point import FQZeroPoint
from compiler.ops.tensor.broadcast import broadcast_shape

OP = "nn.matmul"
BATCHED = "nn.batch_matmul"
"""It has all rules of this file; its type is its own."""


class MatmulAttrs(OpAttrs):
    """Sides that are given transposed."""

    units: int | None = None
    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = False


def matmul_rel(types: Types, num_inputs: int, attrs: MatmulAttrs, reporter: Reporter) -> bool:
    """Assigns the result, and tensor_b when only ``units`` is known."""
    if not is_known(types[0]):
        return False
    a = tensor_of_rank(OP, types, 0, "tensor_a", 2, at_least=not attrs.transpose_a)
    k = a.shape[-2] if attrs.transpose_a else a.shape[-1]
    rows = a.shape[-1:] if attrs.transpose_a else a.shape[:-1]
    if isinstance(types[1], IncompleteType):
        if attrs.units is None:
            return False
        shape = (attrs.units, k) if attrs.transpose_b else (k, attrs.units)
        reporter.assign(types[1], TensorType(shape, a.dtype))
        b = TensorType(shape, a.dtype)
    else:
        b = tensor_of_rank(OP, types, 1, "tensor_b", 2)
    n, inner = b.shape if attrs.transpose_b else (b.shape[1], b.shape[0])
    merge_dim(OP, k, inner, f"length of the summed axis of {a} and {b}")
    if attrs.units is not None:
        n = merge_dim(OP, attrs.units, n, "number of units (units, tensor_b)")
    reporter.assign(types[2], TensorType((*rows, n), product_dtype(OP, a, b, attrs.out_dtype)))
    return True


matmul = register_op(
    OP,
    arg_names=("tensor_a", "tensor_b"),
    attrs_type=MatmulAttrs,
    rel=matmul_rel,
    pattern=OpPattern.OUT_ELEMWISE_FUSABLE,
)


@FNumpyCompute.register(matmul, BATCHED)
def matmul_numpy(attrs: Any, args: Arrays, out_type: Type) -> list[Any]:
    """Exact on integers."""
    assert isinstance(out_type, TensorType)
    turns = (attrs.transpose_a, attrs.transpose_b)
    a, b = (arg.swapaxes(-1, -2) if turn else arg for arg, turn in zip(args, turns))
    return [product(a, b, out_type.dtype)]


@FCanonicalize.register(matmul, BATCHED)
def by_weight(ref_call: Call, new_args: tuple[Expr, ...]) -> Expr:
    """The product with a constant as nn.dense or nn.conv2d, whose weights have output channels:

    x[…,k] w[k,n]                nn.dense(x, w^T)
    w[m,k] x[b,k,n]              nn.conv2d(x[b,k,n,1], w[m,k,1,1])
    w[b,m,k] x[b,k,n]            nn.conv2d(x[1,b*k,n,1], w[b*m,k,1,1], groups=b)
    x[b,m,k] w[b,k,n]            the transpose of w^T[b,n,k] x^T[b,k,m]
    """
    attrs: Any = ref_call.attrs
    call = Call(ref_call.op, new_args, attrs, span=ref_call.span)
    place = int(isinstance(new_args[1], Constant))
    constant = new_args[place]
    data = new_args[1 - place]
    types = [arg.tensor_type for arg in (*ref_call.args, ref_call)]
    if not isinstance(constant, Constant) or isinstance(data, Constant):
        return call
    if any(is_dynamic(ty) or not is_float(ty.dtype) for ty in types):
        return call
    turned = attrs.transpose_a
    data_turned = attrs.transpose_b
    if place:
        turned, data_turned = not data_turned, turned
    weight: Array = constant.data.reshape(-1, *constant.data.shape[-2:])
    weight = weight.swapaxes(1, 2) if turned else weight
    groups, units, terms = weight.shape
    shape = types[1 - place].concrete_shape
    swapped = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    if place and groups == 1:
        rows = op_call("transpose", data, axes=swapped) if data_turned else data
        return op_call("nn.dense", rows, Constant(weight[0]), units=units, span=call.span)
    if data_turned != bool(place):
        data = op_call("transpose", data, axes=swapped)
    batch = shape[0] if len(shape) == 3 else 1
    together = groups if batch == groups else 1
    columns = op_call("reshape", data, newshape=(batch // together, together * terms, -1, 1))
    kernel = Constant(weight.reshape(groups * units, terms, 1, 1))
    sizes = {"groups": together, "channels": groups * units, "kernel_size": (1, 1)}
    result: Expr = op_call("nn.conv2d", columns, kernel, **sizes, span=call.span)
    out = types[2].concrete_shape
    result = op_call("reshape", result, newshape=(*out[:-2], units, out[-1 - place]))
    if place:
        return op_call("transpose", result, axes=swapped)
    return result


@FQProductShape.register(matmul, BATCHED)
def matmul_product(call: Call) -> ProductShape:
    """K products a sum; neither side is a weight with channels."""
    attrs: Any = call.attrs
    return ProductShape(call.args[0].tensor_type.concrete_shape[-2 if attrs.transpose_a else -1])


FQAnnotateRewrite.register(matmul, needs_tables=True)(annotate_both_sides)
FQRealizeRewrite.register(matmul, needs_tables=True)(realize_both_sides)
FQAnnotateRewrite.register(BATCHED)(annotate_both_sides)
FQRealizeRewrite.register(BATCHED)(realize_both_sides)
FQDomScale.register(matmul, BATCHED)(product_scale)


@FLower.register(matmul, BATCHED)
def matmul_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction over the shared axis; a batch of 1 is read by every batch."""
    attrs: Any = call.attrs
    turns = (attrs.transpose_a, attrs.transpose_b)
    left, right = (turned(view) if turn else view for view, turn in zip(inputs, turns))
    return [matmul_loops(b, left, right, out_types[0])]


@FBody.register(matmul, BATCHED)
def matmul_body(step: Step, words: Words) -> Value | None:
    """Operands as they are multiplied; two computed matrices are a batch of one."""
    attrs = step.attrs
    result = step.results[0]
    alone = step.name == OP and all(v.data is None and len(v.type.shape) == 2 for v in step.args)
    if not attrs.transpose_a and not attrs.transpose_b and not alone:
        return None
    operands = []
    for value, turn in zip(step.args, (attrs.transpose_a, attrs.transpose_b)):
        rank = len(value.type.shape)
        order = [*range(rank - 2), rank - 1, rank - 2]
        operands.append(words.transpose(value, order) if turn else value)
    dtype = result.type.dtype
    plain = {"out_dtype": dtype, "transpose_a": False, "transpose_b": False}
    shape = shape_of(result)
    if alone:
        batches = [words.reshape(value, (1, *shape_of(value))) for value in operands]
        return words.reshape(words.word(BATCHED, batches, (1, *shape), dtype, **plain), shape)
    return words.word(step.name, operands, shape, dtype, **plain)


# ---- batch_matmul ------------------------------------------------------------------------------


class BatchMatmulAttrs(OpAttrs):
    """Sides that are given transposed; Relay's default is y."""

    out_dtype: str = ""
    transpose_a: bool = False
    transpose_b: bool = True


@define_op(BATCHED, arg_names=("x", "y"), pattern=OpPattern.OUT_ELEMWISE_FUSABLE)
def batch_matmul(types: Types, attrs: BatchMatmulAttrs) -> Type:
    """(B, M, N); a batch of 1 serves every batch of the other side.

    Raises:
        TypeInferenceError: ranks are not 3, or the batches or summed axes differ.
    """
    x = tensor_of_rank(BATCHED, types, 0, "x", 3)
    y = tensor_of_rank(BATCHED, types, 1, "y", 3)
    m, xk = x.shape[1:] if not attrs.transpose_a else (x.shape[2], x.shape[1])
    n, yk = y.shape[1:] if attrs.transpose_b else (y.shape[2], y.shape[1])
    merge_dim(BATCHED, xk, yk, f"length of the summed axis of {x} and {y}")
    try:
        batch = broadcast_shape(BATCHED, x.shape[:1], y.shape[:1])
    except TypeInferenceError:
        raise TypeInferenceError(
            f"{BATCHED}: x has {x.shape[0]} batches but y has {y.shape[0]}", where=f"x {x}, y {y}"
        ) from None
    return TensorType((*batch, m, n), product_dtype(BATCHED, x, y, attrs.out_dtype))


# ---- dense ---------------------------------------------------------------------------------------


DENSE = "nn.dense"


class DenseAttrs(OpAttrs):
    """Number of output features, and the dtype products are accumulated in ("": the data's)."""

    units: int | None = None
    out_dtype: str = ""


def dense_rel(types: Types, num_inputs: int, attrs: DenseAttrs, reporter: Reporter) -> bool:
    """Assigns the result, and the weight when only ``units`` is known.

    Raises:
        TypeInferenceError: data and weight differ in features.
    """
    if not is_known(types[0]):
        return False
    data = tensor_of_rank(DENSE, types, 0, "data", 1, at_least=True)
    features = data.shape[-1]
    if isinstance(types[1], IncompleteType):
        if attrs.units is None:
            return False
        reporter.assign(types[1], TensorType((attrs.units, features), data.dtype))
        weight = TensorType((attrs.units, features), data.dtype)
    else:
        weight = tensor_of_rank(DENSE, types, 1, "weight", 2)
    units = weight.shape[0]
    if attrs.units is not None:
        units = merge_dim(DENSE, attrs.units, units, "number of units (units, weight)")
    expected = weight.shape[1]
    if not (isinstance(features, AnyDim) or isinstance(expected, AnyDim) or features == expected):
        raise TypeInferenceError(
            f"{DENSE}: data has {features} features but weight expects {expected}",
            where=f"data {data}, weight {weight}",
            fix="give weight as (units, in_features); transpose it if it is (in_features, units)",
        )
    dtype = product_dtype(DENSE, data, weight, attrs.out_dtype)
    reporter.assign(types[2], TensorType((*data.shape[:-1], units), dtype))
    return True


dense = weighted_op(DENSE, attrs_type=DenseAttrs, rel=dense_rel)


@FNumpyCompute.register(dense)
def dense_numpy(attrs: DenseAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Exact on integers."""
    data, weight = args
    assert isinstance(out_type, TensorType)
    result = product(data.reshape(-1, data.shape[-1]), weight.T, out_type.dtype)
    return [result.reshape(*data.shape[:-1], weight.shape[0])]


FQAnnotateRewrite.register(dense)(annotate_dense)
FQRealizeRewrite.register(dense)(realize_matmul_like)
FQDomScale.register(dense)(weighted_scale)
FQZeroPoint.register(dense)(zero_point_of_data)


@FLower.register(dense)
def dense_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction over the features."""
    data, weight = inputs
    return [matmul_loops(b, data, turned(weight), out_types[0])]


@FBody.register(dense)
def dense_body(step: Step, words: Words) -> Value:
    """The product with the transposed weight."""
    data, weight = step.args
    result = step.results[0]
    turned = words.transpose(weight, (1, 0))
    dtype = result.type.dtype
    return words.word("nn.matmul", [data, turned], shape_of(result), dtype, out_dtype=dtype)
