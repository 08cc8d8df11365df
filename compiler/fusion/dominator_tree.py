"""Post-dominator tree of an indexed graph, by lowest common ancestors.

The immediate post-dominator of a node is the nearest node that every path from it to the outputs
goes through. Consumers have higher indices, so one sweep from the last node to the first finds the
parent of each as the lowest common ancestor of its consumers.

A search takes O(log depth) steps (scope_tree.py), so the sweep stays near-linear when the consumer
of a value is far away from its producer.
Source: Relay v0.10 DominatorTree.
"""

from __future__ import annotations

from compiler.fusion.indexed_graph import IndexedForwardGraph
from compiler.ir.op import OpPattern
from compiler.ir.scope_tree import Scope, ways_to_common


def post_dominator_tree(graph: IndexedForwardGraph) -> list[Scope]:
    """The place of every graph node in the tree, in the order of their indices.

    The parent of a place is that of the immediate post-dominator, or the outermost, which holds no
    node. The weight is the least fusable pattern by which the value reaches the parent.
    """
    outermost = Scope(None)
    tree = [outermost] * len(graph.nodes)
    for node in reversed(graph.nodes):
        parent, pattern = outermost, int(OpPattern.OPAQUE)
        if not node.extern_ref:
            pattern = OpPattern.ELEMWISE
            for number, (consumer, edge) in enumerate(node.outputs):
                reached = tree[consumer.index]
                if number == 0:
                    parent = reached
                else:
                    parent, pattern = ways_to_common(parent, reached, pattern)
                pattern = max(pattern, edge)
        tree[node.index] = Scope(node, parent, pattern)
    return tree
