"""The end of InferType: report what stayed unknown, then put the types on the nodes."""

from __future__ import annotations

from compiler.errors import TypeInferenceError
from compiler.ir.adt import Clause, Match
from compiler.ir.expr import Expr, Function, GlobalVar, Var, describe
from compiler.ir.functor.pattern_functor import PatternMutator
from compiler.ir.inference.constraints import Constraints
from compiler.ir.inference.errors import TypeMistake, call_mistake, call_text, combined_error
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import TensorType, Type


class StaleTypesError(Exception):
    """Typed nodes were trusted, but a variable below them has another type or identity now."""


def settle(found: Constraints, root: Expr, name: str) -> Expr:
    """``root`` with checked types; nodes whose type was right are kept by identity.

    Raises:
        TypeInferenceError: mistakes were found, or something stayed unknown.
        StaleTypesError: only when ``found`` trusted typed nodes; collect again without trust.
    """
    solver = found.solver
    solver.solve()
    types = [
        ty if type(ty) is TensorType else solver.resolve(ty)
        for ty in [found.types[node] for node in found.order]
    ]
    mistakes = [*found.mistakes, *_unsolved(found)]
    if not mistakes:
        mistakes = _unknown(found, types)
    if mistakes:
        raise combined_error(mistakes, name)
    changed = {
        node
        for node, ty in zip(found.order, types)
        if (node._checked_type is not None or type(node) is Var) and _must_copy(found, node, ty)
    }
    if changed:
        if found.met_typed and any(isinstance(node, Var) for node in changed):
            raise StaleTypesError
        found.types.update(zip(found.order, types))
        return _copy_changed(found, changed).get(root, root)
    for node, ty in zip(found.order, types):
        if node._checked_type is None or type(node) is GlobalVar:
            node.set_checked_type(ty)
    return root


def _unsolved(found: Constraints) -> list[TypeMistake]:
    """A mistake per relation that never had enough information."""
    solver = found.solver
    mistakes = []
    for call, types in solver.unsolved:
        failed = any(solver.is_failed(t) for t in types)
        # Program order: what uses this result is a consequence and not told again.
        solver.mark_failed(types[-1])
        if failed:
            continue
        known = [solver.resolve(t) for t in types[:-1]]
        error = TypeInferenceError(
            f"could not infer the type of {describe(call)}",
            fix="annotate the parameters whose type is shown as _",
        )
        mistakes.append(call_mistake(call, known, error))
    return mistakes


def _unknown(found: Constraints, types: list[Type]) -> list[TypeMistake]:
    """A mistake per variable of unknown type; per other node where no variable is to blame."""
    holes = [
        node
        for node, ty in zip(found.order, types)
        if type(ty) is not TensorType and found.solver.holes(ty)
    ]
    blamed = [n for n in holes if isinstance(n, Var)] or holes[:1]
    return [
        TypeMistake(
            node,
            f"could not infer the type of {describe(node)}",
            f"in {call_text(node)}",
            "annotate it, as in %x: Tensor[(1, 3, 8, 8), float32]",
        )
        for node in dict.fromkeys(blamed)
    ]


def _must_copy(found: Constraints, node: Expr, ty: Type) -> bool:
    old = node._checked_type
    if type(node) is Var:
        annotation = node.type_annotation
        if annotation is None:
            if node in found.params:
                return True
        elif type(annotation) is not TensorType and found.solver.resolve(annotation) != annotation:
            return True
    elif type(node) is GlobalVar:
        return False
    return old is not None and old is not ty and old != ty


def _copy_changed(found: Constraints, changed: set[Expr]) -> dict[Expr, Expr]:
    """Old node → node with the right type; unchanged ones map to themselves."""
    new: dict[Expr, Expr] = {
        node: _new_var(found, node, found.types[node])
        for node in found.order
        if node in changed and isinstance(node, Var)
    }
    for node in found.order:
        if node in new:
            continue
        copy = with_operands(node, [new.get(child, child) for child in node.operands()])
        if isinstance(copy, Match):
            copy = _with_pattern_vars(copy, new)
        if copy is node and node in changed:
            copy = node.fresh_copy()
        if isinstance(copy, Function) and copy.ret_type is not None:
            copy = copy.with_fields(ret_type=found.solver.resolve(copy.ret_type))
        if copy._checked_type is None or type(node) is GlobalVar:
            copy.set_checked_type(found.types[node])
        new[node] = copy
    return new


def _new_var(found: Constraints, var: Var, ty: Type) -> Var:
    if var.type_annotation is not None or var in found.params:
        annotation = ty
    else:
        annotation = None
    new = var.fresh_copy(type_annotation=annotation)
    new.set_checked_type(ty)
    return new


class _Renamer(PatternMutator):
    def __init__(self, new: dict[Expr, Expr]) -> None:
        self.new = new

    def visit_var(self, var: Var) -> Expr:
        return self.new.get(var, var)


def _with_pattern_vars(match: Match, new: dict[Expr, Expr]) -> Match:
    patterns = _Renamer(new)
    clauses = []
    for clause in match.clauses:
        lhs = patterns.visit(clause.lhs)
        clauses.append(clause if lhs is clause.lhs else Clause(lhs, clause.rhs))
    return match.with_fields(clauses=tuple(clauses))
