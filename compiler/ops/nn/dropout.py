"""nn.dropout: the identity at inference; the result is a pair (data, mask), the mask all ones."""

from __future__ import annotations

from compiler.ir.expr import Args, Call, Expr, Tuple
from compiler.ir.op import STATEFUL, OpPattern, define_op
from compiler.ir.ty import TupleType, Type
from compiler.ops.arg_types import Types, tensor
from compiler.ops.evaluate import computes
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.simplify import FDefinition


class DropoutAttrs(OpAttrs):
    """Fraction that training would drop; inference ignores it."""

    rate: float = 0.5


@define_op("nn.dropout", pattern=OpPattern.OPAQUE, flags=(STATEFUL,))
def dropout(types: Types, attrs: DropoutAttrs) -> Type:
    """A pair of the data's type."""
    data = tensor("nn.dropout", types, 0, "data")
    return TupleType((data, data))


@FDefinition.register(dropout)
@computes(dropout)
def dropout_definition(ref_call: Call, new_args: Args) -> Expr:
    """The data, and ones."""
    return Tuple((*new_args, op_call("ones_like", *new_args)))
