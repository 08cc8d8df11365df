"""Words of a drawing: titles, and the shortened line of text of a box."""

from __future__ import annotations

from compiler.ir.adt import REF_WORD_OF, Match
from compiler.ir.attrs import value_text
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Op,
    Tuple,
    TupleGetItem,
    describe,
)
from compiler.ir.ty import TensorType, Type

SIMULATED_PREFIX = "relay.op.annotation."


def type_text(ty: Type | None) -> str:
    """A type in short: ``(1, 8, 4, 4) int8``; "?" where it is not known."""
    if ty is None:
        return "?"
    if isinstance(ty, TensorType):
        comma = "," if len(ty.shape) == 1 else ""
        return f"({', '.join(str(d) for d in ty.shape)}{comma}) {ty.dtype}"
    return str(ty)


def box_title(node: Expr) -> str:
    """First line of a box: the operator's name, or the kind of node."""
    if isinstance(node, Call):
        if isinstance(node.op, Op):
            return node.op.name.removeprefix(SIMULATED_PREFIX)
        return f"call {describe(node.op)}"
    if isinstance(node, TupleGetItem):
        return f".{node.index}"
    return type(node).__name__.lower()


class Wording:
    """Names of the nodes of one function and the line of text of each, operands by name."""

    def __init__(self) -> None:
        self._names: dict[Expr, str] = {}
        self._count = 0

    def name(self, node: Expr, name: str) -> None:
        """Fix the name of a node."""
        self._names[node] = name

    def number(self, node: Expr) -> str:
        """The next ``%0, %1, …`` for a node."""
        self._names[node] = f"%{self._count}"
        self._count += 1
        return self._names[node]

    def text(self, node: Expr) -> str:
        """One line for a node whose operands have names."""
        if isinstance(node, Call):
            words = [self.text_of_operand(arg) for arg in node.args]
            if node.attrs is not None:
                words += [f"{k}={value_text(v)}" for k, v in node.attrs.non_default_items()]
            return f"{self.text_of_operand(node.op)}({', '.join(words)})"
        if isinstance(node, Tuple):
            comma = "," if len(node.fields) == 1 else ""
            return f"({', '.join(self.text_of_operand(f) for f in node.fields)}{comma})"
        if isinstance(node, TupleGetItem):
            return f"{self.text_of_operand(node.tuple)}.{node.index}"
        if isinstance(node, If):
            cond, then, other = (self.text_of_operand(operand) for operand in node.operands())
            return f"if ({cond}) {then} else {other}"
        words = [self.text_of_operand(operand) for operand in node.operands()]
        return f"{_KEYWORDS.get(type(node), type(node).__name__)}({', '.join(words)})"

    def text_of_operand(self, node: Expr) -> str:
        """Return the name of a node where it is used: its name, or a constant or operator
        itself."""
        if node in self._names:
            return self._names[node]
        if isinstance(node, Constant):
            if node.is_scalar:
                return str(node.data.item())
            return f"const {type_text(node.checked_type)}"
        if isinstance(node, Op):
            return node.name
        if isinstance(node, GlobalVar):
            return f"@{node.name_hint}"
        if isinstance(node, Function):
            return "fn"
        return describe(node)


_KEYWORDS: dict[type[Expr], str] = {**REF_WORD_OF, Match: "match"}


def details_of(node: Expr, text: str) -> dict[str, str]:
    """Describe a node for a click: its text, type, source, scale and attributes, one a line."""
    detail = {"text": text, "type": type_text(node.checked_type_or_none)}
    if node.span is not None:
        detail["span"] = str(node.span)
    if isinstance(node, Call):
        if node.quant is not None:
            scales = node.quant.scales
            shown = " to ".join(dict.fromkeys(f"{end:.6g}" for end in (scales.min(), scales.max())))
            detail["scale"] = f"{shown}, zero point {node.quant.zero_point}"
        attributes = () if node.attrs is None else node.attrs.items()
        if lines := [f"{name}={value_text(value)}" for name, value in attributes]:
            detail["attributes"] = "\n".join(lines)
    return detail
