"""Assign nodes to kernels: three phases over the nodes in post-order.

Phase 0 lets complex operators absorb elementwise consumers and elementwise operators join what they
feed; phase 1 does the same for operators that move data, and for tuples; phase 2 takes what feeds a
tuple into the kernel that the tuple has joined. A node goes with all nodes between it and its
immediate post-dominator, or it stays.
Source: Relay v0.10 analysis/graph_partitioner.cc, DominatorTree.
"""

from __future__ import annotations

from dataclasses import dataclass

from compiler.fusion.groups import Groups
from compiler.fusion.indexed_graph import GraphNode, IndexedForwardGraph, is_inlined
from compiler.ir.expr import Call, Expr, describe
from compiler.ir.op import OpPattern
from compiler.ir.scope_tree import Scope, ways_to_common


def post_dominator_tree(graph: IndexedForwardGraph) -> list[Scope]:
    """Return the place of every graph node in the tree, in the order of their indices.

    The immediate post-dominator of a node is the nearest node that every path from it to the
    outputs goes through. Consumers have higher indices, so one sweep from the last node to the
    first finds the parent of each as the lowest common ancestor of its consumers; a search takes
    O(log depth) steps (scope_tree.py).

    The parent of a place is that of the immediate post-dominator, or the outermost, which holds no
    node. The weight is the least fusable pattern by which the value reaches the parent.
    """
    outermost = Scope(None)
    tree = [outermost] * len(graph.nodes)
    for node in reversed(graph.nodes):
        parent = outermost
        pattern = int(OpPattern.OPAQUE)
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


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the size of a kernel.

    Args:
        max_depth: nodes in one kernel, constants counted.
        max_args: inputs and output of one kernel; 0 for any number.
        link_params: constants lie inside the kernel and are no inputs.
    """

    max_depth: int = 256
    max_args: int = 0
    link_params: bool = False


def partition(
    graph: IndexedForwardGraph, limits: Limits, *, fuse: bool = True
) -> tuple[Groups, dict[int, str]]:
    """The groups of a graph, and by node index why a node was not fused with its consumers.

    Near-linear: a walk ends when it has met ``max_depth`` nodes.

    Args:
        graph: of a typed function.
        limits: see Limits.
        fuse: False leaves every node alone.
    """
    partitioner = _Partitioner(graph, limits)
    if fuse:
        partitioner.run(post_dominator_tree(graph))
    return partitioner.groups, partitioner.refused


class _Partitioner:
    def __init__(self, graph: IndexedForwardGraph, limits: Limits) -> None:
        self.nodes = graph.nodes
        self.groups = Groups([node.pattern for node in graph.nodes])
        self.limits = limits
        self.refused: dict[int, str] = {}
        self.node_of = graph.of
        self.members: dict[int, list[int]] = {}

    def run(self, tree: list[Scope]) -> None:
        for phase in range(3):
            for node in self.nodes:
                reason = self._consider(node, tree[node.index], phase)
                if reason is not None:
                    self.refused[node.index] = reason
        for index in list(self.refused):
            above = _dominator(tree[index])
            if above is not None and self._together(index, above.index):
                del self.refused[index]

    def _together(self, a: int, b: int) -> bool:
        return self.groups.root(a) == self.groups.root(b)

    def _consider(self, node: GraphNode, at: Scope, phase: int) -> str | None:
        """Fuse ``node`` with its post-dominator if this phase allows; else the reason why not."""
        groups = self.groups
        mine = groups.pattern[node.index]
        if mine == OpPattern.OPAQUE:
            return "opaque"
        sink = _dominator(at)
        if sink is None:
            if node.extern_ref:
                return "its value is read outside of kernels"
            return _NO_DOMINATOR
        its = groups.pattern[sink.index]
        if phase == 2:
            if mine > OpPattern.INJECTIVE:
                return None
            into = groups.pattern[groups.root(sink.index)]
            if its != OpPattern.TUPLE or into > OpPattern.INJECTIVE:
                return None
            return self._fuse(node, sink, OpPattern.INJECTIVE)
        if self._together(node.index, sink.index):
            return None
        if its == OpPattern.TUPLE:
            return "feeds a tuple"
        if mine == OpPattern.OUT_ELEMWISE_FUSABLE:
            if phase > 0:
                return None
            if at.weight != OpPattern.ELEMWISE:
                return f"is read by an edge of kind {_name(at.weight)}, needs ELEMWISE"
            return self._fuse(node, sink, OpPattern.BROADCAST)
        if mine <= OpPattern.BROADCAST:
            if at.weight <= OpPattern.INJECTIVE or at.weight == OpPattern.COMM_REDUCE:
                return self._fuse(node, sink, OpPattern.INJECTIVE, OpPattern.OUT_ELEMWISE_FUSABLE)
            return f"is read by an edge of kind {_name(at.weight)}"
        if mine in (OpPattern.INJECTIVE, OpPattern.TUPLE):
            if phase == 1:
                return self._fuse(node, sink, OpPattern.INJECTIVE)
            return None
        return "nothing is fused behind a reduction"

    def _fuse(
        self, node: GraphNode, sink: GraphNode, way: int, end: int | None = None
    ) -> str | None:
        """Groups on the way are of the pattern ``way`` at most; that of the sink of ``end``."""
        groups = self.groups
        between = self._between(node, sink)
        if between is None:
            return f"the kernel would hold more than max_depth={self.limits.max_depth} nodes"
        for other in between:
            kind = groups.pattern[groups.root(other.index)]
            if kind > way:
                return f"{describe(other.ref)} ({_name(kind)}) lies on the way"
        kind = groups.pattern[groups.root(sink.index)]
        if kind > (way if end is None else end):
            return f"{describe(sink.ref)} belongs to a kernel of kind {_name(kind)}"
        if self.limits.max_args and not self._fits(node, between, sink):
            return f"the kernel would have more than max_args={self.limits.max_args} arguments"
        for member in (node, *between):
            groups.merge(member.index, sink.index)
        return None

    def _between(self, node: GraphNode, sink: GraphNode) -> list[GraphNode] | None:
        """Nodes on the ways from ``node`` to ``sink``, both excluded; None where they are too many.

        A member that has gathered others under its record counts with them.
        """
        groups = self.groups
        room = self.limits.max_depth - groups.num_nodes[groups.root(sink.index)]
        room -= groups.num_nodes[node.index]
        if room < 0:
            return None
        if len(node.outputs) == 1 and node.outputs[0][0] is sink:
            return []
        found: dict[GraphNode, None] = {}
        stack = [node]
        while stack:
            for consumer, _ in stack.pop().outputs:
                if consumer is sink or consumer in found:
                    continue
                room -= groups.num_nodes[consumer.index]
                if room < 0:
                    return None
                found[consumer] = None
                stack.append(consumer)
        return list(found)

    def _fits(self, node: GraphNode, between: list[GraphNode], sink: GraphNode) -> bool:
        """True when the merged kernel has at most ``max_args`` inputs and outputs."""
        roots = dict.fromkeys(self.groups.root(n.index) for n in (node, *between, sink))
        merged = [index for root in roots for index in self.members.get(root, [root])]
        inside = set(merged)
        inputs: set[Expr] = set()
        for index in merged:
            ref = self.nodes[index].ref
            for operand in ref.args if isinstance(ref, Call) else ref.operands():
                held = self.node_of.get(operand)
                if held is None or held.index in inside:
                    continue
                if is_inlined(operand, self.limits.link_params):
                    continue
                inputs.add(operand)
        if len(inputs) + 1 > self.limits.max_args:
            return False
        for root in roots:
            self.members.pop(root, None)
        self.members[self.groups.root(sink.index)] = merged
        return True


_NO_DOMINATOR = "no operator behind it reads all that comes from it"


def _dominator(place: Scope) -> GraphNode | None:
    """The immediate post-dominator of the node at a place."""
    node: GraphNode | None = place.parent.construct if place.parent is not None else None
    return node


def _name(pattern: int) -> str:
    return OpPattern(pattern).name
