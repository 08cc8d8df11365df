"""Cost of a module on an accelerator, from its description alone: a pure function.

Groups run one after the other; the units of a group work at the same time, so a group takes as long
as its busiest unit, or as its memory traffic where that is slower.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

from compiler.errors import DynamicShapeError
from compiler.fusion.hardware.conditions import bytes_of
from compiler.fusion.hardware.group_calls import group_functions, group_steps, host_nodes
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.ir.expr import Call, Constant, Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.ty import tensor_fields
from compiler.ir.walk import nodes_of
from compiler.ops.rules.product_shape import FQProductShape


@dataclass(frozen=True, slots=True)
class GroupCost:
    """One group. Sizes in bytes.

    Attributes:
        symbol: its ``global_symbol``.
        stages: its units in order of joining.
        input_bytes, output_bytes: what it reads and writes off the chip, parameters and result.
        weight_bytes: constants it loads.
        cycles: of its busiest unit, or of its traffic where that takes longer.
    """

    symbol: str
    stages: tuple[str, ...]
    input_bytes: int
    output_bytes: int
    weight_bytes: int
    cycles: float

    @property
    def traffic_bytes(self) -> int:
        """Everything that crosses the chip's border for this group."""
        return self.input_bytes + self.output_bytes + self.weight_bytes


@dataclass(frozen=True, slots=True)
class HardwareCost:
    """A whole module on an accelerator: its groups, and how many operators stay on the host."""

    groups: tuple[GroupCost, ...]
    host_calls: int

    @property
    def num_groups(self) -> int:
        """Calls of the accelerator."""
        return len(self.groups)

    @property
    def traffic_bytes(self) -> int:
        """Off-chip traffic of all groups: inputs, results and constants."""
        return sum(group.traffic_bytes for group in self.groups)

    @property
    def moved_bytes(self) -> int:
        """The part of the traffic that moves between groups, or to and from the host."""
        return sum(group.input_bytes + group.output_bytes for group in self.groups)

    @property
    def cycles(self) -> float:
        """Cycles of all groups, one after the other."""
        return sum(group.cycles for group in self.groups)

    def totals(self) -> dict[str, float]:
        """The numbers a search can minimise, by name."""
        return {
            "hw_groups": self.num_groups,
            "hw_traffic": self.traffic_bytes,
            "hw_cycles": self.cycles,
            "hw_host_calls": self.host_calls,
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**self.totals(), "groups": [asdict(group) for group in self.groups]}


def hardware_cost(mod: IRModule, hdfg: HDFG) -> HardwareCost:
    """Cost of a module; its groups are drawn first if it has none of this description.

    Args:
        mod: typed, or typable; an integer module, partitioned or not.
        hdfg: the accelerator.

    Raises:
        DynamicShapeError: a size is not known.
    """
    mod = group_for_hardware(mod, hdfg)
    costs = tuple(_group_cost(function, hdfg) for function in group_functions(mod, hdfg.name))
    return HardwareCost(costs, sum(1 for _ in host_nodes(mod)))


def _group_cost(function: Function, hdfg: HDFG) -> GroupCost:
    inputs = sum(_size(param) for param in function.params)
    output = _size(function.body)
    constants = {node for node in nodes_of(function) if isinstance(node, Constant)}
    weights = sum(node.data.nbytes for node in constants)
    busy: dict[str, list[float]] = defaultdict(list)
    for unit, call in group_steps(function):
        busy[unit].append(hdfg.stage(unit).cycles_per_element * work_of(call))
    if hdfg.bytes_per_cycle:
        memory = (inputs + output + weights) / hdfg.bytes_per_cycle
    else:
        memory = 0.0
    return GroupCost(
        function.get_attr("global_symbol"),
        tuple(function.get_attr("hdfg_stages")),
        inputs,
        output,
        weights,
        max(memory, max(map(sum, busy.values()), default=0.0)),
    )


def work_of(call: Call) -> int:
    """Products of a convolution or matrix product; for anything else the elements of the larger of
    its result and its operands."""
    rule = FQProductShape.get(call.op)
    if rule is not None:
        return rule(call).terms * _elements(call)
    return max(map(_elements, (call, *call.args)))


def _elements(expr: Expr) -> int:
    _size(expr)
    return sum(part.num_elements for part in tensor_fields(expr.checked_type))


def _size(expr: Expr) -> int:
    size = bytes_of(expr.checked_type)
    if size is None:
        raise DynamicShapeError(
            f"the size of a value of type {expr.checked_type} is not known, nor is its cost",
            span=expr.span,
            fix="give the model fixed input sizes (--dim NAME=N)",
        )
    return size
