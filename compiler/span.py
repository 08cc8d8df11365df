"""Origin of a node: a place in a text, or a node of an ONNX graph."""

from __future__ import annotations

from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass

MAX_JOINED_SPANS = 8

# Source name of text that came from no file: its spans help errors and are not printed.
ANONYMOUS = "<text>"

ONNX = "onnx:"
"""Prefix of the source name of a node of an ONNX graph."""


@dataclass(frozen=True, slots=True)
class Span:
    """Lines and columns of a source; of ONNX, "onnx:" + node name and zeros."""

    source_name: str
    line: int = 0
    end_line: int = 0
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        if self.source_name.startswith(ONNX):
            return f"ONNX node {self.source_name.removeprefix(ONNX)!r}"
        return f"{self.source_name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class SequentialSpan:
    """Several sources of one node, in order, at most MAX_JOINED_SPANS."""

    spans: tuple[Span, ...]

    def __str__(self) -> str:
        return "; ".join(str(s) for s in self.spans)


AnySpan = Span | SequentialSpan


def parts_of(span: AnySpan | None) -> tuple[Span, ...]:
    """The sources that a span joins."""
    if isinstance(span, SequentialSpan):
        return span.spans
    if span is None:
        return ()
    return (span,)


def onnx_nodes(span: AnySpan | None) -> tuple[str, ...]:
    """Names of the ONNX nodes that a span points to."""
    names = (one.source_name for one in parts_of(span))
    return tuple(name.removeprefix(ONNX) for name in names if name.startswith(ONNX))


_origin: ContextVar[AnySpan | None] = ContextVar("origin_of_new_nodes", default=None)

# What a Call takes as its span when it is given none.
origin_of_new_nodes = _origin.get


# From here on new calls come from a span; rewriters set it to the node they replace, and undo that.
set_origin = _origin.set
restore_origin = _origin.reset


def join_spans(spans: Iterable[AnySpan | None]) -> AnySpan | None:
    """Span of a node that merges several: each source once, the first eight."""
    flat = dict.fromkeys(part for span in spans for part in parts_of(span))
    kept = tuple(flat)[:MAX_JOINED_SPANS]
    if not kept:
        return None
    if len(kept) == 1:
        return kept[0]
    return SequentialSpan(kept)
