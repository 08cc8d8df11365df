"""Group and Partition: what goes to the hardware together, and what stays on the host."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.fusion.hardware.dfg import DFG, Node
from compiler.fusion.hardware.hdfg import HDFG, Stage
from compiler.fusion.hardware.matcher import MatchState
from compiler.ir.expr import Expr


@dataclass(slots=True, eq=False)
class Group:
    """A chain of calls, each feeding only the next, with what rides along.

    Attributes:
        state: where in the pipeline it stands.
        calls: the calls that occupy a unit, in order of joining.
        stages: the unit of each.
        members: all nodes inside: the calls, constants, tuples and free operators.
    """

    state: MatchState = field(default_factory=MatchState)
    calls: list[Node] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    members: set[Node] = field(default_factory=set)

    @property
    def root(self) -> Node:
        """The latest call: the one value that leaves the group."""
        return self.calls[-1]

    @property
    def stage_names(self) -> tuple[str, ...]:
        """Names of the units, in order of joining."""
        return tuple(stage.name for stage in self.stages)

    @property
    def op_names(self) -> tuple[str, ...]:
        """The operators, in order of joining."""
        return tuple(node.op_name or "" for node in self.calls)


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The groups of one function in order of creation."""

    hdfg: HDFG
    dfg: DFG
    groups: list[Group]

    @property
    def group_of_root(self) -> dict[Expr, Group]:
        """Groups by the expression they compute."""
        return {group.root.ref: group for group in self.groups}


def host_reason(hdfg: HDFG, node: Node) -> str:
    """Why a call is on the host: the first thing each unit that knows the operator objects to."""
    name = node.op_name or ""
    if node.constant:
        return "computed from constants only; FoldConstant removes it"
    stages = hdfg.op_map.get(name)
    if stages is None:
        if name in hdfg.free_ops:
            return "free, but its value does not go to one group only"
        return f"no unit of {hdfg.name} takes {name}"
    reasons = {stage.name: stage.refusal(node) for stage in stages}
    if None not in reasons.values():
        return "; ".join(f"{unit}: {why}" for unit, why in reasons.items())
    taking = [stage for stage in stages if reasons[stage.name] is None]
    reachable = hdfg.search_order(None)
    if not any(stage in reachable for stage in taking):
        units = ", ".join(stage.name for stage in taking)
        return f"{units} would take it, but a unit that cannot be bypassed comes first"
    return "its group was not kept"
