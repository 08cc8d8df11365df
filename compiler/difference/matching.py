"""Pairs of nodes, one of each module, that compute the same value.

Three ways, in this order: the same ONNX node and operator; the last value of the same ONNX node;
the same place, counted from both ends and then per operator, for nodes without an ONNX name. Only
values of one shape are matched. Linear in the number of nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from compiler.ir.expr import Call, Expr, Op, describe
from compiler.ir.span import ONNX, AnySpan, Span

BY_NODE = "onnx node"
BY_PLACE = "position"


@dataclass(frozen=True, slots=True)
class Step:
    """One node that ran: its place in the order of execution and the shape of its value."""

    index: int
    node: Expr
    shape: tuple[int, ...]
    dtype: str

    @property
    def operator(self) -> str:
        """Name of the operator called, or the kind of node."""
        if isinstance(self.node, Call) and isinstance(self.node.op, Op):
            return self.node.op.name
        return describe(self.node)

    @property
    def onnx_name(self) -> str | None:
        """Name of the ONNX node it was imported from."""
        return onnx_name(self.node.span)


@dataclass(frozen=True, slots=True)
class Match:
    """Two steps that compute the same value if the modules mean the same."""

    a: Step
    b: Step
    by: str


def onnx_name(span: AnySpan | None) -> str | None:
    """ONNX node a span leads to; of several, all of them joined."""
    if span is None:
        return None
    spans = (span,) if isinstance(span, Span) else span.spans
    names = [s.source_name.removeprefix(ONNX) for s in spans]
    from_onnx = all(s.source_name.startswith(ONNX) for s in spans)
    return "+".join(names) if from_onnx and names else None


def match_steps(a: Sequence[Step], b: Sequence[Step]) -> list[Match]:
    """Pairs of steps, in the order in which ``b`` runs them; every step is in one pair at most."""
    taken_a: set[int] = set()
    taken_b: set[int] = set()
    found: list[Match] = []

    def take(x: Step, y: Step, by: str) -> None:
        taken_a.add(x.index)
        taken_b.add(y.index)
        found.append(Match(x, y, by))

    for x, y in _pairs_by_ordinal(a, b, _node_and_operator):
        take(x, y, BY_NODE)
    matched_nodes = {m.a.onnx_name for m in found}
    last_a = _last_by_node(a)
    for name, last in _last_by_node(b).items():
        other = last_a.get(name)
        if other is not None and name not in matched_nodes and other.shape == last.shape:
            take(other, last, BY_NODE)
    # A module that was never in ONNX has no such names; then only the place is left to go by.
    all_named = bool(last_a) and any(step.onnx_name for step in b)
    left_a = [s for s in a if s.index not in taken_a and not (all_named and s.onnx_name)]
    left_b = [s for s in b if s.index not in taken_b and not (all_named and s.onnx_name)]
    for x, y in _pairs_by_place(left_a, left_b):
        take(x, y, BY_PLACE)
    return sorted(found, key=lambda m: m.b.index)


def _node_and_operator(step: Step) -> Hashable:
    name = step.onnx_name
    return None if name is None else (name, step.operator, step.shape)


def _operator_and_shape(step: Step) -> Hashable:
    return (step.operator, step.shape)


def _pairs_by_ordinal(a: Sequence[Step], b: Sequence[Step], key: object) -> list[tuple[Step, Step]]:
    """The n-th step with a key, with the n-th of the same key on the other side."""
    assert callable(key)
    waiting: dict[Hashable, list[Step]] = defaultdict(list)
    for step in a:
        if key(step) is not None:
            waiting[key(step)].append(step)
    used: dict[Hashable, int] = defaultdict(int)
    pairs: list[tuple[Step, Step]] = []
    for step in b:
        k = key(step)
        if k is not None and used[k] < len(waiting.get(k, ())):
            pairs.append((waiting[k][used[k]], step))
            used[k] += 1
    return pairs


def _last_by_node(steps: Sequence[Step]) -> dict[str, Step]:
    return {step.onnx_name: step for step in steps if step.onnx_name is not None}


def _pairs_by_place(a: Sequence[Step], b: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Equal steps from the front, then from the back, then the n-th of a kind in between."""
    shorter = min(len(a), len(b))
    front = 0
    while front < shorter and _operator_and_shape(a[front]) == _operator_and_shape(b[front]):
        front += 1
    back = 0
    while back < shorter - front and _operator_and_shape(a[-1 - back]) == _operator_and_shape(
        b[-1 - back]
    ):
        back += 1
    middle_a, middle_b = a[front : len(a) - back], b[front : len(b) - back]
    return [
        *zip(a[:front], b[:front]),
        *_pairs_by_ordinal(middle_a, middle_b, _operator_and_shape),
        *zip(a[len(a) - back :], b[len(b) - back :]),
    ]
