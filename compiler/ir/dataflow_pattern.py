"""Patterns over several nodes: match them, rewrite what they match, or cut it out as a function.

>>> from compiler.ir.expr import Var, call_op
>>> x = wildcard()
>>> pattern = is_op("nn.relu")(is_op("add")(x, wildcard()))
>>> a, b = Var("a"), Var("b")
>>> found = match(pattern, call_op("nn.relu", call_op("add", a, b)))
>>> found[x][0] is a
True

Matching recurses over the pattern, never over the graph. Source: Relay v0.10 dataflow_pattern.h.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.errors import RewriteLoopError
from compiler.ir.analysis import post_order
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, Var
from compiler.ir.functor import MixedModeMutator
from compiler.ir.rebuild import substitute
from compiler.ir.structural import structural_equal
from compiler.ir.ty import Type

Bindings = dict["DFPattern", Expr]

NodeMap = dict["DFPattern", list[Expr]]
"""Pattern → the expression that it matched, in a list as Relay gives it."""


class DFPattern:
    """Base of patterns; the object is its identity and the key of what it matched."""

    def __call__(self, *args: DFPattern) -> CallPattern:
        """A call of what this pattern matches, on these arguments."""
        return CallPattern(self, args)

    def __or__(self, other: DFPattern) -> AltPattern:
        return AltPattern(self, other)

    def __add__(self, other: DFPattern) -> CallPattern:
        return OpPattern("add")(self, other)

    def __sub__(self, other: DFPattern) -> CallPattern:
        return OpPattern("subtract")(self, other)

    def __mul__(self, other: DFPattern) -> CallPattern:
        return OpPattern("multiply")(self, other)

    def __truediv__(self, other: DFPattern) -> CallPattern:
        return OpPattern("divide")(self, other)

    def has_attr(self, attrs: Mapping[str, Any]) -> AttrPattern:
        """The same, with these values among the attributes of the call, function or operator."""
        return AttrPattern(self, attrs)

    def has_type(self, ty: Type) -> TypePattern:
        """The same, of exactly this inferred type."""
        return TypePattern(self, ty)

    def optional(self, wrap: Callable[[DFPattern], DFPattern]) -> AltPattern:
        """``wrap(self)`` where it matches, else ``self``."""
        return wrap(self) | self

    def match(self, expr: Expr) -> bool:
        """Return whether the pattern matches ``expr``."""
        return match(self, expr) is not None

    def partition(self, expr: Expr, attrs: Mapping[str, Any] | None = None) -> Expr:
        """``partition`` of this pattern."""
        return partition(self, expr, attrs)

    def dominates(self, parent: DFPattern, path: DFPattern | None = None) -> DominatorPattern:
        """This pattern, all inputs of which come from ``parent`` through nodes of ``path``."""
        return DominatorPattern(parent, path or WildcardPattern(), self)

    def fits(self, expr: Expr, found: Bindings) -> bool:
        """Match ``expr`` and note it in ``found``; the same pattern matches one object only."""
        held = found.get(self)
        if held is not None:
            return held is expr
        if not self._fits(expr, found):
            return False
        found[self] = expr
        return True

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        raise NotImplementedError(f"{type(self).__name__} is a kind of pattern, not a pattern")


class WildcardPattern(DFPattern):
    """Anything; used twice, the same object twice."""

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return True


class ConstantPattern(DFPattern):
    """A Constant."""

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return isinstance(expr, Constant)


class VarPattern(DFPattern):
    """A Var, of this name when one is given."""

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return isinstance(expr, Var) and self.name in (None, expr.name_hint)


class OpPattern(DFPattern):
    """An operator by name; call the pattern to match calls of it.

    Raises:
        UnknownOpError: no such operator.
    """

    def __init__(self, name: str) -> None:
        self.op = Op.get(name)

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return expr is self.op


class CallPattern(DFPattern):
    """A call whose callee and arguments match."""

    def __init__(self, op: DFPattern, args: Sequence[DFPattern]) -> None:
        self.op = op
        self.args = tuple(args)

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        if not isinstance(expr, Call) or len(expr.args) != len(self.args):
            return False
        return self.op.fits(expr.op, found) and all(
            pattern.fits(arg, found) for pattern, arg in zip(self.args, expr.args)
        )


class TuplePattern(DFPattern):
    """A Tuple whose fields match."""

    def __init__(self, fields: Sequence[DFPattern]) -> None:
        self.fields = tuple(fields)

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        if not isinstance(expr, Tuple) or len(expr.fields) != len(self.fields):
            return False
        return all(pattern.fits(f, found) for pattern, f in zip(self.fields, expr.fields))


class TupleGetItemPattern(DFPattern):
    """A field of a matching tuple-valued expression; any field when the index is None."""

    def __init__(self, tup: DFPattern, index: int | None = None) -> None:
        self.tup = tup
        self.index = index

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        if not isinstance(expr, TupleGetItem) or self.index not in (None, expr.index):
            return False
        return self.tup.fits(expr.tuple, found)


class AltPattern(DFPattern):
    """The left pattern, or where that fails the right one."""

    def __init__(self, left: DFPattern, right: DFPattern) -> None:
        self.left = left
        self.right = right

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        before = dict(found)
        if self.left.fits(expr, found):
            return True
        found.clear()
        found.update(before)
        return self.right.fits(expr, found)


class AttrPattern(DFPattern):
    """A pattern with conditions on attributes; of an operator: TOpPattern and its flags."""

    def __init__(self, inner: DFPattern, attrs: Mapping[str, Any]) -> None:
        self.inner = inner
        self.attrs = DictAttrs(attrs)

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        if isinstance(expr, Op):
            values = {"TOpPattern": expr.pattern, **dict.fromkeys(expr.flags, True)}
        elif isinstance(expr, Call):
            if expr.attrs is not None:
                values = dict(expr.attrs.items())
            else:
                values = {}
        elif isinstance(expr, Function):
            values = dict(expr.attrs)
        else:
            return False
        has_all = all(key in values and values[key] == want for key, want in self.attrs.items())
        return has_all and self.inner.fits(expr, found)


class TypePattern(DFPattern):
    """A pattern with a condition on the inferred type."""

    def __init__(self, inner: DFPattern, ty: Type) -> None:
        self.inner = inner
        self.ty = ty

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return expr.checked_type_or_none == self.ty and self.inner.fits(expr, found)


class DominatorPattern(DFPattern):
    """``child``, all of whose inputs come from one ``parent`` through nodes matching ``path``."""

    def __init__(self, parent: DFPattern, path: DFPattern, child: DFPattern) -> None:
        self.parent = parent
        self.path = path
        self.child = child

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        if not self.child.fits(expr, found):
            return False
        stack = [expr]
        seen = {expr}
        while stack:
            node = stack.pop()
            if isinstance(node, Call):
                inputs = node.args
            else:
                inputs = node.operands()
            if not inputs:
                return False
            for child in inputs:
                if child in seen or self._is_parent(child, found):
                    continue
                # Every node between is matched on its own, so its bindings are not kept.
                if not self.path.fits(child, dict(found)):
                    return False
                seen.add(child)
                stack.append(child)
        return self.parent in found

    def _is_parent(self, expr: Expr, found: Bindings) -> bool:
        trial = dict(found)
        if not self.parent.fits(expr, trial):
            return False
        found.update(trial)
        return True


MAX_ROUNDS = 100


# The names by which patterns are written.
wildcard = WildcardPattern
is_op = OpPattern
is_constant = ConstantPattern
is_var = VarPattern
is_tuple = TuplePattern
is_tuple_get_item = TupleGetItemPattern
dominates = DominatorPattern


def match(pattern: DFPattern, expr: Expr) -> NodeMap | None:
    """Return the match of each pattern object, or None when ``expr`` does not match."""
    found: Bindings = {}
    if not pattern.fits(expr, found):
        return None
    return {key: [value] for key, value in found.items()}


class DFPatternCallback:
    """A rule of ``rewrite``: a subclass sets ``pattern``, and defines ``callback``."""

    pattern: DFPattern

    def callback(self, pre: Expr, post: Expr, node_map: NodeMap) -> Expr:
        """Return the replacement of the match ``pre``; ``post`` and ``node_map`` are rewritten
        already."""
        raise NotImplementedError(f"{type(self).__name__} does not define callback")

    def rewrite(self, expr: Expr) -> Expr:
        """``rewrite`` by this rule."""
        return rewrite(self, expr)


class _PatternRewriter(MixedModeMutator):
    def __init__(self, callbacks: Sequence[DFPatternCallback]) -> None:
        super().__init__()
        self.callbacks = callbacks

    def dispatch_visit(self, expr: Expr) -> Expr:
        post = self.dispatch(expr)
        for rule in self.callbacks:
            found = match(rule.pattern, expr)
            if found is not None:
                rewritten = {p: [self.memo.get(e, e)] for p, (e,) in found.items()}
                rewritten[rule.pattern] = [post]
                post = rule.callback(expr, post, rewritten)
        return post


def rewrite(callbacks: DFPatternCallback | Sequence[DFPatternCallback], expr: Expr) -> Expr:
    """Apply rules bottom-up, over and over until nothing changes.

    Only nodes of ``expr`` have types: ``has_type`` does not match nodes that a rule has made.

    Raises:
        RewriteLoopError: still changing after 100 rounds.
    """
    if isinstance(callbacks, Sequence):
        rules = list(callbacks)
    else:
        rules = [callbacks]
    for _ in range(MAX_ROUNDS):
        new = _PatternRewriter(rules).visit(expr)
        if new is expr or structural_equal(new, expr):
            return expr
        expr = new
    raise RewriteLoopError(
        f"the pattern rules still change the expression after {MAX_ROUNDS} rounds",
        where=", ".join(type(rule).__name__ for rule in rules),
        fix="let the callback return post where its result would match again",
    )


def partition(pattern: DFPattern, expr: Expr, attrs: Mapping[str, Any] | None = None) -> Expr:
    """Move every match into a function of its own, called in its place.

    What wildcards and variables matched become parameters, constants move along. Matches nearer to
    the result win; a match one of whose inner values is used outside it is left alone.

    Args:
        pattern: what to cut out.
        expr: the expression, untouched.
        attrs: attributes of the functions, such as ``{"Composite": "dnn.conv_relu"}``.
    """
    nodes = list(post_order(expr))
    users: dict[Expr, list[Expr]] = {}
    for node in nodes:
        for child in node.operands():
            users.setdefault(child, []).append(node)
    taken: set[Expr] = set()
    cuts: dict[Expr, list[Expr]] = {}
    for node in reversed(nodes):
        found: Bindings = {}
        if node in taken or not pattern.fits(node, found):
            continue
        inputs, inside = _cut(node, found)
        escapes = any(u not in inside for n in inside if n is not node for u in users[n])
        if not inside or escapes or not taken.isdisjoint(inside):
            continue
        taken |= inside
        cuts[node] = inputs
    if cuts:
        return _Partitioner(cuts, DictAttrs(attrs or {})).visit(expr)
    return expr


def _cut(root: Expr, found: Bindings) -> tuple[list[Expr], set[Expr]]:
    """Inputs of a match, in order of first use, and the nodes computed inside it."""
    leaves = {e for p, e in found.items() if isinstance(p, (WildcardPattern, VarPattern))}
    inputs: dict[Expr, None] = {}
    inside: set[Expr] = set()
    stack = [root]
    while stack:
        node = stack.pop()
        if node is not root and (node in leaves or isinstance(node, Var)):
            if not isinstance(node, Op):
                inputs[node] = None
        elif node not in inside and not isinstance(node, (Op, Constant)):
            inside.add(node)
            stack.extend(reversed(node.operands()))
    return list(inputs), inside


class _Partitioner(MixedModeMutator):
    def __init__(self, cuts: Mapping[Expr, list[Expr]], attrs: DictAttrs) -> None:
        super().__init__()
        self.cuts = cuts
        self.attrs = attrs

    def dispatch_visit(self, expr: Expr) -> Expr:
        inputs = self.cuts.get(expr)
        if inputs is None:
            return self.dispatch(expr)
        params = [Var(f"p{i}", e.checked_type_or_none) for i, e in enumerate(inputs)]
        body = substitute(expr, dict(zip(inputs, params)))
        ret_type = expr.checked_type_or_none
        function = Function(tuple(params), body, ret_type, attrs=self.attrs, span=expr.span)
        return Call(function, tuple([self.visit(e) for e in inputs]), span=expr.span)
