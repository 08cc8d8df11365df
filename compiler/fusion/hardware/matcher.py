"""find_match: the next unit that takes a call, searched from the last unit of the group."""

from __future__ import annotations

from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import MatchState, Stage


def find_match(hdfg: HDFG, node: Node, state: MatchState) -> Stage | None:
    """The nearest unit with room that accepts ``node``; ``state`` then stands at that unit.

    None leaves ``state`` as it was.
    """
    for stage in hdfg.search_order(state.last_match):
        if state.has_room(stage) and stage.refusal(node) is None:
            state.take(stage)
            return stage
    return None
