"""Values of a float module whose channels can be multiplied by the same factors.

    %0 = nn.conv2d(%x, w0);        group 0: %0, %1, %2
    %1 = add(%0, b0);              factors f: w0 * f[O,1,1,1], b0 * f, w1 / f[1,I,1,1]
    %2 = nn.relu(%1);              bridges: w0 (nothing → group 0), w1 (group 0 → …)
    nn.conv2d(%2, w1)

Sums join the groups of their sides, so a residual stream is one group. Inputs and results of the
function, and what touches an operator without a rule, have no group. Operators take part through
ops/rules/axes.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.disjoint_sets import DisjointSets
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Tuple
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import TensorType
from compiler.ir.walk import nodes_of
from compiler.ops.rules.axes import RESULT, Absorber, Axes, FAxes
from compiler.quantize.layers import tied_tables
from compiler.quantize.rewriting import rewritten
from compiler.quantize.weighted_calls import weighted_calls

Factors = NDArray[np.float64]

_BLOCK: Final = 1 << 20
"""Elements of a constant that are float64 at a time."""

_Change = tuple[Absorber, int, int]
"""A constant, the group whose factors it takes up, and its axes behind that of the channels."""


@dataclass(frozen=True, slots=True, eq=False)
class Bridge:
    """A constant between the factors of an operator's data and the factors of its result.

    Attributes:
        call: the operator.
        before: group of the data, if it has one.
        after: group of the result, if it has one.
        weight: the constant, a view: channels of the result, channels of the data, other axes;
            the first two are one axis where the constant has one for both (depthwise).
        pairs: whether they are two.
    """

    call: Call
    before: int | None
    after: int | None
    weight: NDArray[Any]
    pairs: bool

    def proportions(self) -> Factors:
        """Largest part of the range of its row (a channel of the result) that each channel of the
        data has; 1 for each where both are one axis."""
        if not self.pairs:
            return np.ones(self.weight.shape[0])
        largest = np.zeros(self.weight.shape[1])
        for rows in _blocks(self.weight.shape):
            block = np.abs(self.weight[rows]).max(axis=tuple(range(2, self.weight.ndim)))
            magnitudes = block.astype(np.float64)
            ranges = magnitudes.max(axis=1, keepdims=True)
            magnitudes /= np.where(ranges == 0, 1.0, ranges)
            np.maximum(largest, magnitudes.max(axis=0), out=largest)
        return largest


@dataclass(frozen=True, slots=True, eq=False)
class ChannelGroups:
    """The groups of one function.

    Attributes:
        sizes: channels of each group.
        group_of: value → its group.
        axis_of: value of a group → the axis of its channels.
        bridges: in visiting order.
        absorbers: call → its constants that change, with the groups whose factors they take up.
    """

    sizes: tuple[int, ...]
    group_of: Mapping[Expr, int]
    axis_of: Mapping[Expr, int]
    bridges: tuple[Bridge, ...]
    absorbers: Mapping[Expr, tuple[_Change, ...]]

    def ones(self) -> list[Factors]:
        """Factors that change nothing."""
        return [np.ones(size) for size in self.sizes]

    def rescaled(self, mod: IRModule, factors: Sequence[Factors]) -> IRModule:
        """``mod``, whose main these groups are of, with every group multiplied by its factors.

        It computes the same function, up to the rounding of the changed constants to float32.
        """

        def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            absorbed = self.absorbers.get(node, ())
            changes = tuple(one for one in absorbed if np.any(factors[one[1]] != 1))
            if not changes:
                return None
            assert isinstance(node, Call)
            return _absorbed(node, [new[arg] for arg in node.args], changes, factors)

        return rewritten(mod, made)


def _absorbed(
    call: Call, args: list[Expr], changes: tuple[_Change, ...], factors: Sequence[Factors]
) -> Expr:
    by_operand: dict[int, list[tuple[Factors, bool]]] = {}
    for absorber, group, trailing in changes:
        factor = factors[group].reshape(-1, *(1,) * trailing)
        by_operand.setdefault(absorber.operand, []).append((factor, absorber.divides))
    for operand, taken in by_operand.items():
        constant = args[operand]
        assert isinstance(constant, Constant)
        args[operand] = Constant(_times(constant.data, taken), span=constant.span)
    return with_operands(call, (call.op, *args))


def _times(data: NDArray[Any], taken: Sequence[tuple[Factors, bool]]) -> NDArray[np.float32]:
    """``data`` multiplied by factors, or divided by them, in float64."""
    shape = np.broadcast_shapes(data.shape, *(factor.shape for factor, _ in taken))
    found = np.empty(shape, np.float32)
    for rows in _blocks(shape):
        held = np.broadcast_to(data, shape)[rows].astype(np.float64)
        for factor, divides in taken:
            change = np.divide if divides else np.multiply
            change(held, np.broadcast_to(factor, shape)[rows], out=held)
        found[rows] = held
    found.flags.writeable = False  # so a Constant need not copy it
    return found


def _blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows of an array, some ``_BLOCK`` elements at a time."""
    count = max(1, _BLOCK * shape[0] // max(1, math.prod(shape)))
    return (slice(start, start + count) for start in range(0, shape[0], count))


def find_groups(main: Function) -> ChannelGroups:
    """The groups of a typed float function, O(nodes). A weight that is a table stays one."""
    finder = _Finder(tied_tables(main))
    for node in nodes_of(main):
        finder.visit(node)
    finder.freeze(main.body)
    return finder.groups()


def fields_without_effect(mod: IRModule) -> frozenset[str]:
    """The fields of a QConfig that change nothing in a prepared module."""
    group_of = find_groups(mod["main"]).group_of
    smooths = any(call.args[0] in group_of for call, _ in weighted_calls(mod["main"]))
    return frozenset(() if smooths else ("smooth_alpha",))


class _Finder:
    """Union-find over the values of a function; a frozen set takes no factors."""

    def __init__(self, tied: Set[Expr]) -> None:
        self._tied = tied
        self._number: dict[Expr, int] = {}
        self._sets = DisjointSets[int]()
        self._frozen: list[bool] = []
        self._axis: list[int] = []
        self._size: list[int] = []
        self._frozen_tuples: set[Expr] = set()
        self._flows: list[tuple[Call, Axes]] = []

    def visit(self, node: Expr) -> None:
        """Take in a value whose operands are known."""
        if isinstance(node, (Constant, Op, GlobalVar, Tuple)):
            return
        flow = self._flow(node)
        if flow is None:
            for operand in node.operands():
                self.freeze(operand)
            self._add(node, None, 0)
            return
        assert isinstance(node, Call)
        self._flows.append((node, flow))
        for place, arg in enumerate(node.args):
            if place in flow.own:
                if self._axis_of(arg) != flow.own[place]:
                    self.freeze(arg)
            elif place not in flow.tied:
                self.freeze(arg)
        if RESULT in flow.own:
            axis = flow.own[RESULT]
            self._add(node, axis, node.tensor_type.concrete_shape[axis])
        else:
            self._tie(node, flow)

    def _flow(self, node: Expr) -> Axes | None:
        if not isinstance(node, Call):
            return None
        rule = FAxes.get(node.op)
        values = (node, *(arg for arg in node.args if not isinstance(arg, Tuple)))
        if rule is None or not self._tied.isdisjoint(node.args):
            return None
        if not all(_is_float32(value) for value in values):
            return None
        axes = rule(node)
        if axes is None or not all(
            isinstance(node.args[a.operand], Constant) for a in axes.absorbers
        ):
            return None
        return axes

    def _tie(self, node: Call, flow: Axes) -> None:
        axes = set()
        for place, pairs in flow.tied.items():
            axis = self._axis_of(node.args[place])
            axes.add(None if axis is None else pairs.get(axis))
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None:
            for place in flow.tied:
                self.freeze(node.args[place])
            self._add(node, None, 0)
            return
        mine = self._add(node, axis, node.tensor_type.concrete_shape[axis])
        for place in flow.tied:
            self._join(self._number[node.args[place]], mine)

    def _add(self, node: Expr, axis: int | None, size: int) -> int:
        number = self._number[node] = len(self._frozen)
        self._frozen.append(axis is None)
        self._axis.append(0 if axis is None else axis)
        self._size.append(size)
        return number

    def _join(self, a: int, b: int) -> None:
        a = self._sets.root(a)
        b = self._sets.root(b)
        self._frozen[a] |= self._frozen[b] or self._size[a] != self._size[b]
        self._sets.merge(b, a)

    def freeze(self, value: Expr) -> None:
        """No factors for this value, or the fields of this tuple, and all that is with them."""
        pending = [value]
        while pending:
            value = pending.pop()
            number = self._number.get(value)
            if number is not None:
                self._frozen[self._sets.root(number)] = True
            elif isinstance(value, Tuple) and value not in self._frozen_tuples:
                self._frozen_tuples.add(value)
                pending.extend(value.fields)

    def _axis_of(self, value: Expr) -> int | None:
        number = self._number.get(value)
        if number is None or self._frozen[self._sets.root(number)]:
            return None
        return self._axis[number]

    def groups(self) -> ChannelGroups:
        """Return the groups, numbered in visiting order."""
        numbers: dict[int, int] = {}
        group_of: dict[Expr, int] = {}
        for value, number in self._number.items():
            root = self._sets.root(number)
            if not self._frozen[root]:
                group_of[value] = numbers.setdefault(root, len(numbers))
        bridges: list[Bridge] = []
        absorbers: dict[Expr, tuple[_Change, ...]] = {}
        for call, flow in self._flows:
            changes = []
            for absorber in flow.absorbers:
                if absorber.place == RESULT:
                    value = call
                else:
                    value = call.args[absorber.place]
                if value in group_of:
                    trailing = _trailing(absorber, value, self._axis[self._number[value]])
                    changes.append((absorber, group_of[value], trailing))
            if changes:
                absorbers[call] = tuple(changes)
                if flow.own:
                    bridges.append(_bridge(call, flow, {a.place: g for a, g, _ in changes}))
        axis_of = {value: self._axis[self._number[value]] for value in group_of}
        sizes = tuple(self._size[root] for root in numbers)
        return ChannelGroups(sizes, group_of, axis_of, tuple(bridges), absorbers)


def _trailing(absorber: Absorber, value: Expr, axis: int) -> int:
    """Axes of the constant behind that of the channels, which is ``axis`` of the value."""
    if absorber.trailing is not None:
        return absorber.trailing
    return len(value.tensor_type.shape) - axis - 1


def _bridge(call: Call, flow: Axes, groups: Mapping[int, int]) -> Bridge:
    """With the constant's axes in the order of its absorbers' places."""
    axes: dict[int, int] = {}
    constant = call.args[flow.absorbers[0].operand]
    assert isinstance(constant, Constant)
    for absorber in flow.absorbers:
        value = call if absorber.place == RESULT else call.args[absorber.place]
        trailing = _trailing(absorber, value, flow.own.get(absorber.place, 0))
        axes[absorber.place] = constant.data.ndim - trailing - 1
    kept = tuple(dict.fromkeys(axes[place] for place in (RESULT, 0, 1) if place in axes))
    weight = np.moveaxis(constant.data, kept, range(len(kept)))
    data = next((place for place in flow.own if place != RESULT), None)
    before = None if data is None else groups.get(data)
    return Bridge(call, before, groups.get(RESULT), weight, len(kept) == 2)


def _is_float32(value: Expr) -> bool:
    ty = value.checked_type
    return isinstance(ty, TensorType) and ty.dtype == "float32"
