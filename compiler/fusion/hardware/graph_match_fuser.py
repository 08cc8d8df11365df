"""GraphMatchFuser: finds the groups of one function, greedily: each call joins the latest group
where it can."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from compiler.fusion.hardware.dfg import DFG, Creator, Node
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import MARKERS, Group, Stage
from compiler.ir.expr import Function


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


def partition(function: Function, hdfg: HDFG) -> tuple[DFG, list[Group]]:
    """The graph of the body of ``function`` and its groups, in order of creation; function literals
    inside it are not entered.

    Args:
        function: typed.
    """
    fuser = GraphMatchFuser(hdfg, Creator.prepare(function))
    match_greedily(fuser)
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
