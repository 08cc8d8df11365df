"""Typing what binds variables: functions, lets and match clauses; and the state of a collection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakMethod

from compiler.errors import TypeInferenceError
from compiler.ir.adt import Match, TypeData
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Let, Var
from compiler.ir.inference.errors import TypeMistake, call_mistake, call_text
from compiler.ir.inference.match_types import missing_cases, type_pattern
from compiler.ir.inference.solver import PartsBudget, TypeSolver
from compiler.ir.ty import FuncType, Type

ENTER = 0
LEAVE = 1
VALUE_DONE = 2
"""Phases of a node in the walk: before its operands, after them, and between value and body."""


def declared_type(fn: Function) -> FuncType | None:
    """Type of a function from its annotations alone; None where one is missing."""
    args = tuple(p.type_annotation for p in fn.params if p.type_annotation is not None)
    if len(args) < len(fn.params) or fn.ret_type is None:
        return None
    return FuncType(args, fn.ret_type, fn.type_params)


class ScopeConstraints:
    """Types (possibly with holes) of every node reached, and the mistakes met on the way.

    ``order`` has the nodes that are to be typed, operands before users.

    Args:
        global_type: type of a function of the module.
        definitions: algebraic data type by name.
        budget: of all functions together.
        trust: do not enter nodes that carry a type already.
    """

    def __init__(
        self,
        global_type: Callable[[GlobalVar], Type],
        definitions: Callable[[str], TypeData],
        budget: PartsBudget,
        *,
        trust: bool,
    ) -> None:
        self.types: dict[Expr, Type] = {}
        self.order: list[Expr] = []
        self.params: set[Var] = set()
        self.met_typed = False
        self.bound: set[Var] = set()
        self.mistakes: list[TypeMistake] = []
        # Weak: the types of a whole graph are then freed when they have been read.
        self.solver = TypeSolver(budget, WeakMethod(self.mistake))
        self.trust = trust
        self._global_type = global_type
        self._definitions = definitions
        self._returns: dict[Function, Type] = {}

    def mistake(self, node: Expr, error: TypeInferenceError) -> Type:
        """Note an error; return an unknown type for the node, which raises no second error."""
        if isinstance(node, Call):
            args = [self.solver.resolve(ty) for ty in self.argument_types(node)]
            self.mistakes.append(call_mistake(node, args, error))
        else:
            where = f"in {call_text(node)}"
            where = f"{error.where}; {where}" if error.where else where
            self.mistakes.append(TypeMistake(node, error.what, where, error.fix))
        return self.solver.failed_hole()

    def argument_types(self, call: Call) -> list[Type]:
        """Return the types of the arguments of a call, which have been reached; some carry their
        type themselves."""
        types = self.types
        return [types.get(arg) or arg.checked_type for arg in call.args]

    def _unify(self, node: Expr, a: Type, b: Type, what: str, *, branches: bool = False) -> Type:
        solver = self.solver
        try:
            if branches:
                return solver.merge_branches(a, b)
            return solver.unify(a, b)
        except TypeInferenceError as error:
            if solver.is_failed(a) or solver.is_failed(b):
                return solver.failed_hole()
            return self.mistake(node, TypeInferenceError(f"{what}: {error.what}", fix=error.fix))

    def _var(self, var: Var) -> Type:
        if var.type_annotation is not None:
            return var.type_annotation
        if var not in self.bound and var._checked_type is not None:
            return var._checked_type
        return self.solver.hole()

    def _enter_function(self, fn: Function) -> list[tuple[Expr, int]]:
        for param in fn.params:
            if param.type_annotation is None:
                self.bound.add(param)
                self.params.add(param)
            self.types[param] = self._var(param)
            self.order.append(param)
        self._returns[fn] = self.solver.hole() if fn.ret_type is None else fn.ret_type
        args = tuple([self.types[p] for p in fn.params])
        self.types[fn] = FuncType(args, self._returns[fn], fn.type_params)
        return [(fn.body, ENTER), (fn, LEAVE)]

    def _leave_function(self, fn: Function) -> None:
        result = self._unify(fn, self._returns[fn], self.types[fn.body], "result of the function")
        known: Any = self.types[fn]
        self.types[fn] = FuncType(known.arg_types, result, fn.type_params)

    def _enter_let(self, let: Let) -> list[tuple[Expr, int]]:
        self.bound.add(let.var)
        if isinstance(let.value, Function):
            self._function_var(let.var, let.value)
        return [(let.value, ENTER), (let, VALUE_DONE), (let.body, ENTER), (let, LEAVE)]

    def _function_var(self, var: Var, fn: Function) -> None:
        """A function literal may call itself through ``var``."""
        if var.type_annotation is None:
            self.types[var] = self.solver.hole()
            known = declared_type(fn)
            if known is not None:
                self.solver.assign(self.types[var], known)

    def _bind_let(self, let: Let) -> None:
        var = let.var
        value = self.types[let.value]
        known = self.types.setdefault(var, var.type_annotation or value)
        self._unify(let, known, value, f"let %{var.name_hint}")
        self.order.append(var)

    def _leave_let(self, let: Let) -> None:
        self.types[let] = self.types[let.body]

    def _enter_match(self, match: Match) -> list[tuple[Expr, int]]:
        rhs = [(clause.rhs, ENTER) for clause in match.clauses]
        return [(match.data, ENTER), (match, VALUE_DONE), *rhs, (match, LEAVE)]

    def _bind_patterns(self, match: Match) -> None:
        for clause in match.clauses:
            try:
                type_pattern(
                    clause.lhs,
                    self.types[match.data],
                    self.solver,
                    self._definitions,
                    self._bind_pattern_var,
                )
            except TypeInferenceError as error:
                self.mistake(match, error)
                self.solver.mark_failed(self.types[match.data])

    def _bind_pattern_var(self, var: Var, ty: Type) -> None:
        self.bound.add(var)
        if var.type_annotation is not None:
            self.solver.unify(var.type_annotation, ty)
            ty = var.type_annotation
        self.types[var] = ty
        self.order.append(var)

    def _leave_match(self, match: Match) -> None:
        if not match.clauses:
            what = "a match without clauses has no type"
            self.types[match] = self.mistake(match, TypeInferenceError(what))
            return
        result = self.types[match.clauses[0].rhs]
        for clause in match.clauses[1:]:
            other = self.types[clause.rhs]
            result = self._unify(match, result, other, "clauses of match", branches=True)
        self.types[match] = result
        if match.complete:
            missing = missing_cases(match, self._definitions)
        else:
            missing = []
        if missing:
            error = TypeInferenceError(
                f"match does not cover {', '.join(missing)}",
                fix="add clauses for them, or write `match?` if they cannot occur",
            )
            self.mistake(match, error)
