"""DeadCodeElimination: removes let bindings without a use.

    before                                after
    let %a = exp(%x);                     tanh(%x)
    let %b = add(%a, %a);
    tanh(%x)

A value is kept when computing it has an effect: it writes a reference, calls a stateful operator or
a function whose body is not known. With ``inline_once`` a pure value read once, in the scope that
binds it, replaces its variable. Source: Relay v0.10 transforms/dead_code.cc.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from compiler.ir.adt import Constructor, RefRead, RefWrite
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Let, Op, Var
from compiler.ir.functor import expand_anf
from compiler.ir.module import IRModule
from compiler.ir.op import STATEFUL
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.walk import nodes_of
from compiler.passes.opaque_primitives import OpaquePrimitives


@register_pass("DeadCodeElimination", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class DeadCodeElimination(FunctionPass):
    """Remove unused let bindings.

    Args:
        inline_once: also replace a variable that is used once by its value.
    """

    inline_once: bool = False

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function without dead bindings, itself when there are none."""
        if not any(type(node) is Let for node in nodes_of(fn)):
            return fn
        return _Eliminator(_Usage(fn, mod), self.inline_once).mutate(fn)


class _Usage:
    """Reads of every let variable by code that is alive; an unread pure value is not alive."""

    def __init__(self, root: Expr, mod: IRModule) -> None:
        self.effects = _Effects(mod)
        self.values: dict[Var, Expr] = {}
        self.reads: Counter[Var] = Counter()
        self._scope_of: dict[Var, Expr | None] = {}
        # A node, and the innermost function literal it lies in.
        self._stack: list[tuple[Expr, Expr | None]] = [(root, None)]
        self._seen: set[Expr] = set()
        while self._stack:
            self._step(*self._stack.pop())

    def _step(self, node: Expr, scope: Expr | None) -> None:
        if isinstance(node, Var):
            self._read(node, scope)
        elif node in self._seen:
            return
        elif isinstance(node, Let):
            self._seen.add(node)
            self.values[node.var] = node.value
            self._scope_of[node.var] = scope
            self.effects.functions[node.var] = node.value
            self._stack.append((node.body, scope))
            if self.effects.any(node.value):
                self._stack.append((node.value, scope))
        else:
            self._seen.add(node)
            if isinstance(node, Function):
                self._stack.append((node.body, node))
            else:
                self._stack.extend((child, scope) for child in node.operands())

    def _read(self, var: Var, scope: Expr | None) -> None:
        if var not in self.values:
            return
        first = self.reads[var] == 0
        # A read from inside a function literal may happen any number of times.
        self.reads[var] += 1 if scope is self._scope_of[var] else 2
        if first:
            self._stack.append((self.values[var], self._scope_of[var]))

    def is_dead(self, let: Let) -> bool:
        """True when the binding can go without anybody noticing."""
        return self.reads[let.var] == 0 and not self.effects.any(let.value)

    def may_inline(self, let: Let) -> bool:
        """True when the value can be computed at the one place that reads it."""
        return (
            self.reads[let.var] == 1
            and not isinstance(let.value, Function)
            and not self.effects.any(let.value, reading_counts=True)
        )


class _Effects:
    """Does computing an expression do more than give a value? Each node is asked once."""

    def __init__(self, mod: IRModule) -> None:
        self.mod = mod
        self.functions: dict[Expr, Expr] = {}
        self._known: dict[tuple[Expr, bool], bool] = {}

    def any(self, root: Expr, reading_counts: bool = False) -> bool:
        """True for an expression with an effect; reads of references only where they count."""
        stack: list[tuple[Expr, bool]] = [(root, False)]
        known = self._known
        while stack:
            node, operands_known = stack.pop()
            key = (node, reading_counts)
            if operands_known:
                below = (known[(c, reading_counts)] for c in self._computed(node))
                known[key] = self._own(node, reading_counts) or any(below)
            elif key not in known:
                # Met again before it is known, a node is a recursive function: it may not end.
                known[key] = True
                stack.append((node, True))
                stack.extend((c, False) for c in self._computed(node))
        return known[(root, reading_counts)]

    def _own(self, node: Expr, reading_counts: bool) -> bool:
        if isinstance(node, RefWrite):
            return True
        if isinstance(node, RefRead):
            return reading_counts
        if not isinstance(node, Call):
            return False
        if isinstance(node.op, Op):
            return STATEFUL in node.op.flags
        return not isinstance(node.op, Constructor) and self._body(node.op) is None

    def _computed(self, node: Expr) -> tuple[Expr, ...]:
        """Return the nodes that are computed when ``node`` is: its operands, for a call also the
        function's body."""
        if isinstance(node, (Function, Var, GlobalVar)):
            return ()
        if isinstance(node, Call):
            body = self._body(node.op)
            if body is None:
                return node.args
            return (*node.args, body)
        return node.operands()

    def _body(self, callee: Expr) -> Expr | None:
        target: Any = callee
        if isinstance(callee, GlobalVar):
            if self.mod.contains(callee.name_hint):
                target = self.mod[callee]
            else:
                target = None
        elif isinstance(callee, Var):
            target = self.functions.get(callee)
        if isinstance(target, Function):
            return target.body
        return None


class _Eliminator(OpaquePrimitives):
    def __init__(self, usage: _Usage, inline_once: bool) -> None:
        super().__init__()
        self.usage = usage
        self.inline_once = inline_once

    def visit_let(self, let: Let, *args: Any) -> Expr:
        def is_inlined(inner: Let) -> bool:
            return self.inline_once and self.usage.may_inline(inner)

        def bind(inner: Let) -> None:
            if self.usage.is_dead(inner):
                return
            if is_inlined(inner):
                self.memo[inner.var] = self.visit(inner.value)
            else:
                self.visit_binder(inner.var)
                self.visit(inner.value)

        def rebuild(inner: Let) -> None:
            body = self.visit(inner.body)
            if not self.usage.is_dead(inner) and not is_inlined(inner):
                value = self.visit(inner.value)
                body = inner.with_fields(var=self.visit_binder(inner.var), value=value, body=body)
            self.memo[inner] = body

        expand_anf(let, bind, rebuild, self.memo.__contains__)
        return self.memo[let]
