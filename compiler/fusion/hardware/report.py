"""hw_report: the units each group runs through, what it moves, and why the rest is on the host."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from compiler.errors import HDFGError
from compiler.fusion.hardware.command_list import type_text
from compiler.fusion.hardware.conditions import bytes_of
from compiler.fusion.hardware.cost import HardwareCost, hardware_cost
from compiler.fusion.hardware.description import load_hdfg, shipped_descriptions
from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.group_calls import group_functions, host_nodes
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.ir.expr import Function
from compiler.ir.module import IRModule


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One group: units in order of joining, inputs as (type, bytes) where known."""

    symbol: str
    stages: tuple[str, ...]
    inputs: tuple[tuple[str, int | None], ...]
    where: str


@dataclass(frozen=True, slots=True)
class HostLine:
    """One operator call on the host, and the reason."""

    function: str
    op: str
    where: str
    reason: str


@dataclass(frozen=True, slots=True)
class HardwareReport:
    """Report of a description applied to a module; ``str`` of it is for people."""

    hardware: str
    groups: tuple[GroupLine, ...]
    host: tuple[HostLine, ...]
    cost: HardwareCost

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "hardware": self.hardware,
            **self.cost.to_dict(),
            "host": [asdict(line) for line in self.host],
        }

    def __str__(self) -> str:
        return "\n".join([*self._group_lines(), *self._last_lines()])

    def summary(self) -> str:
        """The text without the list of groups: chains by how often they occur."""
        chains = Counter(" > ".join(_folded(group.stages)) for group in self.groups)
        lines = [self._title()]
        lines += [f"  {count} x {chain}" for chain, count in chains.most_common()]
        return "\n".join([*lines, *self._last_lines()])

    def _title(self) -> str:
        return f"{_counted(len(self.groups), 'group')} on {self.hardware}"

    def _group_lines(self) -> list[str]:
        lines = [self._title()]
        for group in self.groups:
            inputs = ", ".join(f"{ty} {_bytes(size)}" for ty, size in group.inputs)
            units = " > ".join(_folded(group.stages))
            lines.append(f"  {group.symbol:<12} {units}")
            lines.append(f"  {'':<12}   reads {inputs or 'nothing'}; {group.where}")
        return lines

    def _last_lines(self) -> list[str]:
        """Lines of the host and of the cost."""
        cost = (
            f"off-chip traffic {_bytes(self.cost.traffic_bytes)}, of it between groups "
            f"{_bytes(self.cost.moved_bytes)}; {self.cost.cycles:,.0f} cycles"
        )
        if not self.host:
            return ["nothing stays on the host", cost]
        stay = "stays" if len(self.host) == 1 else "stay"
        lines = [f"{_counted(len(self.host), 'operator')} {stay} on the host"]
        same = Counter((h.op, h.reason) for h in self.host)
        for (op, reason), count in same.items():
            first = next(h for h in self.host if (h.op, h.reason) == (op, reason))
            more = f" (first: {first.where})" if first.where else ""
            lines += [f"  {count} x {op}{more}", f"      {reason}"]
        return [*lines, cost]


def hw_report(mod: IRModule, hdfg: HDFG | str | None = None) -> HardwareReport:
    """Groups, what they read, and the operators on the host with the reason.

    Args:
        mod: after FuseOpHW, or before it (``group_for_hardware`` then draws them).
        hdfg: the description, its shipped name or its file; None finds the shipped one that the
            module's groups name.

    Raises:
        HDFGError: no description was given and the module names none that ships.
        DynamicShapeError: a size is not known.
    """
    described = _described(mod, hdfg)
    mod = group_for_hardware(mod, described)
    host = tuple(
        HostLine(name, node.op_name or "", str(node.ref.span or ""), host_reason(described, node))
        for name, node in host_nodes(mod)
    )
    groups = tuple(_group_line(function) for function in group_functions(mod, described.name))
    return HardwareReport(described.name, groups, host, hardware_cost(mod, described))


def host_reason(hdfg: HDFG, node: Node) -> str:
    """Explain why a call is on the host: the first thing each unit that knows the operator objects
    to."""
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


def _described(mod: IRModule, hdfg: HDFG | str | None) -> HDFG:
    if hdfg is not None:
        if isinstance(hdfg, str):
            return load_hdfg(hdfg)
        return hdfg
    named = {function.get_attr("Compiler") for function in group_functions(mod)}
    if len(named) != 1 or not named <= set(shipped_descriptions()):
        raise HDFGError(
            f"the groups of the module name {sorted(named) or 'no description'}",
            fix=f"pass the description; shipped: {', '.join(shipped_descriptions())}",
        )
    return load_hdfg(named.pop())


def _group_line(function: Function) -> GroupLine:
    types = [param.checked_type for param in function.params]
    return GroupLine(
        symbol=function.get_attr("global_symbol"),
        stages=tuple(function.get_attr("hdfg_stages")),
        inputs=tuple((type_text(ty).replace("[]", "[scalar]"), bytes_of(ty)) for ty in types),
        where=str(function.body.span or "no source"),
    )


def _folded(stages: tuple[str, ...]) -> list[str]:
    """Repeated units as ``requant x5``."""
    words = [(name, len(list(same))) for name, same in groupby(stages)]
    return [name if count == 1 else f"{name} x{count}" for name, count in words]


def _counted(number: int, noun: str) -> str:
    if number == 1:
        return f"{number} {noun}"
    return f"{number} {noun}s"


def _bytes(size: int | None) -> str:
    if size is None:
        return "of unknown size"
    for unit, step in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= step:
            return f"{size / step:.1f} {unit}"
    return f"{size} B"
