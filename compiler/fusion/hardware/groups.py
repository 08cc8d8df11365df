"""Partition: what goes to the hardware together, and what stays on the host."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.fusion.hardware.dfg import DFG, Node
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import Group
from compiler.ir.expr import Expr


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
