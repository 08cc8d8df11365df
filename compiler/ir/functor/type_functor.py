"""TypeFunctor, TypeVisitor, TypeMutator: the same trio for types.

Types nest as deep as their text, so these classes recurse. Source: Relay v0.10 type_functor.h.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any, TypeVar

from compiler.ir.functor.expr_functor import KindFunctor
from compiler.ir.ty import (
    FuncType,
    GlobalTypeVar,
    IncompleteType,
    RefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    map_type,
)
from compiler.ir.ty import TypeVar as TypeParam

R = TypeVar("R")

_KINDS: dict[type, str] = {
    TensorType: "tensor_type",
    TupleType: "tuple_type",
    FuncType: "func_type",
    RefType: "ref_type",
    TypeParam: "type_var",
    GlobalTypeVar: "global_type_var",
    TypeCall: "type_call",
    IncompleteType: "incomplete_type",
}


class TypeFunctor(KindFunctor[R]):
    """``visit(ty, *args)`` calls ``visit_<kind>``; kinds without a handler go to visit_default."""

    kinds = _KINDS
    noun = "Type"


class TypeVisitor(TypeFunctor[None]):
    """Visits the types inside a type, left to right; a leaf does nothing."""

    def visit_default(self, ty: Type, *args: Any) -> None:
        """The members; tensor types, variables and holes have none."""
        for inner in ty.members():
            self.visit(inner)

    visit_tuple_type = visit_default
    visit_ref_type = visit_default

    def visit_func_type(self, ty: FuncType) -> None:
        """Type parameters, argument types, result type."""
        for inner in (*ty.type_params, *ty.members()):
            self.visit(inner)

    def visit_type_call(self, ty: TypeCall) -> None:
        """The algebraic type, then its arguments."""
        for inner in (ty.func, *ty.args):
            self.visit(inner)


class TypeMutator(TypeFunctor[Type]):
    """Rebuilds a type; the very object when nothing inside it changed."""

    def visit_default(self, ty: Type, *args: Any) -> Type:
        """The same kind of type over new members; leaves stay."""
        return map_type(ty, self.visit)

    visit_tuple_type = visit_default
    visit_ref_type = visit_default
    visit_type_call = visit_default

    def visit_func_type(self, ty: FuncType) -> Type:
        """A function type over the new parameters, arguments and result."""
        params: tuple[Any, ...] = tuple([self.visit(param) for param in ty.type_params])
        new = map_type(ty, self.visit)
        assert isinstance(new, FuncType)
        same = all(map(operator.is_, params, ty.type_params))
        if same:
            return new
        return replace(new, type_params=params)
