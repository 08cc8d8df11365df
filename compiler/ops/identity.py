"""Operators that say something about a value and change nothing of it: one definition for all."""

from __future__ import annotations

from compiler.ir.attrs import Attrs
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, register_op
from compiler.ir.type_relation import identity_rel
from compiler.ops.rules.numpy_compute import FNumpyCompute


def identity_op(
    name: str, attrs_type: type[Attrs] | None = None, flags: tuple[str, ...] = (), arg: str = "data"
) -> Op:
    """Register an operator of one operand, which is its value; no fusion crosses it.

    Args:
        name: of the operator.
        attrs_type: what it says.
        flags: of the operator.
        arg: name of the operand.
    """
    op = register_op(
        name,
        arg_names=(arg,),
        attrs_type=attrs_type,
        rel=identity_rel,
        pattern=OpPattern.OPAQUE,
        flags=flags,
    )
    FNumpyCompute.register(op)(lambda attrs, args, out_type: list(args))
    return op
