"""HDFG, the hardware data flow graph: units of an accelerator and the ways data moves among them.

    concat → add_pre → mul_pre → pad → ipa → mul → add → compare ⇄ pool → upsample …

A link is a *possible* movement: a unit that is not needed is bypassed (unless ``optional`` is
False), and each unit serves at most ``max_uses`` calls of one group. A description file says which
operators a unit takes; no accelerator is named in Python.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.errors import HDFGError, legal_names
from compiler.fusion.hardware.conditions import located, require_op
from compiler.fusion.hardware.stage import NAME, Group, Stage


@dataclass(frozen=True, slots=True, eq=False)
class HDFG:
    """A description of an accelerator, checked and ready to match against.

    Args:
        name: becomes ``Compiler`` of the groups and the beginning of their ``global_symbol``.
        root: the unit where data enters.
        stages: the units.
        links: (from, to) pairs of unit names; the order counts, cycles are allowed.
        free_ops: operators that cost nothing (a change of shape) and ride along in a group.
        keep_if: asked of every group; where it answers False the group goes back to the host.
        absorb_unmapped: groups take in any operator that no unit takes.
        bytes_per_cycle: what the accelerator's memory port moves; None leaves memory out of cycles.

    Raises:
        HDFGError: a unit is named twice, unknown or unreachable.
    """

    name: str
    root: str
    stages: Sequence[Stage]
    links: Sequence[tuple[str, str]]
    free_ops: frozenset[str] | set[str] | Sequence[str] = frozenset()
    keep_if: Callable[[Group], bool] | None = None
    absorb_unmapped: bool = False
    bytes_per_cycle: float | None = None
    op_map: Mapping[str, tuple[Stage, ...]] = field(init=False)
    _successors: Mapping[Stage, tuple[Stage, ...]] = field(init=False, repr=False)
    _orders: Mapping[Stage | None, tuple[Stage, ...]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise HDFGError(
                f"{self.name!r} cannot name a description: it begins the symbols of its functions",
                key=("name",),
                fix="letters, digits and _",
            )
        by_name = self._unique_names()
        root = _known(by_name, self.root, ("root",), "root")
        for place, op_name in enumerate(self.free_ops):
            with located("free_ops", ("free_ops", place)):
                require_op(op_name)
        successors: dict[Stage, list[Stage]] = {stage: [] for stage in self.stages}
        for place, link in enumerate(self.links):
            if len(link) != 2:
                raise HDFGError(f"a link has two ends, got {list(link)}", key=("links", place))
            start, end = (_known(by_name, n, ("links", place), f"link {list(link)}") for n in link)
            if end in successors[start]:
                raise HDFGError(
                    f"link {list(link)} is there twice", key=("links", place), fix="remove one"
                )
            successors[start].append(end)
        _set = object.__setattr__
        _set(self, "stages", tuple(self.stages))
        _set(self, "links", tuple((a, b) for a, b in self.links))
        _set(self, "free_ops", frozenset(self.free_ops))
        _set(self, "_successors", {stage: tuple(nexts) for stage, nexts in successors.items()})
        self._check_reachable(root)
        op_map: dict[str, list[Stage]] = {}
        for stage in self.stages:
            for op_name in stage.accepts:
                op_map.setdefault(op_name, []).append(stage)
        _set(self, "op_map", {name: tuple(stages) for name, stages in op_map.items()})
        orders = {stage: self._breadth_first(self._successors[stage]) for stage in self.stages}
        _set(self, "_orders", {None: self._breadth_first((root,)), **orders})

    def succ(self, stage: Stage) -> tuple[Stage, ...]:
        """The units that data may move to from ``stage``, in link order."""
        return self._successors[stage]

    def search_order(self, last: Stage | None) -> tuple[Stage, ...]:
        """Units that the next call of a group may use, nearest first.

        Breadth first from the successors of ``last``, or from the root when it is None; a unit that
        is not optional is not passed. Whether a unit accepts the call does not change the order, so
        it is found out once.
        """
        return self._orders[last]

    def stage(self, name: str) -> Stage:
        """The unit of this name.

        Raises:
            HDFGError: there is none.
        """
        return _known({stage.name: stage for stage in self.stages}, name, (), self.name)

    def _unique_names(self) -> dict[str, Stage]:
        by_name: dict[str, Stage] = {}
        for place, stage in enumerate(self.stages):
            if stage.name in by_name:
                raise HDFGError(
                    f"two units are named {stage.name!r}", key=("stages", place, "name")
                )
            by_name[stage.name] = stage
        if not by_name:
            raise HDFGError(
                f"description {self.name!r} has no unit", key=("stages",), fix="add [[stages]]"
            )
        return by_name

    def _check_reachable(self, root: Stage) -> None:
        reached = {root, *self.reachable(root)}
        for place, stage in enumerate(self.stages):
            if stage not in reached:
                raise HDFGError(
                    f"no path leads from root {root.name!r} to unit {stage.name!r}",
                    key=("stages", place, "name"),
                    fix=f'add a link such as ["{root.name}", "{stage.name}"]',
                )

    def reachable(self, start: Stage) -> set[Stage]:
        """The units that data can move to from ``start``, over any number of links."""
        reached: set[Stage] = set()
        stack = [start]
        while stack:
            after = [stage for stage in self.succ(stack.pop()) if stage not in reached]
            reached.update(after)
            stack += after
        return reached

    def _breadth_first(self, seeds: Sequence[Stage]) -> tuple[Stage, ...]:
        seen: dict[Stage, None] = {}
        queue = deque(seeds)
        while queue:
            stage = queue.popleft()
            if stage in seen:
                continue
            seen[stage] = None
            if stage.optional:
                queue.extend(self._successors[stage])
        return tuple(seen)

    def __str__(self) -> str:
        return self.name


def _known(
    by_name: Mapping[str, Stage], name: str, key: tuple[str | int, ...], where: str
) -> Stage:
    if name not in by_name:
        raise HDFGError(
            f"unknown unit {name!r}", key=key, where=where, fix=legal_names(str(name), by_name)
        )
    return by_name[name]
