"""What InferType asks of an operator: a relation between argument types and result type.

A relation has Relay's form ``rel(types, num_inputs, attrs, reporter) -> bool`` with ``types`` = the
argument types followed by the result type. It returns False while it lacks information and True
once it has assigned what it can; it raises TypeInferenceError when the types cannot fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from compiler.ir.ty import IncompleteType, TensorType, TupleType, Type


class Reporter(Protocol):
    """The solver, as a relation sees it."""

    def assign(self, dst: Type, src: Type) -> None:
        """Unify two types; raises TypeInferenceError when they differ."""


TypeRelation = Callable[[Sequence[Type], int, Any, Reporter], bool]


def is_known(ty: Type) -> bool:
    """True when no hole is left in ``ty``."""
    if isinstance(ty, IncompleteType):
        return False
    if isinstance(ty, TupleType):
        return all(is_known(f) for f in ty.fields)
    return True


def result_rel(infer: Callable[[Sequence[Any], Any], Type]) -> TypeRelation:
    """A relation from a plain function ``infer(argument types, attrs) -> result type``.

    It waits until every argument type is known.
    """

    def rel(types: Sequence[Type], num_inputs: int, attrs: Any, reporter: Reporter) -> bool:
        args = types[:num_inputs]
        if not all(is_known(t) for t in args):
            return False
        reporter.assign(types[num_inputs], infer(args, attrs))
        return True

    rel.__name__ = infer.__name__
    rel.__doc__ = infer.__doc__
    return rel


def identity_infer(types: Sequence[Any], attrs: Any) -> Type:
    """Result type = type of the first argument."""
    first: TensorType = types[0]
    return first


identity_rel = result_rel(identity_infer)
