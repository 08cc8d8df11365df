"""InferType: give every expression its ``checked_type``.

Constraints are collected in one walk with a stack of its own; relations that lack information wait
in the solver. Nodes that carry the right type already are kept as they are, and in a function that
mentions no other function typed nodes are not even visited: only what a pass made new costs time.

A parameter without annotation gets its inferred type as annotation; everything else is typed in
place. Source: Relay v0.10 transforms/type_infer.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from compiler.errors import TypeInferenceError
from compiler.ir.adt import Constructor
from compiler.ir.expr import Expr, Function, GlobalVar, Tuple, Var, describe
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.constraints import Constraints
from compiler.ir.inference.scopes import declared_type
from compiler.ir.inference.settle import StaleTypesError, settle
from compiler.ir.inference.solver import PartsBudget
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.ty import FuncType, TensorType, TupleType, Type
from compiler.ir.walk import nodes_of, post_order

GlobalType = Callable[[GlobalVar], Type]


@collector_rests
def infer_module(mod: IRModule) -> IRModule:
    """``mod`` with types; the same object when every type was there.

    Raises:
        TypeInferenceError: see InferType.
    """
    functions = mod.functions
    if len(functions) == 1:
        only = next(iter(functions.values()))
        if not isinstance(only, Function) or only.checked_type_or_none is not None:
            for gv, fn in functions.items():
                _name_type(gv, fn)
            return mod
    mentioned = {
        gv.name_hint: _mentioned_globals(fn) if isinstance(fn, Function) else ()
        for gv, fn in functions.items()
        if len(functions) > 1  # the order of one function needs no walk
    }
    typed: dict[str, Function] = {}
    budget = PartsBudget()
    for name in _callees_first(mentioned) or [gv.name_hint for gv in functions]:
        fn = mod[name]
        if isinstance(fn, Function):
            new = _infer_function(name, fn, mod, typed, mentioned, budget)
            typed[name] = new
        _name_type(mod.get_global_var(name), typed.get(name, fn))
    if all(typed.get(gv.name_hint, fn) is fn for gv, fn in functions.items()):
        return mod
    return mod.with_functions({gv: typed.get(gv.name_hint, fn) for gv, fn in functions.items()})


def infer_expr(expr: Expr, mod: IRModule | None = None) -> Expr:
    """``expr`` with types. Free variables need an annotation or a type from an earlier inference.

    Raises:
        TypeInferenceError: see InferType.
    """
    in_module = mod if mod is not None else IRModule()
    return _infer(
        expr, in_module, _global_types(in_module, {}), None, describe(expr), PartsBudget()
    )


# Relay's name for the same thing.
infer_type = infer_expr


def _infer_function(
    name: str,
    fn: Function,
    mod: IRModule,
    typed: dict[str, Function],
    mentioned: dict[str, tuple[str, ...]],
    budget: PartsBudget,
) -> Function:
    trust = not mentioned[name] if mentioned else None
    if trust and fn.checked_type_or_none is not None:
        return fn
    if trust is not False and _has_typed_parts(fn) and not _mentioned_globals(fn):
        types = tuple(param.checked_type for param in fn.params)
        fn.set_checked_type(FuncType(types, fn.body.checked_type))
        return fn
    new = _infer(fn, mod, _global_types(mod, typed), trust, f"@{name}", budget)
    assert isinstance(new, Function)
    return new


def _has_typed_parts(fn: Function) -> bool:
    """Type the parameters and the results of a function; whether annotations and nodes say all."""
    if fn.type_params or not all(
        isinstance(param.type_annotation, TensorType) for param in fn.params
    ):
        return False
    for node in (*fn.params, fn.body):
        if node.checked_type_or_none is not None:
            continue
        known = [each.checked_type_or_none for each in node.operands()]
        if isinstance(node, Var):
            node.set_checked_type(node.type_annotation)
        elif isinstance(node, Tuple) and None not in known:
            node.set_checked_type(TupleType(tuple(ty for ty in known if ty is not None)))
        else:
            return False
    kept = all(param.checked_type == param.type_annotation for param in fn.params)
    return kept and fn.ret_type in (None, fn.body.checked_type)


def _infer(
    expr: Expr,
    mod: IRModule,
    global_type: GlobalType,
    trust: bool | None,
    name: str,
    budget: PartsBudget,
) -> Expr:
    """``trust``: whether typed nodes have the right type; None where that is to be found out."""

    def collected(trust: bool) -> Constraints:
        return Constraints(global_type, mod.get_type, budget, trust=trust).collect(expr)

    try:
        found = collected(trust is not False)
        if trust is None and found.met_typed and _mentioned_globals(expr):
            found = collected(False)
        try:
            return settle(found, expr, name)
        except StaleTypesError:
            # A variable got another type, so nodes that carry a type may carry an old one.
            return settle(collected(False), expr, name)
    except RecursionError:
        # Graphs may be as deep as they like; types hold each other, and are read by recursion.
        raise TypeInferenceError(
            f"{name}: types are nested too deep for the interpreter's stack",
            fix="tuples, functions and references may hold each other some hundred levels deep",
            span=expr.span,
        ) from None


def _global_types(mod: IRModule, typed: dict[str, Function]) -> GlobalType:
    def global_type(gv: GlobalVar) -> Type:
        name = gv.name_hint
        if name in typed:
            return typed[name].checked_type
        fn: Any = mod[name] if mod.contains(name) else None
        if isinstance(fn, Function):
            return fn.checked_type_or_none or _declared_type(name, fn)
        if isinstance(fn, LoweredFunction):
            return fn.func_type
        held = gv.checked_type_or_none
        if held is None:
            raise TypeInferenceError(
                f"@{name} is called but the module does not define it",
                fix=f"the module has: {', '.join('@' + g.name_hint for g in mod) or 'no function'}",
                span=gv.span,
            )
        return held

    return global_type


def _declared_type(name: str, fn: Function) -> FuncType:
    """Type of a function for a recursive call."""
    known = declared_type(fn)
    if known is not None:
        return known
    lacking = [f"%{p.name_hint}" for p in fn.params if p.type_annotation is None]
    if fn.ret_type is None:
        lacking.append("the result")
    raise TypeInferenceError(
        f"@{name} is recursive and lacks the type of {', '.join(lacking)}",
        fix="annotate every parameter and the result of a recursive function",
        span=fn.span,
    )


def _name_type(gv: GlobalVar, fn: Any) -> None:
    # A GlobalVar is shared by module versions; it carries the type of the one inferred last.
    if isinstance(fn, LoweredFunction):
        gv.set_checked_type(fn.func_type)
    elif isinstance(fn, Function) and fn.checked_type_or_none is not None:
        gv.set_checked_type(fn.checked_type)


def _mentioned_globals(root: Expr) -> tuple[str, ...]:
    """Name the parts of the module that ``root`` depends on: names of globals, and of types by
    constructor."""
    found: set[str] = set()
    # The next pass asks for the same order.
    for node in nodes_of(root) if type(root) is Function else post_order(root):
        if type(node) is GlobalVar:
            found.add(node.name_hint)
        elif type(node) is Constructor:
            found.add(f"type {node.belong_to.name_hint}")
    return tuple(sorted(found))


def _callees_first(mentioned: dict[str, tuple[str, ...]]) -> list[str]:
    """Function names such that callees come before callers, except around a recursion."""
    done: dict[str, None] = {}
    started: set[str] = set()
    stack = [(name, False) for name in sorted(mentioned, reverse=True)]
    while stack:
        name, callees_pushed = stack.pop()
        if callees_pushed:
            done[name] = None
        elif name not in started and name in mentioned:
            started.add(name)
            stack.append((name, True))
            stack.extend((n, False) for n in reversed(mentioned[name]) if n not in started)
    return list(done)
