"""The pattern objects of ``dataflow_pattern``: what each kind matches and what it notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, Var
from compiler.ir.ty import Type

Bindings = dict["DFPattern", Expr]


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
    """Anything."""

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return True


class ConstantPattern(DFPattern):
    """A Constant."""

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return isinstance(expr, Constant)


class VarPattern(DFPattern):
    """A Var, of this name when one is given."""

    def __init__(self, name: str | None) -> None:
        self.name = name

    def _fits(self, expr: Expr, found: Bindings) -> bool:
        return isinstance(expr, Var) and self.name in (None, expr.name_hint)


class OpPattern(DFPattern):
    """An operator by name."""

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

    def __init__(self, tup: DFPattern, index: int | None) -> None:
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
            values = dict(expr.attrs.items()) if expr.attrs is not None else {}
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
        stack, seen = [expr], {expr}
        while stack:
            node = stack.pop()
            inputs = node.args if isinstance(node, Call) else node.operands()
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
