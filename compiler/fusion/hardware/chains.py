"""The calls that use the value of a node, behind operators that cost nothing in a group."""

from __future__ import annotations

from collections.abc import Callable

from compiler.fusion.hardware.dfg import DFG, Node


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
