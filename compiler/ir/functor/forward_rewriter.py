"""ForwardRewriter: per-operator rules that pass temporary expressions from producer to consumer.

    before                          rule of multiply returns Scaled(x, s)      after
    %0 = multiply(%x, s);           rule of nn.conv2d meets Scaled             nn.conv2d(%x, w * s)
    nn.conv2d(%0, w)

A temporary that reaches a consumer without a rule is realized there.
Source: Relay v0.10 transforms/forward_rewrite.cc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from compiler.ir.expr import Call, Expr, Function, TempExpr, Tuple, TupleGetItem
from compiler.ir.functor.mixed_mode import MixedModeMutator
from compiler.ir.functor.mutator import rebuild_call
from compiler.ir.op import OpRule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import nodes_of, post_order

ForwardRule = Callable[[Call, tuple[Expr, ...], Any], Expr | None]
"""``rule(ref_call, new_args, ctx)``: the value of a call (temporary or not), or None to decline.
``ref_call`` is the call before rewriting, typed; ``new_args`` may be temporary."""


class Realizer(MixedModeMutator):
    """Replaces every temporary expression by its ``realize()``, which is not descended into."""

    def visit_temp(self, expr: TempExpr, *args: Any) -> Expr:
        return expr.realize()


class ForwardRewriter(MixedModeMutator):
    """One run of a rule table over an expression; make a new one per expression.

    Args:
        rules: a table operator → rule, or one rule used for every call.
        fcontext: ``call -> ctx`` handed to the rule of that call; without it ctx is None.
        fmulti_ref_trigger: applied to the new form of a node on every edge that consumes it when
            the original has more than one such edge.
    """

    def __init__(
        self,
        rules: OpRule[Any] | ForwardRule,
        fcontext: Callable[[Call], Any] | None = None,
        fmulti_ref_trigger: Callable[[Expr], Expr] | None = None,
    ) -> None:
        super().__init__()
        self.rule_of: Callable[[Expr], ForwardRule | None] = (
            rules.get if isinstance(rules, OpRule) else lambda _op: rules
        )
        self.fcontext = fcontext
        self.trigger = fmulti_ref_trigger
        self.shared: set[Expr] = set()
        self.realizer = Realizer()

    def rewrite(self, expr: Expr) -> Expr:
        """``expr`` after the rules; free of temporary expressions; itself when no rule fired."""
        self._find_shared(post_order(expr))
        return self.realizer.visit(self.visit(expr))

    def rewrite_body(self, function: Function) -> Expr:
        """``rewrite`` of the body of a function."""
        self._find_shared(nodes_of(function))
        self.follow_order(function)
        return self.realizer.visit(self.visit(function.body))

    def _find_shared(self, nodes: Iterable[Expr]) -> None:
        if self.trigger is not None:
            uses = Counter(child for node in nodes for child in node.operands())
            self.shared = {node for node, count in uses.items() if count > 1}

    def temp(self, original: Expr) -> Expr:
        """The new form of a child as its consumer sees it."""
        new = original
        if type(original) not in self._atoms:
            new = self.memo.get(original) or self.visit(original)
        if self.trigger is not None and original in self.shared:
            return self.trigger(new)
        return new

    def visit_function(self, function: Function, *args: Any) -> Expr:
        """A fused kernel is opaque."""
        if function.has_nonzero_attr("Primitive"):
            return function
        return super().visit_function(function, *args)

    def visit_tuple(self, tup: Tuple, *args: Any) -> Expr:
        return with_operands(tup, [self.temp(f) for f in tup.fields])

    def visit_tuple_getitem(self, item: TupleGetItem, *args: Any) -> Expr:
        new = self.temp(item.tuple)
        if isinstance(new, Tuple):
            return new.fields[item.index]
        return item.with_fields(tuple=new)

    def visit_call(self, call: Call, *args: Any) -> Expr:
        realize = self.realizer.visit
        op = call.op
        if type(op) not in self._atoms:
            op = self.visit(op)
        if isinstance(op, Function):
            op = realize(op)
        rule = self.rule_of(call.op)
        new_args = tuple([self.temp(a) for a in call.args])
        if rule is not None:
            ctx = None if self.fcontext is None else self.fcontext(call)
            result = rule(call, new_args, ctx)
            if result is not None:
                if isinstance(result, TempExpr) and result.span is None:
                    # What it becomes when a consumer realizes it comes from here all the same.
                    object.__setattr__(result, "span", call.span)
                return result
        new_args = tuple([a if type(a) in self._atoms else realize(a) for a in new_args])
        return rebuild_call(call, op, new_args, call.type_args)
