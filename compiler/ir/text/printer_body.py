"""Printing one definition: lines, temporaries, names and nested scopes, on explicit stacks.

A node belongs to the nearest scope of the text that encloses all its uses. It is rendered after its
operands (callee first, then arguments) and becomes a line ``%n = …;`` when its first consumer is
rendered. A nested scope is a generator that the driver runs, so depth of nesting is bounded by
memory only. Types and attribute values are written by functions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from operator import methodcaller
from string import ascii_letters
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.adt import (
    REF_WORD_OF,
    Constructor,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    pattern_vars,
)
from compiler.ir.attrs import Attrs
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Quant,
    TempExpr,
    Tuple,
    TupleGetItem,
    Var,
    by_name,
)
from compiler.ir.scope_tree import Scope, placed, scoped_operands
from compiler.ir.text import literals
from compiler.ir.text.metadata import MetadataWriter
from compiler.ir.text.nested_scopes import drive
from compiler.ir.ty import (
    GlobalTypeVar,
    IncompleteType,
    Nested,
    Shape,
    TensorType,
    Type,
    TypeVar,
)
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.ir.walk import is_lowered_call, mentions, nodes_of, post_order
from compiler.span import ANONYMOUS, AnySpan, parts_of

_OPERANDS = methodcaller("operands")


@dataclass(slots=True)
class ScopePlan:
    """Facts that the printer needs before it starts.

    ``uses`` counts parent edges, but in a text of one scope. ``flat_lets`` are lets printed as
    lines of the scope they end; any other let is a braced block. ``captured`` lists, per node that
    opens scopes, what of the surrounding scope is used inside, in post-order.
    """

    uses: Counter[Expr]
    flat_lets: set[Expr] = field(default_factory=set)
    captured: dict[Expr, list[Expr]] = field(default_factory=dict)


def plan_scopes(root: Expr) -> ScopePlan:
    """Plan the scopes below ``root``.

    A node's scope is the lowest common ancestor of the scopes of its uses, found users first.
    """
    if isinstance(root, Function) and is_flat(root):
        # Nothing is used from outside, and the result by nothing inside.
        return ScopePlan(Counter())
    order = list(post_order(root))
    plan = ScopePlan(Counter(chain.from_iterable(map(_OPERANDS, order))))
    _place(root, order, plan)
    return plan


def is_flat(function: Function) -> bool:
    """Return whether the body of a function is one scope of calls and tuples."""
    return bool(nodes_of(function)) and function.is_dataflow


class ScalarUses:
    """Uses of each scalar constant by some expressions; counted at the first question."""

    def __init__(self, *roots: Expr) -> None:
        self._roots = roots
        self._uses: Counter[Expr] | None = None

    def of(self, constant: Constant) -> int:
        """Parent edges of one."""
        if self._uses is None:
            nodes = chain.from_iterable(map(post_order, self._roots))
            edges = chain.from_iterable(map(_OPERANDS, nodes))
            self._uses = Counter(n for n in edges if type(n) is Constant and n.is_scalar)
        return self._uses[constant]


def _place(root: Expr, order: list[Expr], plan: ScopePlan) -> None:
    edges: list[tuple[Expr, Scope]] = []
    if isinstance(root, Let):
        plan.flat_lets.add(root)

    def places(node: Expr, scope: Scope) -> list[tuple[Expr, Scope]]:
        found = _operand_scopes(node, scope, plan)
        used = [(child, where) for child, where in found if not isinstance(child, Op)]
        edges.extend(used)
        return used

    owner = placed(order, places)
    captured: dict[Expr, set[Expr]] = {}
    for child, scope in edges:
        home = owner[child]
        if scope is not home:
            inside = scope.at_depth(home.depth + 1).construct
            assert inside is not None
            captured.setdefault(inside, set()).add(child)
    position = {node: i for i, node in enumerate(order)}
    plan.captured = {
        node: sorted(found, key=position.__getitem__) for node, found in captured.items()
    }


def _operand_scopes(node: Expr, scope: Scope, plan: ScopePlan) -> list[tuple[Expr, Scope]]:
    def opened(result: Expr, around: Scope) -> Scope:
        if isinstance(result, Let) and plan.uses[result] == 1:
            plan.flat_lets.add(result)
        return Scope(node, around)

    if isinstance(node, Let):
        if node not in plan.flat_lets:
            scope = Scope(node, scope)
        if isinstance(node.body, Let) and plan.uses[node.body] == 1:
            plan.flat_lets.add(node.body)
    return scoped_operands(node, scope, opened)


# ---- definitions ---------------------------------------------------------------------------------


_LETTERS = frozenset(ascii_letters)


class TypeText:
    """Prints types; type variables get distinct names in one definition."""

    def __init__(self) -> None:
        self._names: dict[TypeVar, str] = {}
        self._table = NameTable()
        self._tensors: dict[tuple[Shape, str], str] = {}

    def text(self, ty: Type) -> str:
        """Relay text of a type; a scalar is its dtype. Recurses over the nesting of the type."""
        if isinstance(ty, TensorType):
            key = ty.shape, ty.dtype
            held = self._tensors.get(key)
            if held is None:
                held = self._tensors[key] = str(ty) if ty.shape else ty.dtype
            return held
        if isinstance(ty, TypeVar):
            return self.variable(ty)
        if isinstance(ty, Nested):
            return ty.text(self.text)
        if isinstance(ty, GlobalTypeVar):
            return literals.name(ty.name_hint)
        if isinstance(ty, IncompleteType):
            return "_"
        raise CompilerError(f"{type(ty).__name__} has no text as a type")

    def variable(self, var: TypeVar) -> str:
        """Name of a type variable, made unique at first use."""
        held = self._names.get(var)
        if held is None:
            hint = var.name_hint
            hint = hint if hint[:1] in _LETTERS else "v" + hint
            held = self._names[var] = self._table.unique(hint)
        return held

    def parameters(self, params: tuple[TypeVar, ...]) -> str:
        """``[A, B]``, or "" for none."""
        if params:
            return f"[{', '.join(self.variable(p) for p in params)}]"
        return ""


class NameTable:
    """Distinct names in one definition."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """``hint``, or ``hint1``, ``hint2`` … when it is taken; "v" where there is none."""
        hint = hint or "v"
        numbers = self._numbers
        known = len(self._numbers)
        number = numbers.setdefault(hint, 0)
        if len(numbers) > known:
            return hint
        found = hint
        while found in numbers:  # and so are the names up to this number
            number += 1
            found = f"{hint}{number}"
        numbers[hint] = number
        numbers[found] = 0
        return found


def value_text(value: Any, meta: MetadataWriter) -> str:
    """Text of an attribute value; recurses over the nesting of the value.

    Raises:
        CompilerError: a kind of value that has no text.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        # A double with suffix f; the parser reads it as a double again.
        return literals.shortest(value) + "f"
    if isinstance(value, str):
        return literals.string(value)
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(value_text(v, meta) for v in value)}]"
    if isinstance(value, Mapping):
        by_name(value)  # refuses keys that are neither strings nor names of functions
        items = (f"{value_text(k, meta)}={value_text(v, meta)}" for k, v in value.items())
        return f"{{{', '.join(items)}}}"
    if isinstance(value, GlobalVar):
        return f"@{literals.name(value.name_hint)}"
    if isinstance(value, Constant):
        return meta.constant(value)
    if isinstance(value, VirtualDevice):
        return meta.device(value)
    if isinstance(value, Attrs):
        fields = {name: value_text(field, meta) for name, field in value.items()}
        return meta.attrs(value, fields)
    raise CompilerError(f"an attribute value of type {type(value).__name__} has no text: {value!r}")


# ---- bodies --------------------------------------------------------------------------------------


INDENT = "  "

# Steps of the walk: open a node, bind what its scopes use from outside, render it, name it.
OPEN, CAPTURE, RENDER, BIND = range(4)

# Text of one node, as lines: those after the first are already indented, some may be joined.
Lines = list[str]
ScopeRun = Generator["ScopeRun", Lines, Lines]
Rendering = Generator[ScopeRun, Lines, Lines]


class BodyPrinter:
    """The text of one expression with a name table of its own: numbering starts at %0.

    Args:
        root: function or other expression to print.
        meta: collects what has no literal.
        show_types: add ``/* ty=… */`` comments where types are known.
        scalar_uses: in the whole text; without it ``root`` is all of the text. A literal is a
            constant of its own when it is parsed, so a scalar that has several uses is written to
            the metadata and stays shared.
    """

    def __init__(
        self,
        root: Expr,
        meta: MetadataWriter,
        show_types: bool,
        show_spans: bool = True,
        scalar_uses: ScalarUses | None = None,
    ) -> None:
        self._plan = plan_scopes(root)
        if scalar_uses is None:
            self._scalar_uses = ScalarUses(root)
        else:
            self._scalar_uses = scalar_uses
        self._meta = meta
        self._show_types = show_types
        self._show_spans = show_spans
        self._types = TypeText()
        self._names: dict[Var, str] = {}
        self._table = NameTable()
        self._next_temp = 0
        self._bound: dict[Expr, str] = {}
        self._rendered: dict[Expr, Lines] = {}
        self._constants: dict[Expr, str] = {}
        self._lines: Lines = []
        self._indent = ""

    def expression(self, root: Expr) -> str:
        """Lines of a free-standing expression."""
        lines = drive(self._scope(root, ""))
        return "\n".join(lines)

    def definition(self, name: str, fn: Function) -> str:
        """``def @name(…) {…}``."""
        head = f"def @{literals.name(name)}{self._head(fn)} {{"
        flat = is_flat(fn) and not mentions(fn, _INLINE_ARGUMENTS)
        scope = self._scope(fn.body, INDENT, nodes_of(fn) if flat else ())
        return "\n".join([head, *drive(scope), "}"])

    def _scope(self, result: Expr, indent: str, nodes: tuple[Expr, ...] = ()) -> ScopeRun:
        """All lines of one scope, the last one being its result.

        Args:
            nodes: the order of all nodes, where it is known and they open no scope. The walk gives
                the same order, but reads each node twice.
        """
        outer = self._lines, self._indent
        lines: Lines = []
        self._lines = lines
        self._indent = indent
        for node in nodes:
            if type(node) not in _INLINE:
                self._rendered[node] = [self._flat(node)]
        node = result
        while isinstance(node, Let) and node in self._plan.flat_lets:
            name = self._declare(node.var)
            yield from self._expand(node.value)
            self._line(f"let {name} = ", self._result(node.value), ";")
            node = node.body
        yield from self._expand(node)
        self._line("", self._result(node), "")
        self._lines, self._indent = outer
        return lines

    def _line(self, before: str, text: Lines, after: str) -> None:
        first = len(self._lines)
        self._lines.extend(text)
        self._lines[first] = self._indent + before + self._lines[first]
        self._lines[-1] += after

    def _result(self, node: Expr) -> Lines:
        """Text in result position: the node itself if this is its only use."""
        if node not in self._bound and self._plan.uses[node] <= 1 and node in self._rendered:
            return self._rendered.pop(node)
        return [self._ref(node)]

    def _expand(self, root: Expr) -> Generator[ScopeRun, Lines, None]:
        """Render everything ``root`` needs in this scope, operands first."""
        rendered = self._rendered
        bound = self._bound
        stack: list[tuple[Expr, int]] = [(root, OPEN)]
        while stack:
            node, step = stack.pop()
            if step == BIND:
                self._ref(node)
            elif node in rendered or node in bound or type(node) in _INLINE:
                continue
            elif step == OPEN:
                captured = self._plan.captured.get(node)
                stack.append((node, RENDER if captured is None else CAPTURE))
                for child in reversed(_dataflow_operands(node)):
                    if type(child) not in _INLINE:
                        stack.append((child, OPEN))
            elif step == CAPTURE:
                stack.append((node, RENDER))
                for child in reversed(self._plan.captured[node]):
                    stack.append((child, BIND))
                    stack.append((child, OPEN))
            else:
                rendered[node] = yield from self._render(node)

    def _ref(self, node: Expr) -> str:
        """Return the text of ``node`` for a consumer: inline, or the temporary that now holds
        it."""
        if isinstance(node, Var):
            return self._names.get(node) or self._free(node)
        held = self._bound.get(node)
        if held is not None:
            return held
        if isinstance(node, Constant):
            return self._constant(node)
        if isinstance(node, Op):
            return node.name
        if isinstance(node, GlobalVar):
            return f"@{literals.name(node.name_hint)}"
        if isinstance(node, Constructor):
            return literals.name(node.name_hint)
        temp = self._bound[node] = f"%{self._next_temp}"
        self._next_temp += 1
        self._line(f"{temp} = ", self._rendered.pop(node), ";")
        return temp

    def _constant(self, node: Constant) -> str:
        held = self._constants.get(node)
        if held is not None:
            return held
        shown = None
        if node.is_scalar and self._scalar_uses.of(node) < 2:
            shown = literals.scalar_literal(node.data)
        shown = shown or self._meta.constant(node)
        self._constants[node] = shown
        return shown + self._comment(node)

    def _name(self, var: Var) -> str:
        held = self._names.get(var)
        if held is None:
            held = self._names[var] = "%" + literals.name(self._table.unique(var.name_hint))
        return held

    def _declare(self, var: Var) -> str:
        """A variable where it is bound, with device, annotation and inferred type."""
        text = self._name(var)
        if var.virtual_device is not UNCONSTRAINED:
            text += f" {{virtual_device={self._meta.device(var.virtual_device)}}}"
        if var.type_annotation is not None:
            text += f": {self._types.text(var.type_annotation)}{self._quant(var.quant)}"
        return text + self._comment(var)

    def _free(self, var: Var) -> str:
        self._line("free_var ", [self._declare(var)], ";")
        return self._names[var]

    def _quant(self, quant: Quant | None) -> str:
        """`` : quant(0.5f, 3, 12)``; zeros at its end are left out."""
        if quant is None:
            return ""
        if isinstance(quant.scale, Constant):
            scale = self._meta.constant(quant.scale)
        else:
            scale = f"{literals.shortest(quant.scale, 'float32')}f"
        if quant.zero_point or quant.bits:
            zero_point = f", {quant.zero_point}"
        else:
            zero_point = ""
        bits = f", {quant.bits}" if quant.bits else ""
        return f" : quant({scale}{zero_point}{bits})"

    def _comment(self, node: Expr) -> str:
        ty = node.checked_type_or_none if self._show_types else None
        if ty is None:
            return ""
        span = _span_text(node.span) if self._show_spans else ""
        return f" /* ty={self._types.text(ty)}{span} */"

    def _head(self, fn: Function) -> str:
        """``[A](%x: T, key=value) -> R`` of a function."""
        type_params = self._types.parameters(fn.type_params)
        parts = [self._declare(param) for param in fn.params]
        parts += [f"{literals.key(k)}={value_text(v, self._meta)}" for k, v in fn.attrs.items()]
        if fn.virtual_device is not UNCONSTRAINED:
            parts.append(f"virtual_device={self._meta.device(fn.virtual_device)}")
        if fn.ret_type is not None:
            returns = f" -> {self._types.text(fn.ret_type)}"
        else:
            returns = ""
        return f"{type_params}({', '.join(parts)}){returns}"

    def _render(self, node: Expr) -> Rendering:
        """Text of one node; nested scopes are yielded to the driver."""
        if isinstance(node, (Call, Tuple, TupleGetItem, TempExpr)):
            return [self._flat(node)]
        if isinstance(node, Function):
            head = self._head(node)
            block = yield from self._block(node.body)
            return [f"fn {head} {{", *block, f"{self._indent}}}{self._comment(node)}"]
        if isinstance(node, If):
            cond = self._ref(node.cond)
            yes = yield from self._block(node.true_branch)
            no = yield from self._block(node.false_branch)
            middle = f"{self._indent}}} else {{"
            last = f"{self._indent}}}"
            return [f"if ({cond}) {{", *yes, middle, *no, last]
        if isinstance(node, Match):
            lines = yield from self._match(node)
            return lines
        if isinstance(node, Let):
            self._plan.flat_lets.add(node)
            block = yield from self._block(node)
            return ["{", *block, self._indent + "}"]
        args = ", ".join([self._ref(child) for child in node.operands()])
        return [f"{REF_WORD_OF[type(node)]}({args})"]

    def _flat(self, node: Expr) -> str:
        """Text of a node that opens no scope."""
        if isinstance(node, Call):
            return self._call(node)
        if isinstance(node, TupleGetItem):
            field = f"{self._ref(node.tuple)}.{node.index}{self._quant(node.quant)}"
            return field + self._comment(node)
        if isinstance(node, Tuple):
            return self._tuple(node) + self._comment(node)
        assert isinstance(node, TempExpr)
        return f"<{type(node).__name__}>"

    def _call(self, call: Call) -> str:
        op = call.op
        if is_lowered_call(call):
            args = [self._ref(call.args[0]), self._tuple(call.args[1])]
        else:
            args = [self._ref(a) for a in call.args]
        if call.attrs is not None:
            args += self._attrs(call.attrs)
        callee = op.name if type(op) is Op else self._ref(op)
        if not args and isinstance(op, Constructor):
            return callee + self._comment(call)
        return f"{callee}({', '.join(args)}){self._quant(call.quant)}{self._comment(call)}"

    def _attrs(self, attrs: Attrs) -> list[str]:
        """``key=value`` of each value that is not the default."""
        items = attrs.non_default_items()
        return [f"{name}={value_text(value, self._meta)}" for name, value in items]

    def _tuple(self, node: Any) -> str:
        comma = "," if len(node.fields) == 1 else ""
        return f"({', '.join([self._ref(f) for f in node.fields])}{comma})"

    def _block(self, result: Expr) -> Rendering:
        """Lines of a nested scope, without its braces."""
        lines = yield self._scope(result, self._indent + INDENT)
        return lines

    def _match(self, node: Match) -> Rendering:
        indent = self._indent
        mark = "" if node.complete else "?"
        lines = [f"match{mark} ({self._ref(node.data)}) {{"]
        for clause in node.clauses:
            for var in pattern_vars(clause.lhs):
                self._name(var)
            self._indent = indent + INDENT
            block = yield from self._block(clause.rhs)
            self._indent = indent
            lines.append(f"{indent}{INDENT}{self._pattern(clause.lhs)} => {{")
            lines += [*block, f"{indent}{INDENT}}},"]
        return [*lines, indent + "}"]

    def _pattern(self, pattern: Pattern) -> str:
        if isinstance(pattern, PatternVar):
            return self._declare(pattern.var)
        if isinstance(pattern, PatternConstructor):
            name = literals.name(pattern.constructor.name_hint)
            parts = [self._pattern(p) for p in pattern.patterns]
            if parts:
                return f"{name}({', '.join(parts)})"
            return name
        if isinstance(pattern, PatternTuple):
            comma = "," if len(pattern.patterns) == 1 else ""
            return f"({', '.join(self._pattern(p) for p in pattern.patterns)}{comma})"
        return "_"


_INLINE = frozenset((Var, Constant, Op, GlobalVar, Constructor))
_INLINE_ARGUMENTS = frozenset(("call_lowered",))


def _dataflow_operands(node: Expr) -> tuple[Expr, ...]:
    """Operands rendered before ``node`` in the same scope, callee first."""
    if isinstance(node, Call):
        if is_lowered_call(node):
            return (node.args[0], *node.args[1].operands())
        return node.operands()
    if isinstance(node, (Function, Let)):
        return ()
    if isinstance(node, If):
        return (node.cond,)
    if isinstance(node, Match):
        return (node.data,)
    return node.operands()


def _span_text(span: AnySpan | None) -> str:
    """`` span=name:line:col``; "" for a span of anonymous text."""
    spans = [one for one in parts_of(span) if one.source_name != ANONYMOUS]
    shown = [f"{one.source_name}:{one.line}:{one.column}" for one in spans]
    if not shown:
        return ""
    return " span=" + ",".join(shown).replace("*/", "* /").replace("/*", "/ *")
