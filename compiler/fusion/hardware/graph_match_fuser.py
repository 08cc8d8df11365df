"""GraphMatchFuser: finds the groups of one function, greedily or with whole chains planned.

A plan by dynamic programming says which calls form a group, and the unit of each.

A value with one user can go on in that user's group; every call has at most one such user, so
the possible continuations form a forest with edges from operands to users. Groups are paths in it.
In post-order, each call learns the cheapest way to be the end of a group for every (unit, uses of
limited units) it can stand at, relative to the cheapest way of all. Only units that lie on a cycle
of the description can be met again, so only their uses are part of the state; a state that another
one beats with no more uses is dropped. The shipped descriptions need 3 states a call. A description
whose every unit leads to every other could need exponentially many; then the MOST_STATES cheapest
are kept, and the result is near the best. So the time is linear in calls and operands.

What is cheapest: fewest calls on the host, then fewest groups, then fewest bytes between groups.
Equal plans are decided as the greedy matcher would: the operand visited last, the nearest unit.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from compiler.fusion.hardware.conditions import bytes_of
from compiler.fusion.hardware.dfg import DFG, Creator, Node
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import MARKERS, Group, Stage
from compiler.ir.expr import Function
from compiler.named_table import NamedTable

MOST_STATES = 64

Cost = tuple[int, int, int]
"""Calls on the host, groups, bytes saved between groups (negative)."""

Uses = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _State:
    """One way to end a group, or to stay on the host (no unit), at a node.

    Attributes:
        before: the operand whose group goes on, and the state it is left in; None for a new group.
    """

    cost: Cost
    stage: Stage | None = None
    uses: Uses = ()
    before: tuple[Node, _State] | None = None


def plan_chains(
    hdfg: HDFG, calls: Sequence[Node], only_user: Mapping[Node, Node]
) -> dict[Node, tuple[Stage, Node | None]]:
    """The unit of every call that goes to the hardware, in post-order, and the call before it in
    its group (None where it begins one).

    Args:
        calls: the calls some unit knows, in post-order.
        only_user: the one node that uses a value, as ``only_users`` gives it.
    """
    on_cycles = [stage for stage in hdfg.stages if stage in hdfg.reachable(stage)]
    limited = [stage for stage in on_cycles if stage.max_uses is not None]
    place = {stage: i for i, stage in enumerate(limited)}
    operands: dict[Node, list[Node]] = defaultdict(list)
    states: dict[Node, list[_State]] = {}
    for node in calls:
        taking = [s for s in hdfg.op_map[node.op_name or ""] if s.refusal(node) is None]
        states[node] = _states(hdfg, node, taking, operands[node], states, place)
        user = only_user.get(node)
        if user is not None:
            operands[user].append(node)
    return _chosen(calls, states)


def _states(
    hdfg: HDFG,
    node: Node,
    taking: Sequence[Stage],
    operands: Sequence[Node],
    states: Mapping[Node, list[_State]],
    place: Mapping[Stage, int],
) -> list[_State]:
    """Ways to end at ``node``, cheapest first, costs relative to the first."""
    found = [_State((1, 0, 0))]
    accepted = set(taking)
    none_used = (0,) * len(place)
    for stage in hdfg.search_order(None):
        if stage in accepted:
            found.append(_State((0, 1, 0), stage, _used(none_used, stage, place)))
    for operand in reversed(operands):
        saved = -2 * (bytes_of(operand.ref.checked_type_or_none) or 0)
        for state in states[operand]:
            if state.stage is None:
                continue
            cost = (state.cost[0], state.cost[1], state.cost[2] + saved)
            for stage in hdfg.search_order(state.stage):
                if stage not in accepted:
                    continue
                if stage in place and state.uses[place[stage]] >= (stage.max_uses or 0):
                    continue
                uses = _used(state.uses, stage, place)
                found.append(_State(cost, stage, uses, (operand, state)))
    return _relative(_undominated(found))


def _used(uses: Uses, stage: Stage, place: Mapping[Stage, int]) -> Uses:
    at = place.get(stage)
    if at is None:
        return uses
    return (*uses[:at], uses[at] + 1, *uses[at + 1 :])


def _undominated(found: Iterable[_State]) -> list[_State]:
    """Cheapest first; without states whose unit another one stands at, no dearer, no more used."""
    kept: dict[Stage | None, list[Uses]] = defaultdict(list)
    result: list[_State] = []
    for state in sorted(found, key=lambda s: s.cost):  # stable: the greedy choice wins ties
        rivals = kept[state.stage]
        if not any(all(a <= b for a, b in zip(uses, state.uses)) for uses in rivals):
            rivals.append(state.uses)
            result.append(state)
            if len(result) == MOST_STATES:
                break
    return result


def _relative(found: list[_State]) -> list[_State]:
    """The same with the cheapest cost taken off, so that numbers stay small along a chain."""
    host, groups, saved = found[0].cost
    return [
        _State((s.cost[0] - host, s.cost[1] - groups, s.cost[2] - saved), s.stage, s.uses, s.before)
        for s in found
    ]


def _chosen(
    calls: Sequence[Node], states: Mapping[Node, list[_State]]
) -> dict[Node, tuple[Stage, Node | None]]:
    """Walk back: a call whose group goes on is in the state its user needs, else in its best."""
    wanted: dict[Node, _State] = {}
    backwards: list[tuple[Node, Stage, Node | None]] = []
    for node in reversed(calls):
        state = wanted.get(node, states[node][0])
        if state.before is not None:
            operand, needed = state.before
            wanted[operand] = needed
        if state.stage is not None:
            before = None if state.before is None else state.before[0]
            backwards.append((node, state.stage, before))
    return {node: (stage, before) for node, stage, before in reversed(backwards)}


# ---- fusers --------------------------------------------------------------------------------------


Matcher = Callable[["GraphMatchFuser"], None]

matchers: NamedTable[Matcher] = NamedTable("matcher")
"""Name → how calls are distributed over groups; a matcher fills ``groups`` of its fuser."""


@dataclass(slots=True)
class GraphMatchFuser:
    """Draws the groups of one function.

    Args:
        hdfg: the description to match against.
        dfg: the function.
    """

    hdfg: HDFG
    dfg: DFG
    groups: list[Group] = field(default_factory=list)
    group_of: dict[Node, Group] = field(default_factory=dict)
    only_user: dict[Node, Node] = field(init=False)

    def __post_init__(self) -> None:
        self.only_user = only_users(self.dfg, self.is_absorbable)

    def is_absorbable(self, node: Node) -> bool:
        """True for what may stand between two calls of a group: tuples and free operators."""
        if node.kind == "tuple":
            return True
        name = node.op_name
        if name in self.hdfg.free_ops:
            return True
        if not self.hdfg.absorb_unmapped or name in MARKERS:
            return False
        return node.kind == "getitem" or (name is not None and name not in self.hdfg.op_map)

    def mapped_calls(self) -> Iterable[Node]:
        """Calls that some unit knows, in post-order; what depends on no input has no turn."""
        op_map = self.hdfg.op_map
        return (n for n in self.dfg.calls() if n.op_name in op_map and not n.constant)

    def connected(self, group: Group, node: Node) -> bool:
        """True when the value of ``group`` is used by ``node`` only, if through free operators."""
        return self.only_user.get(group.root) is node

    def add_to_group(self, node: Node, stage: Stage, group: Group) -> None:
        """``node`` becomes the root of ``group``; what only it needs comes along."""
        if not group.calls:
            self.groups.append(group)
        group.calls.append(node)
        group.stages.append(stage)
        group.uses[stage] += 1
        group.members.add(node)
        self.group_of[node] = group
        for pred in node.preds:
            self.collect_inputs(pred, group)

    def collect_inputs(self, node: Node, group: Group) -> None:
        """Take ``node`` and its operands into ``group`` as far as no one else needs them.

        Constants, what is computed from them, and tuples are copied into every group that reaches
        them; free operators join where all their users are inside. Anything else is an input.
        """
        stack = [node]
        while stack:
            top = stack.pop()
            if top in group.members or top in self.group_of:
                continue
            if not (top.constant or top.kind == "tuple"):
                inside = all(user in group.members for user in top.succs)
                if not self.is_absorbable(top) or top.extern or not inside:
                    continue
                self.group_of[top] = group
            group.members.add(top)
            stack.extend(reversed(top.preds))


def find_match(hdfg: HDFG, node: Node, group: Group) -> Stage | None:
    """The nearest unit with room that accepts ``node`` behind the calls of a group."""
    last = group.stages[-1] if group.stages else None
    for stage in hdfg.search_order(last):
        if group.has_room(stage) and stage.refusal(node) is None:
            return stage
    return None


@matchers.register("greedy")
def match_greedily(fuser: GraphMatchFuser) -> None:
    """Every call goes to the latest group if it can, else begins a new one, else stays behind."""
    current = Group()
    for node in fuser.mapped_calls():
        connected = bool(current.calls) and fuser.connected(current, node)
        for group in (current, Group()) if connected else (Group(),):
            stage = find_match(fuser.hdfg, node, group)
            if stage is not None:
                fuser.add_to_group(node, stage, group)
                current = group
                break


@matchers.register("optimal")
def match_optimally(fuser: GraphMatchFuser) -> None:
    """Fewest calls on the host, then fewest groups, then fewest bytes between groups."""
    chosen = plan_chains(fuser.hdfg, list(fuser.mapped_calls()), fuser.only_user)
    for node, (stage, before) in chosen.items():
        group = Group() if before is None else fuser.group_of[before]
        fuser.add_to_group(node, stage, group)


def partition(function: Function, hdfg: HDFG, matcher: str = "greedy") -> tuple[DFG, list[Group]]:
    """The graph of the body of ``function`` and its groups, in order of creation; function literals
    inside it are not entered.

    Args:
        function: typed.
        matcher: "greedy" or "optimal".

    Raises:
        CompilerError: unknown matcher.
    """
    match = matchers.require(matcher)
    fuser = GraphMatchFuser(hdfg, Creator.prepare(function))
    match(fuser)
    keep = hdfg.keep_if
    groups = [group for group in fuser.groups if keep is None or keep(group)]
    return fuser.dfg, groups


def only_users(dfg: DFG, absorbable: Callable[[Node], bool]) -> dict[Node, Node]:
    """The one node that uses a value, for the nodes that have one; absorbable nodes are seen
    through.

    A node is missing when two nodes use it, when a way leads out of the function, or when nothing
    uses it. One sweep against post-order: every edge is looked at once.
    """
    found: dict[Node, Node] = {}
    through: dict[Node, bool] = {}
    for node in reversed(dfg.nodes):
        through[node] = absorbable(node) and not node.extern
        if node.extern or not node.succs:
            continue
        end: Node | None = None
        for user in node.succs:
            goal = found.get(user) if through[user] else user
            if goal is None or (end is not None and goal is not end):
                break
            end = goal
        else:
            assert end is not None
            found[node] = end
    return found
