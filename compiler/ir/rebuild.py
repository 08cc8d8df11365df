"""Copying with new operands: the one step that substitution, InferType and mutators repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from compiler.errors import MutatorError
from compiler.ir.adt import Clause, Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import Call, Expr, Function, If, Let, Tuple, TupleGetItem, Var, describe
from compiler.ir.ty import Type
from compiler.ir.walk import nodes_of, ordered, post_order

Operands = Sequence[Expr]
N = TypeVar("N", bound=Expr)


def with_operands(node: Expr, operands: Operands) -> Expr:
    """``node`` over other operands, in the order of ``operands()``; itself when all are the same.

    Raises:
        MutatorError: a binder would become something that is not a Var.
    """
    old = node.operands()
    for mine, given in zip(old, operands, strict=True):
        if mine is not given:
            break
    else:
        return node
    return typed_alike(node, _REBUILD[type(node)](node, operands))


def typed_alike(old: Expr, new: N) -> N:
    """``new``, the node ``old`` over other operands: with its type where theirs are the same.

    Types follow from types and attributes alone, so nothing is left to infer.
    """
    mine = old.operands()
    given = new.operands()
    if len(mine) == len(given) and all(map(_same_type, mine, given)):
        new.set_checked_type(old._checked_type)
    return new


def substitute(root: Expr, mapping: Mapping[Any, Expr]) -> Expr:
    """``root`` with every node that is a key of ``mapping`` replaced, sharing kept, O(nodes).

    Replacements are not visited again. Untouched parts are the very same objects.
    """
    done: dict[Expr, Expr] = dict(mapping)
    for node in post_order(root, lambda node: () if node in mapping else node.operands()):
        if node not in done:
            done[node] = with_operands(node, [done[child] for child in node.operands()])
    return done[root]


def _same_type(old: Expr, new: Expr) -> bool:
    ty = old._checked_type
    if new._checked_type is None and type(new) is Var and new.type_annotation == ty:
        new.set_checked_type(ty)
    return new is old or (ty is not None and (new._checked_type is ty or new._checked_type == ty))


def rebuilt(
    order: Iterable[Expr], made: Callable[[Expr, Mapping[Expr, Expr]], Expr | None]
) -> dict[Expr, Expr]:
    """New node of every node.

    Args:
        order: operands before users, such as ``post_order`` gives.
        made: what a node becomes, from the node and the new forms of the nodes before it; None
            keeps the node, over its new operands.
    """
    new: dict[Expr, Expr] = {}
    for node in order:
        given = made(node, new)
        if given is None:
            given = with_operands(node, [new[child] for child in node.operands()])
        new[node] = given
    return new


def rebuilt_function(
    function: Function,
    made: Callable[[Expr, Mapping[Expr, Expr]], Expr | None],
    params: tuple[Var, ...] | None = None,
) -> Function:
    """``function`` over the new nodes of its body; itself where nothing changes.

    Where it has the shape of the old one, but for leaves, the order of its nodes is known.

    Args:
        made: as of ``rebuilt``.
        params: of the new function; None keeps them.
    """
    new = rebuilt(nodes_of(function), made)
    params = function.params if params is None else params
    if new[function.body] is function.body and params == function.params:
        return function
    result = function.with_fields(params=params, body=new[function.body])
    forms = {function.body: result.body}  # of each old node, the one that all its readers read
    for old, node in new.items():
        before = old.operands()
        after = node.operands()
        if len(before) != len(after):
            return result
        for child, form in zip(before, after):
            leaf = not child.operands() and not form.operands()
            if forms.setdefault(child, form) is not form or not (leaf or form is new[child]):
                return result
    return ordered(result, dict.fromkeys(forms[old] for old in new))


def _binder(node: Expr, var: Expr) -> Var:
    if not isinstance(var, Var):
        raise MutatorError(
            f"{describe(node)}: a binder became a {type(var).__name__}, it must stay a Var",
            fix="replace uses of the variable, not the place where it is bound",
            span=node.span,
        )
    return var


def call_over(call: Call, op: Expr, args: tuple[Expr, ...], type_args: tuple[Type, ...]) -> Call:
    """``call.with_fields(op=op, args=args, type_args=type_args)``, but faster."""
    return Call(
        op,
        args,
        call.attrs,
        type_args,
        span=call.span,
        quant=call.quant,
        virtual_device=call.virtual_device,
    )


def _function(node: Function, ops: Operands) -> Expr:
    return node.with_fields(params=tuple(_binder(node, p) for p in ops[:-1]), body=ops[-1])


def _let(node: Let, ops: Operands) -> Expr:
    return node.with_fields(var=_binder(node, ops[0]), value=ops[1], body=ops[2])


def _match(node: Match, ops: Operands) -> Expr:
    clauses = tuple(
        old if old.rhs is rhs else Clause(old.lhs, rhs) for old, rhs in zip(node.clauses, ops[1:])
    )
    return node.with_fields(data=ops[0], clauses=clauses)


_REBUILD: dict[type, Callable[[Any, Operands], Expr]] = {
    Call: lambda node, ops: call_over(node, ops[0], tuple(ops[1:]), node.type_args),
    Tuple: lambda node, ops: node.with_fields(fields=tuple(ops)),
    TupleGetItem: lambda node, ops: node.with_fields(tuple=ops[0]),
    Function: _function,
    Let: _let,
    If: lambda node, ops: node.with_fields(cond=ops[0], true_branch=ops[1], false_branch=ops[2]),
    RefCreate: lambda node, ops: node.with_fields(value=ops[0]),
    RefRead: lambda node, ops: node.with_fields(ref=ops[0]),
    RefWrite: lambda node, ops: node.with_fields(ref=ops[0], value=ops[1]),
    Match: _match,
}
