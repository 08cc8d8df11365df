"""Single operator calls as loops: what suites that compare executors of loops draw from."""

from __future__ import annotations

from collections.abc import Sequence

from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Function, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import Type
from compiler.lir.nodes import PrimFunc
from compiler.lowering.primitive import lower_primitive


def lower_call(
    op: Op, attrs: Attrs | None, types: Sequence[Type], target: str = "reference"
) -> PrimFunc:
    """The loops of ``op`` applied to one parameter per argument.

    Args:
        op: with an FLower rule.
        attrs: its attributes.
        types: of the arguments, static.
        target: attribute of the result.
    Raises:
        CompilerError: the types do not fit, or the operator has no rule.
    """
    params = tuple(Var(f"x{k}", ty) for k, ty in enumerate(types))
    main = Function(params, Call(op, params, attrs))
    typed = infer_module(IRModule({"main": main}))
    return lower_primitive(typed["main"], "main", target)
