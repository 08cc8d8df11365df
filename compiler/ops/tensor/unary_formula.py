"""unary_formula(formula): any function of each element by itself, as a postfix formula.

OutlineFormulas makes it of arithmetic that has no integer form operator by operator (GELU, swish,
hard-swish, mish). On narrow integers it is a table, every entry the function correctly rounded.
Source of the formulas: ops/tensor/formula.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import AttrError, TypeInferenceError
from compiler.ir.expr import Args, Call, Constant, Expr
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Type, bits
from compiler.ops.arg_types import Types, check_floats, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import op_call
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.dom_scale import DomScale, chosen_scale
from compiler.ops.rules.integer_calls import cast, subtract
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.pass_through import annotate_tabulated
from compiler.ops.rules.realize import (
    FQRealizeRewrite,
    QRealizeIntExpr,
    integer_limits,
    integers,
    of_integers,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.ops.rules.simplify import FDefinition
from compiler.ops.rules.table import RealTable
from compiler.ops.rules.with_tables import tabulates
from compiler.ops.rules.zero_point import FQZeroPoint, taken
from compiler.ops.tensor.formula import evaluate, reduce_words, words
from compiler.qtypes.context import QuantizeContext

# Entries of a table that nothing narrows: what a 16 bit tensor holds.
_WIDE = (1 << 15) - 1
_NARROW = 8
"""Bits of a table's index where microcontrollers hold it."""
_INDEX = "int32"
_WIDE_PLACES = "uint16"


class UnaryFormulaAttrs(OpAttrs):
    """The function, such as "x x sigmoid multiply"."""

    formula: str


@define_op("unary_formula", pattern=OpPattern.ELEMWISE)
def unary_formula(types: Types, attrs: UnaryFormulaAttrs) -> Type:
    """The type of the data.

    Raises:
        TypeInferenceError: the data are no floats, or the text is no formula of one variable.
    """
    data = tensor("unary_formula", types, 0, "data")
    check_floats("unary_formula", data)
    try:
        words(attrs.formula)
    except AttrError as error:
        raise TypeInferenceError(f"unary_formula: {error.what}") from None
    return data


@FNumpyCompute.register(unary_formula)
def unary_formula_numpy(attrs: UnaryFormulaAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Operator by operator in the dtype of the data; float16 in float32."""
    (data,) = args
    if data.dtype == np.float16:
        wide = data.astype(np.float32)
    else:
        wide = data
    return [np.asarray(evaluate(attrs.formula, wide), data.dtype)]


FQAnnotateRewrite.register(unary_formula, needs_tables=True)(annotate_tabulated)


@FQRealizeRewrite.register(unary_formula, needs_tables=True)
@of_integers
def unary_formula_realize(
    ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext
) -> Expr | None:
    """A lookup of 16 bit entries, which a following requantization replaces by its own."""
    attrs = UnaryFormulaAttrs.of(ref_call)
    if not tabulates(ctx):
        return None
    rank = len(ref_call.args[0].tensor_type.shape)
    data = to_scalar(data, rank, ctx.qconfig).with_zero_point(ctx.qconfig)
    dtype = storage_dtype(data.low, data.high, ctx.qconfig)
    # The annotate rule narrows the operand; where debug_enabled_ops left it out, this stays float.
    if dtype is None:
        return None
    lowest, highest = integer_limits(dtype)
    places = data.in_dtype(dtype)
    if bits(dtype) > _NARROW:  # the table begins with the first integer that there is
        lowest = data.low
        highest = data.high
        moved = subtract(data.in_dtype(_INDEX), Constant(np.array(lowest, _INDEX)))
        places = cast(moved, _WIDE_PLACES)
    steps = np.arange(lowest, highest + 1) - data.zero_point
    reals = steps * float(data.dom_scale.data)
    values = evaluate(attrs.formula, reals)
    values = np.where(np.isnan(values), 0.0, values)
    table = RealTable(places, values, data.low - lowest, data.high - lowest)
    largest = min(table.magnitude, float(np.finfo(np.float32).max))
    scale = DomScale(chosen_scale(largest / _WIDE if largest > 0 else 1.0, ctx.qconfig), wide=True)
    acc = ctx.qconfig.dtype_activation
    looked_up = table.at(float(scale.values), -_WIDE, _WIDE, acc)
    return integers(looked_up, scale, acc, ctx.bounds_of, table=table)


@FDefinition.register(unary_formula)
def unary_formula_definition(ref_call: Call, new_args: Args) -> Expr:
    """Operator by operator; a constant function is spread over the shape of the data."""
    ty = ref_call.tensor_type
    span = ref_call.span
    formula = UnaryFormulaAttrs.of(ref_call).formula
    result: Expr = reduce_words(
        formula,
        new_args[0],
        lambda number: Constant(np.array(number, ty.dtype)),
        lambda word, *given: op_call(word, *given, span=span),
    )
    if "x" in formula.split():
        return result
    return op_call("broadcast_to", result, shape=ty.concrete_shape, span=span)


FQZeroPoint.register(unary_formula)(taken)
