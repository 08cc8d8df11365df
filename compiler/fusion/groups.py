"""Groups of nodes that become one kernel.

The root of a group is its sink, the node whose value the kernel returns. Only one member, the
anchor, may be a complex operator (OUT_ELEMWISE_FUSABLE). Source: Relay v0.10 GraphPartitioner.
"""

from __future__ import annotations

from compiler.errors import PassError
from compiler.ir.disjoint_sets import DisjointSets
from compiler.ir.op import OpPattern


class Groups(DisjointSets[int]):
    """One group per node at first.

    Args:
        patterns: pattern of every node, by index.

    Attributes:
        pattern: of the record with this index; of the whole group where the index is a root.
        num_nodes: members that came together under the record.
        anchor: index of the complex operator in the group, or -1.
    """

    def __init__(self, patterns: list[int]) -> None:
        super().__init__()
        self.pattern = list(patterns)
        self.num_nodes = [1] * len(patterns)
        complex_op = OpPattern.OUT_ELEMWISE_FUSABLE
        self.anchor = [i if p == complex_op else -1 for i, p in enumerate(patterns)]

    def merge(self, child: int, into: int) -> None:
        """Move the group of ``child`` into the group of ``into``.

        Raises:
            PassError: both hold a complex operator; a phase let through what it may not.
        """
        child = self.root(child)
        into = self.root(into)
        if child == into:
            return
        self.num_nodes[into] += self.num_nodes[child]
        super().merge(child, into)
        if self.anchor[child] < 0:
            return
        wide = OpPattern.BROADCAST
        if self.anchor[into] >= 0 or min(self.pattern[child], self.pattern[into]) > wide:
            raise PassError(
                f"two complex operators in one group: nodes {child} and {into}", pass_name="FuseOps"
            )
        self.anchor[into] = self.anchor[child]
        self.pattern[into] = max(self.pattern[child], self.pattern[into])
