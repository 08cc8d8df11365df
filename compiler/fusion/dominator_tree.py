"""Post-dominator tree of an indexed graph, by lowest common ancestors.

The immediate post-dominator of a node is the nearest node that every path from it to the outputs
goes through. Consumers have higher indices, so one sweep from the last node to the first finds the
parent of each as the lowest common ancestor of its consumers.

A tree node also stores one far ancestor. So a search takes O(log depth) steps, and the sweep stays
near-linear when the consumer of a value is far away from its producer.
Source: Relay v0.10 DominatorTree; Myers, "An applicative random-access stack", 1983, for the far
ancestors.
"""

from __future__ import annotations

from compiler.fusion.indexed_graph import GraphNode, IndexedForwardGraph
from compiler.ir.op import OpPattern


class TreeNode:
    """A graph node in the tree.

    Attributes:
        node: the graph node.
        parent: its immediate post-dominator; None where there is none.
        depth: 1 at a root.
        pattern: the least fusable pattern by which the value reaches the parent.
        jump: a far ancestor, whose depth follows from ``depth`` alone; None above the root.
        jump_pattern: the worst pattern from this node, included, to ``jump``, excluded.
    """

    __slots__ = ("depth", "jump", "jump_pattern", "node", "parent", "pattern")

    depth: int
    jump: TreeNode | None
    jump_pattern: int

    def __init__(self, node: GraphNode, parent: TreeNode | None, pattern: int) -> None:
        self.node = node
        self.parent = parent
        self.pattern = pattern
        self.depth = 1 if parent is None else parent.depth + 1
        self.jump = parent
        self.jump_pattern = pattern
        if parent is None or parent.jump is None:
            return
        near, far = parent.jump, parent.jump.jump
        if parent.depth - near.depth == near.depth - (0 if far is None else far.depth):
            self.jump = far
            self.jump_pattern = max(pattern, parent.jump_pattern, near.jump_pattern)


def post_dominator_tree(graph: IndexedForwardGraph) -> list[TreeNode]:
    """A tree node per graph node, in the order of their indices."""
    tree: dict[int, TreeNode] = {}
    for node in reversed(graph.nodes):
        tree[node.index] = _tree_node(node, tree)
    return [tree[index] for index in range(len(graph.nodes))]


def _tree_node(node: GraphNode, tree: dict[int, TreeNode]) -> TreeNode:
    if node.extern_ref:
        return TreeNode(node, None, OpPattern.OPAQUE)
    parent: TreeNode | None = None
    pattern: int = OpPattern.ELEMWISE
    for number, (consumer, edge) in enumerate(node.outputs):
        reached = tree[consumer.index]
        if number == 0:
            parent = reached
        else:
            parent, pattern = _common_ancestor(parent, reached, pattern)
        pattern = max(pattern, edge)
    return TreeNode(node, parent, pattern)


def _common_ancestor(
    left: TreeNode | None, right: TreeNode | None, pattern: int
) -> tuple[TreeNode | None, int]:
    """The lowest node above both, and ``pattern`` made worse by every node stepped over."""
    if left is None or right is None:
        return None, pattern
    low, high = (left, right) if left.depth > right.depth else (right, left)
    climbed, pattern = _climb(low, high.depth, pattern)
    a: TreeNode | None = climbed
    b: TreeNode | None = high
    while a is not b:
        assert a is not None
        assert b is not None
        if a.jump is not b.jump:
            pattern = max(pattern, a.jump_pattern, b.jump_pattern)
            a, b = a.jump, b.jump
        else:
            pattern = max(pattern, a.pattern, b.pattern)
            a, b = a.parent, b.parent
    return a, pattern


def _climb(node: TreeNode, depth: int, pattern: int) -> tuple[TreeNode, int]:
    """The ancestor at a depth."""
    while node.depth > depth:
        if node.jump is not None and node.jump.depth >= depth:
            pattern = max(pattern, node.jump_pattern)
            node = node.jump
        else:
            pattern = max(pattern, node.pattern)
            assert node.parent is not None
            node = node.parent
    return node, pattern
