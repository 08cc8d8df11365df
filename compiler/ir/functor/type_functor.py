"""TypeFunctor, TypeVisitor, TypeMutator: the same trio for types.

Types nest as deep as their text, so these classes recurse. Source: Relay v0.10 type_functor.h.
"""

from __future__ import annotations

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
)
from compiler.ir.ty import TypeVar as TypeParam

R = TypeVar("R")

_KINDS: dict[type, str] = {
    TensorType: "visit_tensor_type",
    TupleType: "visit_tuple_type",
    FuncType: "visit_func_type",
    RefType: "visit_ref_type",
    TypeParam: "visit_type_var",
    GlobalTypeVar: "visit_global_type_var",
    TypeCall: "visit_type_call",
    IncompleteType: "visit_incomplete_type",
}


class TypeFunctor(KindFunctor[R]):
    """``visit(ty, *args)`` calls ``visit_<kind>``; kinds without a handler go to visit_default."""

    kinds = _KINDS
    noun = "Type"


class TypeVisitor(TypeFunctor[None]):
    """Visits the types inside a type, left to right; a leaf does nothing."""

    def visit_default(self, ty: Type, *args: Any) -> None:
        """Nothing: tensor types, variables and holes have no types inside."""

    def visit_tuple_type(self, ty: TupleType) -> None:
        """Fields."""
        for inner in ty.fields:
            self.visit(inner)

    def visit_func_type(self, ty: FuncType) -> None:
        """Type parameters, argument types, result type."""
        for inner in (*ty.type_params, *ty.arg_types, ty.ret_type):
            self.visit(inner)

    def visit_ref_type(self, ty: RefType) -> None:
        """The type of the cell's value."""
        self.visit(ty.value)

    def visit_type_call(self, ty: TypeCall) -> None:
        """The algebraic type, then its arguments."""
        for inner in (ty.func, *ty.args):
            self.visit(inner)


class TypeMutator(TypeFunctor[Type]):
    """Rebuilds a type; the very object when nothing inside it changed."""

    def visit_default(self, ty: Type, *args: Any) -> Type:
        """Leaves stay."""
        return ty

    def _all(self, types: tuple[Any, ...]) -> tuple[Any, ...]:
        new = tuple([self.visit(t) for t in types])
        return types if all(map(lambda a, b: a is b, new, types)) else new

    def visit_tuple_type(self, ty: TupleType) -> Type:
        """A tuple type over the new fields."""
        fields = self._all(ty.fields)
        return ty if fields is ty.fields else TupleType(fields)

    def visit_func_type(self, ty: FuncType) -> Type:
        """A function type over the new parameters, arguments and result."""
        params, args = self._all(ty.type_params), self._all(ty.arg_types)
        ret = self.visit(ty.ret_type)
        if params is ty.type_params and args is ty.arg_types and ret is ty.ret_type:
            return ty
        return FuncType(args, ret, params, ty.type_constraints)

    def visit_ref_type(self, ty: RefType) -> Type:
        """A reference to the new type."""
        value = self.visit(ty.value)
        return ty if value is ty.value else RefType(value)

    def visit_type_call(self, ty: TypeCall) -> Type:
        """The same algebraic type on new arguments."""
        args = self._all(ty.args)
        return ty if args is ty.args else TypeCall(ty.func, args)
