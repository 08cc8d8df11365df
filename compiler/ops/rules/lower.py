"""FLower: an operator as loops.

A rule says one of three things:

    elementwise, broadcast, injective    a view computed from its inputs' views; nothing is emitted
    reductions, convolutions, products   blocks emitted into temps, inputs read through their views
    library routines                     an Extern on materialised buffers

LowerTE asks, through ``compiler.lowering.primitive``. The values equal the values of FNumpyCompute:
integers bit for bit, floats up to the order of their sums.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

# With operators, modules may hold PrimFuncs: their parser registers itself.
import compiler.lir.parser  # noqa: F401
from compiler.ir.expr import Call
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, TupleType
from compiler.lir.builder import LirBuilder, TensorView
from compiler.lir.routines import externs
from compiler.lir.scalars import Bin, Scalar, literal
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.numpy_compute import NumpyCompute

Views = Sequence[TensorView]
OutTypes = Sequence[TensorType]
Lowered = list[TensorView]

LowerRule = Callable[[Call, Views, OutTypes, LirBuilder], Lowered | None]
"""``rule(call, inputs, out_types, builder) -> views``: ``call`` is typed with static shapes;
``inputs`` are the views of its arguments, tuples flattened left to right; ``out_types`` are the
tensors of its result, in the order of the views that the rule returns. An operator without a rule,
and a call that its rule gives None for, has the loops of its definition or of its body in words."""

FLower: OpRule[LowerRule] = OpRule("FLower", asked_by="LowerTE")

ScalarFunction = Callable[..., Scalar]
"""``function(attrs, *elements) -> element``."""
IndexMap = Callable[[Call, tuple[Scalar, ...]], Sequence[Scalar]]
"""``where(call, indices of the result) -> indices of the data``."""


def elementwise(function: ScalarFunction, reads: int = 1) -> LowerRule:
    """The rule of an operator that works element by element, operands broadcast.

    Args:
        function: of the attributes and one element per operand.
        reads: how often it reads an operand at most.
    """

    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        held = [b.reusable(view) for view in inputs] if reads > 1 else inputs
        shape = out_types[0].concrete_shape
        return [
            TensorView.of(
                shape, lambda at: function(call.attrs, *(view.broadcast_at(at) for view in held))
            )
        ]

    return rule


def binary(op: str) -> LowerRule:
    """The rule of an operator that is one operation of ``compiler.lir.scalars.BINARY``."""
    return elementwise(lambda attrs, a, b: Bin(op, a, b))


def moved(where: IndexMap) -> LowerRule:
    """The rule of an operator that only moves elements of its first operand."""

    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        data = inputs[0]
        shape = out_types[0].concrete_shape
        return [TensorView.of(shape, lambda at: data.at(where(call, at)))]

    return rule


def library_routine(symbol: str, compute: NumpyCompute) -> LowerRule:
    """The rule of an operator that is a routine on whole buffers; registers it for the reference.

    Args:
        symbol: name of the routine; its attributes are the operator's attributes, with ``axis``
            counted from the front.
        compute: the operator's FNumpyCompute rule, which may not look at the result type.
    """

    @externs.register(symbol)
    def run(attrs: Mapping[str, Any], arrays: Sequence[Any]) -> Sequence[Any]:
        return compute(SimpleNamespace(**attrs), arrays, TupleType())

    def rule(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
        attrs = {} if call.attrs is None else dict(call.attrs.items())
        if "axis" in attrs:
            attrs["axis"] %= max(len(inputs[0].shape), 1)
        outs = [(ty.concrete_shape, str(storage_dtype(ty.dtype))) for ty in out_types]
        return b.extern(symbol, inputs, outs, attrs)

    return rule


def like_first(value: int | float, data: Scalar) -> Scalar:
    """A constant of the dtype of ``data``, rounded to it."""
    return literal(value, data.dtype)
