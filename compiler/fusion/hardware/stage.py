"""Stage, a unit of an accelerator's pipeline, and Group, the calls that go through it together."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from compiler.errors import HDFGError
from compiler.fusion.hardware.conditions import Condition, located, parse_condition, require_op
from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.limits import Limits

Predicate = Callable[[Node], bool]
Accepts = None | str | Predicate | Condition | Sequence[str | Predicate | Condition]

MARKERS = ("annotation.stop_fusion", "annotation.cast_hint")
"""Operators that compute nothing and end a group; no unit can take them."""

NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """A unit of the pipeline.

    Args:
        name: unique in its description.
        accepts: operator → what must hold of a call: None, a condition as text
            (``"attr(groups, ==, 1)"``), a function of the DFG node, or several, all of which must.
        max_uses: calls of one group it can serve; None for any number.
        optional: False when data cannot bypass it.
        cycles_per_element: cycles it spends on one product of a convolution or matrix product, on
            one element of anything else.
        limits: what a call must not exceed.

    Raises:
        HDFGError: an unknown operator or condition, or a value of the wrong kind.
    """

    name: str
    accepts: Mapping[str, Accepts]
    max_uses: int | None = 1
    optional: bool = True
    cycles_per_element: float = 0.0
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise HDFGError(
                f"{self.name!r} cannot name a unit", key=("name",), fix="letters, digits and _"
            )
        if self.max_uses is not None and self.max_uses < 1:
            raise HDFGError(
                f"unit {self.name!r}: max_uses must be at least 1, got {self.max_uses}",
                key=("max_uses",),
                fix='leave the unit out, or write max_uses = "unbounded"',
            )
        parsed = {op: _conditions(op, given, self.name) for op, given in self.accepts.items()}
        object.__setattr__(self, "accepts", parsed)

    def refusal(self, node: Node) -> str | None:
        """Explain in a few words why the unit cannot take this call; None when it can."""
        wanted: Any = self.accepts.get(node.op_name or "")
        if wanted is None:
            return f"does not take {node.op_name}"
        for condition in wanted:
            if not condition.holds(node):
                return f"{condition.text} does not hold"
        return self.limits.refusal(node)


def _conditions(op_name: str, given: Accepts, stage: str) -> tuple[Condition, ...]:
    with located(f"unit {stage!r}", ("accepts", op_name)):
        op = require_op(op_name)
        if op_name in MARKERS:
            raise HDFGError(f"{op_name} ends a group; no unit can take it", fix="leave it out")
        single = given is None or isinstance(given, (str, Condition)) or callable(given)
        several: Any = (() if given is None else (given,)) if single else given
        return tuple(
            parse_condition(item, op)
            if isinstance(item, str)
            else item
            if isinstance(item, Condition)
            else Condition(getattr(item, "__name__", "predicate"), item)
            for item in several
        )


@dataclass(slots=True, eq=False)
class Group:
    """A chain of calls, each feeding only the next, with what rides along.

    Attributes:
        calls: the calls that occupy a unit, in order of joining.
        stages: the unit of each.
        uses: calls that each unit serves so far.
        members: all nodes inside: the calls, constants, tuples and free operators.
    """

    calls: list[Node] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    uses: Counter[Stage] = field(default_factory=Counter)
    members: set[Node] = field(default_factory=set)

    @property
    def root(self) -> Node:
        """The latest call: the one value that leaves the group."""
        return self.calls[-1]

    def has_room(self, stage: Stage) -> bool:
        """True while the unit may serve one more call of the group."""
        return stage.max_uses is None or self.uses[stage] < stage.max_uses

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the units, in order of joining."""
        return tuple(stage.name for stage in self.stages)

    @property
    def op_names(self) -> tuple[str, ...]:
        """The operators, in order of joining."""
        return tuple(node.op_name or "" for node in self.calls)
