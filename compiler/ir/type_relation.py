"""Type relations: InferType's question to an operator about argument types and result type.

A relation has Relay's form ``rel(types, num_inputs, attrs, reporter) -> bool`` with ``types`` = the
argument types followed by the result type. It returns False while it lacks information and True
once it has assigned what it can; it raises TypeInferenceError when the types cannot fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from compiler.errors import TypeInferenceError
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


InferResult = Callable[[Sequence[Any], Any], Type]


class ResultRelation:
    """A relation from a plain function ``infer(argument types, attrs) -> result type``: it computes
    the result once all arguments are known.

    Where they are known at once, inference calls ``infer`` itself and needs no unknown to solve.
    """

    def __init__(self, infer: InferResult) -> None:
        self.infer = infer
        self.__name__ = infer.__name__
        self.__doc__ = infer.__doc__

    def __call__(
        self, types: Sequence[Type], num_inputs: int, attrs: Any, reporter: Reporter
    ) -> bool:
        args = types[:num_inputs]
        if not all(is_known(t) for t in args):
            return False
        reporter.assign(types[num_inputs], self.infer(args, attrs))
        return True


class _OneResult:
    """Reporter for a single call whose arguments all have types."""

    __slots__ = ("result",)

    hole: ClassVar[Type] = IncompleteType()

    def __init__(self) -> None:
        self.result: Type | None = None

    def assign(self, dst: Type, src: Type) -> None:
        if dst is self.hole and self.result is None:
            self.result = src
        elif src is self.hole and self.result is None:
            self.result = dst
        elif dst is not src and dst != src:
            raise TypeInferenceError(f"{dst} was expected, {src} was found")


def result_of(rel: TypeRelation, args: Sequence[Type], attrs: Any) -> Type | None:
    """The result type of one call whose argument types are known; None where it stays open.

    Raises:
        TypeInferenceError: the arguments do not fit.
    """
    if type(rel) is ResultRelation:
        return rel.infer(args, attrs)
    reporter = _OneResult()
    solved = rel((*args, reporter.hole), len(args), attrs, reporter)
    if solved:
        return reporter.result
    return None


result_rel = ResultRelation


def identity_infer(types: Sequence[Any], attrs: Any) -> Type:
    """Result type = type of the first argument."""
    first: TensorType = types[0]
    return first


identity_rel = result_rel(identity_infer)
