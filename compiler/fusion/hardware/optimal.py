"""Chains planned by dynamic programming: which calls form a group, and the unit of each.

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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from compiler.fusion.hardware.conditions import bytes_of
from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import Stage

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
    return uses if at is None else (*uses[:at], uses[at] + 1, *uses[at + 1 :])


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
