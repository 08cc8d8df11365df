"""nn.bias_add: out = data + bias, the vector laid along ``axis``."""

from __future__ import annotations

from typing import Any

from compiler.core.words import FBody, Words, shape_of
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Expr
from compiler.ir.op import OpPattern, register_op
from compiler.ops.arg_types import check_no_bools, vectors_along_axis
from compiler.ops.evaluate import computes
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import expand_to_axis
from compiler.ops.rules.simplify import FCanonicalize

OP = "nn.bias_add"


class BiasAddAttrs(OpAttrs):
    """The axis of the data the bias lies along."""

    axis: int = 1


bias_add = register_op(
    OP,
    arg_names=("data", "bias"),
    attrs_type=BiasAddAttrs,
    rel=vectors_along_axis(OP, "bias", check=check_no_bools),
    pattern=OpPattern.BROADCAST,
)


@FCanonicalize.register(bias_add)
@computes(bias_add)
def bias_add_as_add(ref_call: Call, new_args: tuple[Expr, ...]) -> Expr:
    """add, with the bias expanded to line up with its axis."""
    data, bias = new_args
    attrs: Any = ref_call.attrs
    ndim = len(ref_call.args[0].tensor_type.shape)
    return data + expand_to_axis(bias, attrs.axis % ndim, ndim)


@FBody.register("nn.bias_add")
def bias_add_body(step: Step, words: Words) -> Value:
    """The bias along one axis."""
    data, bias = step.args
    shape = [1] * len(data.type.shape)
    shape[step.attrs.axis] = shape_of(bias)[0]
    return words.add(data, words.reshape(bias, shape))
