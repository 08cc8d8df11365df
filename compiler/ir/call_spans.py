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
"""Of a Span, in order."""

_fields = attrgetter("source_name", "line", "end_line", "column", "end_column")

Part = str | list[Any]
"""A Span: its fields, or its source alone where the numbers are zeros, as of an ONNX node."""


def spans_of(mod: IRModule, *, onnx_only: bool = False) -> dict[str, Any]:
    """``{"spans": distinct sources, "calls": the numbers of those of each call}``, for JSON.

    Args:
        mod: the module.
        onnx_only: leave out places in texts, which depend on where a file lies.
    """
    numbers: dict[Span, int] = {}
    calls = []
    for call in _calls(mod):
        parts = parts_of(call.span)
        if onnx_only:
            parts = tuple(part for part in parts if part.source_name.startswith(ONNX))
        calls.append([numbers.setdefault(part, len(numbers)) for part in parts])
    return {"spans": [_plain(span) for span in numbers], "calls": calls}


def _plain(span: Span) -> Part:
    name, *places = _fields(span)
    return [name, *places] if any(places) else str(name)


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
    if not _is_index(index) or len(index["calls"]) != len(calls):
        return False
    spans = [Span(part) if isinstance(part, str) else Span(*part) for part in index["spans"]]
    for call, numbers in zip(calls, index["calls"], strict=True):
        if numbers or not keep_others:
            object.__setattr__(call, "span", join_spans(spans[number] for number in numbers))
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


def _is_index(index: Any) -> bool:
    """True for values of the right kinds; a file may hold anything."""
    if not isinstance(index, dict) or set(index) < {"spans", "calls"}:
        return False
    spans, calls = index["spans"], index["calls"]
    if not isinstance(spans, list) or not isinstance(calls, list):
        return False
    known = all(isinstance(span, str) or _is_span(span) for span in spans)
    return known and all(
        isinstance(numbers, list) and all(type(n) is int and 0 <= n < len(spans) for n in numbers)
        for numbers in calls
    )


def _is_span(part: Any) -> bool:
    return isinstance(part, list) and tuple(type(value) for value in part) == FIELDS
