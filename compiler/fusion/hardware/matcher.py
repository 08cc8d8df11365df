"""find_match: the next unit that takes a call, searched from the last unit of the group."""

from __future__ import annotations

from dataclasses import dataclass, field

from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.hdfg import HDFG, Stage


@dataclass(slots=True)
class MatchState:
    """How far a group has come.

    Attributes:
        last_match: the unit of its latest call; None for a new group.
        uses: calls each unit serves so far.
    """

    last_match: Stage | None = None
    uses: dict[Stage, int] = field(default_factory=dict)

    def has_room(self, stage: Stage) -> bool:
        """True while the unit may serve one more call of the group."""
        return stage.max_uses is None or self.uses.get(stage, 0) < stage.max_uses

    def take(self, stage: Stage) -> None:
        """The next call of the group is served by ``stage``."""
        self.last_match = stage
        self.uses[stage] = self.uses.get(stage, 0) + 1


def find_match(hdfg: HDFG, node: Node, state: MatchState) -> Stage | None:
    """The nearest unit with room that accepts ``node``; ``state`` then stands at that unit.

    None leaves ``state`` as it was.
    """
    for stage in hdfg.search_order(state.last_match):
        if state.has_room(stage) and stage.refusal(node) is None:
            state.take(stage)
            return stage
    return None
