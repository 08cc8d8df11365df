"""nn.dense: out[…,u] = sum_k data[…,k] * weight[u,k]."""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import IncompleteType, TensorType, Type
from compiler.ir.type_relation import Reporter, is_known
from compiler.lir.builder import LirBuilder
from compiler.ops.arg_types import Types, merge_dim, tensor_of_rank
from compiler.ops.nn.exact_matmul import matmul
from compiler.ops.nn.matmul_like import (
    annotate_dense,
    realize_matmul_like,
    weighted_scale,
    zero_point_of_data,
)
from compiler.ops.nn.product_dtype import product_dtype, weighted_op
from compiler.ops.nn.product_loops import matmul_loops, turned
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import FQDomScale
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.product_shape import FQProductShape, ProductShape
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.zero_point import FQZeroPoint

OP = "nn.dense"


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
    data = tensor_of_rank(OP, types, 0, "data", 1, at_least=True)
    features = data.shape[-1]
    if isinstance(types[1], IncompleteType):
        if attrs.units is None:
            return False
        reporter.assign(types[1], TensorType((attrs.units, features), data.dtype))
        weight = TensorType((attrs.units, features), data.dtype)
    else:
        weight = tensor_of_rank(OP, types, 1, "weight", 2)
    units = weight.shape[0]
    if attrs.units is not None:
        units = merge_dim(OP, attrs.units, units, "number of units (units, weight)")
    expected = weight.shape[1]
    if not (isinstance(features, AnyDim) or isinstance(expected, AnyDim) or features == expected):
        raise TypeInferenceError(
            f"{OP}: data has {features} features but weight expects {expected}",
            where=f"data {data}, weight {weight}",
            fix="give weight as (units, in_features); transpose it if it is (in_features, units)",
        )
    dtype = product_dtype(OP, data, weight, attrs.out_dtype)
    reporter.assign(types[2], TensorType((*data.shape[:-1], units), dtype))
    return True


dense = weighted_op(OP, attrs_type=DenseAttrs, rel=dense_rel)


@FNumpyCompute.register(dense)
def dense_numpy(attrs: DenseAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Exact on integers."""
    data, weight = args
    assert isinstance(out_type, TensorType)
    product = matmul(data.reshape(-1, data.shape[-1]), weight.T, out_type.dtype)
    return [product.reshape(*data.shape[:-1], weight.shape[0])]


@FQProductShape.register(dense)
def dense_product(call: Call) -> ProductShape:
    """One product per input feature; channels lie on the last axis of the output."""
    return ProductShape(call.args[1].tensor_type.concrete_shape[1], weight_axis=0, out_trailing=0)


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
    result, turned = step.results[0], words.transpose(weight, (1, 0))
    dtype = result.type.dtype
    return words.word("nn.matmul", [data, turned], shape_of(result), dtype, out_dtype=dtype)
