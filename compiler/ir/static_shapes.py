"""Passes that need static shapes refuse a function without them.

Scales, window counts and overflow bounds depend on sizes, and so do the limits of an accelerator.
"""

from __future__ import annotations

from compiler.errors import DynamicShapeError
from compiler.ir.expr import Call, Function, Op, describe
from compiler.ir.ty import is_dynamic
from compiler.ir.walk import nodes_of


def require_static(fn: Function, pass_name: str) -> None:
    """Refuse a function in which a size is unknown.

    Raises:
        DynamicShapeError: naming the first call, operands first, whose type is dynamic, or the
            parameter where no call is.
    """
    types = ((node, node.checked_type_or_none) for node in nodes_of(fn))
    dynamic = [(node, ty) for node, ty in types if ty is not None and is_dynamic(ty)]
    if not dynamic:
        return
    node, ty = next(((n, t) for n, t in dynamic if isinstance(n, Call)), dynamic[0])
    op = node.op if isinstance(node, Call) else None
    name = op.name if isinstance(op, Op) else describe(node)
    raise DynamicShapeError(
        f"{pass_name}: {name} has the type {ty}; the pass needs static shapes",
        fix="import the model with a value for every dimension (--dim NAME=VALUE)",
        span=node.span,
    )
