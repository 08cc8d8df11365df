"""Collecting the type constraints of an expression: one walk, a handler per kind of node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

from compiler.errors import TypeInferenceError
from compiler.ir.adt import Constructor, Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.inference.match_types import constructor_type
from compiler.ir.inference.scopes import ENTER, LEAVE, VALUE_DONE, ScopeConstraints
from compiler.ir.inference.solver import RELATION_SLIPS, instantiate
from compiler.ir.ty import FuncType, IncompleteType, RefType, TensorType, TupleType, Type
from compiler.ir.type_relation import result_of

BOOL = TensorType((), "bool")


class Constraints(ScopeConstraints):
    """Visits every kind of node; what binds variables is handled by ScopeConstraints."""

    def collect(self, root: Expr) -> Self:
        """Visit everything below ``root`` in scope order, operands before users."""
        types = self.types
        trust = self.trust
        stack: list[Any] = [root, ENTER]  # nodes, each below its phase: pairs would cost objects
        while stack:
            phase = stack.pop()
            node = stack.pop()
            cls = type(node)
            if phase == LEAVE:
                _LEAVE[cls](self, node)
                self.order.append(node)
            elif phase == VALUE_DONE:
                _VALUE_DONE[cls](self, node)
            elif node in types:
                continue
            elif cls is Constant:
                types[node] = node.checked_type
            elif cls in _LEAF:
                types[node] = _LEAF[cls](self, node)
                self.order.append(node)
            elif trust and node._checked_type is not None:
                types[node] = node._checked_type
                self.met_typed = True
            elif isinstance(node, Call):
                stack += (node, LEAVE)
                for arg in reversed(node.args):
                    if type(arg) is Constant:
                        pass  # it carries its type
                    elif trust and type(arg) is Call and arg._checked_type is not None:
                        self.met_typed = True
                    elif arg not in types:
                        stack += (arg, ENTER)
                if type(node.op) is not Op:
                    stack += (node.op, ENTER)
            elif cls in _ENTER:
                for step in reversed(_ENTER[cls](self, node)):
                    stack += step
            elif cls in _LEAVE:
                stack += (node, LEAVE)
                for child in reversed(node.operands()):
                    stack += (child, ENTER)
            else:
                raise TypeInferenceError(
                    f"{cls.__name__} has no type: it lives only inside the pass that makes it",
                    fix="realize temporary expressions before types are inferred",
                    span=node.span,
                )
        return self

    def _op(self, op: Op) -> Type:
        return op.checked_type

    def _global(self, gv: GlobalVar) -> Type:
        try:
            return self._global_type(gv)
        except TypeInferenceError as error:
            return self.mistake(gv, error)

    def _constructor(self, con: Constructor) -> Type:
        return constructor_type(con, self._definitions(con.belong_to.name_hint))

    def _leave_call(self, call: Call) -> None:
        solver = self.solver
        types = self.types
        args = self.argument_types(call)
        if type(call.op) is Op:
            known = self._known_result(call, call.op, args)
            if known is not None:
                types[call] = known
                return
            if call.op.takes(len(args)):
                result = solver.hole()
                solver.relate(call, (*args, result))
                types[call] = solver.find(result)
            else:
                wanted = call.op.num_inputs
                names = ", ".join(call.op.arg_names)
                what = f"{call.op.name} expects {wanted} arguments ({names}), got {len(args)}"
                types[call] = self.mistake(call, TypeInferenceError(what))
        else:
            types[call] = self._call_function(call, args)

    def _known_result(self, call: Call, op: Op, args: list[Type]) -> Type | None:
        """The result where it follows from tensor types at hand; None leaves it to the solver."""
        if not op.takes(len(args)):
            return None
        for ty in args:
            if type(ty) is not TensorType:
                return None
        try:
            return result_of(op.rel, args, call.attrs)
        except (TypeInferenceError, *RELATION_SLIPS):
            # The solver meets the same mistake and reports it with its context.
            return None

    def _call_function(self, call: Call, args: list[Type]) -> Type:
        solver = self.solver
        callee = solver.find(self.types[call.op])
        if isinstance(callee, IncompleteType):
            if solver.is_failed(callee):
                result = solver.failed_hole()
            else:
                result = solver.hole()
            solver.unify(callee, FuncType(tuple(args), result))
            return result
        name = describe(call.op)
        if not isinstance(callee, FuncType):
            return self.mistake(call, TypeInferenceError(f"{name} is called but has type {callee}"))
        if len(callee.arg_types) != len(args):
            what = f"{name} expects {len(callee.arg_types)} arguments, got {len(args)}"
            return self.mistake(call, TypeInferenceError(what))
        if callee.type_params:
            given = call.type_args or tuple(solver.hole() for _ in callee.type_params)
            callee = instantiate(callee, dict(zip(callee.type_params, given)))
        assert isinstance(callee, FuncType)
        for index, (param, arg) in enumerate(zip(callee.arg_types, args)):
            self._unify(call, param, arg, f"{name}: argument {index}")
        return callee.ret_type

    def _tuple(self, node: Tuple) -> None:
        self.types[node] = TupleType(tuple([self.types[f] for f in node.fields]))

    def _getitem(self, node: TupleGetItem) -> None:
        held = self.solver.find(self.types[node.tuple])
        if isinstance(held, TupleType):
            if node.index < len(held.fields):
                self.types[node] = held.fields[node.index]
                return
            what = f"tuple index {node.index} is out of range: {self.solver.resolve(held)}"
        elif isinstance(held, IncompleteType):
            if not self.solver.is_failed(held):
                what = f"field {node.index} of a value whose type is not known yet"
            else:
                self.types[node] = self.solver.failed_hole()
                return
        else:
            what = f"field {node.index} of {held}, which is not a tuple"
        self.types[node] = self.mistake(node, TypeInferenceError(what))

    def _if(self, node: If) -> None:
        self._unify(node, self.types[node.cond], BOOL, "condition of if")
        branches = self.types[node.true_branch], self.types[node.false_branch]
        self.types[node] = self._unify(node, *branches, "branches of if", branches=True)

    def _ref_create(self, node: RefCreate) -> None:
        self.types[node] = RefType(self.types[node.value])

    def _ref_read(self, node: RefRead) -> None:
        value = self.solver.hole()
        self._unify(node, self.types[node.ref], RefType(value), "ref_read")
        self.types[node] = value

    def _ref_write(self, node: RefWrite) -> None:
        cell = RefType(self.types[node.value])
        self._unify(node, self.types[node.ref], cell, "ref_write")
        self.types[node] = TupleType()


_LEAF: dict[type, Callable[[Constraints, Any], Type]] = {
    Var: Constraints._var,
    Op: Constraints._op,
    GlobalVar: Constraints._global,
    Constructor: Constraints._constructor,
}
_ENTER: dict[type, Callable[[Constraints, Any], list[tuple[Expr, int]]]] = {
    Function: Constraints._enter_function,
    Let: Constraints._enter_let,
    Match: Constraints._enter_match,
}
_VALUE_DONE: dict[type, Callable[[Constraints, Any], None]] = {
    Let: Constraints._bind_let,
    Match: Constraints._bind_patterns,
}
_LEAVE: dict[type, Callable[[Constraints, Any], None]] = {
    Call: Constraints._leave_call,
    Tuple: Constraints._tuple,
    TupleGetItem: Constraints._getitem,
    If: Constraints._if,
    RefCreate: Constraints._ref_create,
    RefRead: Constraints._ref_read,
    RefWrite: Constraints._ref_write,
    Function: Constraints._leave_function,
    Let: Constraints._leave_let,
    Match: Constraints._leave_match,
}
