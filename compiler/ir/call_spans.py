"""Spans of the calls of a module as plain values, for forms in which a module's text travels.

Text does not say where its nodes came from. Calls in post-order are the same before and after
``parse(text(mod))``, so a list in that order does.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from compiler.ir.expr import Call, Function
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.span import ONNX, Span, join_spans, parts_of

FIELDS = (str, int, int, int, int)
"""Types of the fields of a Span, in order."""

_fields = attrgetter("source_name", "line", "end_line", "column", "end_column")

Part = str | list[Any]
"""A Span: its fields, or the name of an ONNX node alone."""


def spans_of(mod: IRModule, *, onnx_only: bool = False) -> dict[str, Any]:
    """``{"spans": distinct sources, "calls": those of each call}``, for JSON.

    The sources of a call are the list of their numbers, or how many of those that no call before
    it has.

    Args:
        mod: the module.
        onnx_only: leave out places in texts, which depend on where a file lies.
    """
    numbers: dict[Span, int] = {}
    calls: list[list[int] | int] = []
    for call in _calls(mod):
        parts = parts_of(call.span)
        if onnx_only:
            parts = tuple(part for part in parts if part.source_name.startswith(ONNX))
        known = len(numbers)
        listed = [numbers.setdefault(part, len(numbers)) for part in parts]
        first_seen = listed == list(range(known, len(numbers)))
        calls.append(len(listed) if first_seen else listed)
    return {"spans": [_plain(span) for span in numbers], "calls": calls}


def _plain(span: Span) -> Part:
    name, *places = _fields(span)
    node = name.startswith(ONNX) and not any(places)
    if node:
        return str(name.removeprefix(ONNX))
    return [name, *places]


def restore_spans(mod: IRModule, index: Any, *, keep_others: bool = False) -> bool:
    """Give the calls of a new, unshared module the spans that ``spans_of`` listed.

    Args:
        mod: the parsed module.
        index: what ``spans_of`` gave.
        keep_others: calls that had no span keep their place in the text.

    Returns:
        False, and changes nothing, when the values do not describe such a module.
    """
    calls = _calls(mod)
    found = _spans_in(index)
    if found is None or len(found) != len(calls):
        return False
    for call, spans in zip(calls, found, strict=True):
        if spans or not keep_others:
            object.__setattr__(call, "span", join_spans(spans))
    return True


def _calls(mod: IRModule) -> list[Call]:
    """Calls in an order that text keeps: functions by name, each in post-order."""
    return [
        node
        for function in mod.functions.values()
        if isinstance(function, Function)
        for node in nodes_of(function)
        if type(node) is Call
    ]


def _spans_in(index: Any) -> list[list[Span]] | None:
    """The spans of each call; None for values of other kinds: a file may hold anything."""
    if not isinstance(index, dict) or set(index) < {"spans", "calls"}:
        return None
    parts = index["spans"]
    calls = index["calls"]
    if not isinstance(parts, list) or not isinstance(calls, list):
        return None
    if not all(isinstance(part, str) or _is_span(part) for part in parts):
        return None
    spans = [Span(ONNX + part) if isinstance(part, str) else Span(*part) for part in parts]
    found = []
    known = 0
    for listed in calls:
        new = type(listed) is int and 0 <= listed <= len(spans) - known
        numbers = range(known, known + listed) if new else listed
        if not new and not isinstance(listed, list):
            return None
        if not all(type(n) is int and 0 <= n < len(spans) for n in numbers):
            return None
        known = max(known, *(n + 1 for n in numbers), 0)
        found.append([spans[n] for n in numbers])
    return found


def _is_span(part: Any) -> bool:
    return isinstance(part, list) and tuple(type(value) for value in part) == FIELDS
