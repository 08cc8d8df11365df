"""Binary elementwise operators: shapes align from the right; a 1 or an unknown size gives way."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any as AnyValue

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Any, Dim, Shape, TensorType, Type, is_float
from compiler.ops.arg_types import Types, same_dtype, shape_text, tensor
from compiler.ops.rules.lower import FLower, LowerRule, binary
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays


def broadcast_shape(op: str, a: Shape, b: Shape) -> Shape:
    """Shape of an elementwise result.

    Raises:
        TypeInferenceError: two sizes differ and neither is 1; names the axis and both sizes.
    """
    if a == b:
        return a
    dims: list[Dim] = []
    for back, (x, y) in enumerate(zip_longest(reversed(a), reversed(b), fillvalue=1)):
        if isinstance(x, int) and x == 1:
            dims.append(y)
        elif isinstance(y, int) and y == 1:
            dims.append(x)
        elif isinstance(x, Any):
            dims.append(y)
        elif isinstance(y, Any) or x == y:
            dims.append(x)
        else:
            raise TypeInferenceError(
                f"{op}: cannot broadcast {shape_text(a)} with {shape_text(b)}: "
                f"axis {-back - 1} has sizes {x} and {y}"
            )
    return tuple(reversed(dims))


def check_numbers(op: str, dtype: str, numbers: str) -> None:
    """Refuse operands of another kind of number.

    Raises:
        TypeInferenceError: ``dtype`` is not "number", "integer" or "bool" as asked.
    """
    legal = (dtype == "bool") == (numbers == "bool")
    if not legal or (numbers == "integer" and is_float(dtype)):
        raise TypeInferenceError(
            f"{op}: operands are {dtype}, {numbers} is needed", fix="insert a cast"
        )


def binary_op(
    name: str,
    compute: Callable[..., AnyValue],
    lower: str | LowerRule | None,
    *,
    dtype: str | None = None,
    numbers: str = "number",
) -> Op:
    """Register an operator of ``lhs`` and ``rhs``: its type, what it computes and its loops.

    Args:
        name: of the operator.
        compute: of two numpy arrays.
        lower: an operation of ``compiler.lir.scalars.BINARY``, or the rule of FLower; None: words.
        dtype: dtype of the result; None keeps that of the operands.
        numbers: accepted operand dtypes: "number" (all but bool), "integer", "bool", "any".
    """

    @define_op(name, arg_names=("lhs", "rhs"), pattern=OpPattern.BROADCAST)
    def op(types: Types, attrs: AnyValue) -> Type:
        lhs = tensor(name, types, 0, "lhs")
        rhs = tensor(name, types, 1, "rhs")
        common = same_dtype(name, lhs, rhs)
        if numbers != "any":
            check_numbers(name, common, numbers)
        if lhs.shape == rhs.shape and (dtype is None or dtype == common):
            return lhs
        return TensorType(broadcast_shape(name, lhs.shape, rhs.shape), dtype or common)

    FNumpyCompute.register(op)(of_arrays(compute))
    if lower is not None:
        FLower.register(op)(binary(lower) if isinstance(lower, str) else lower)
    return op
