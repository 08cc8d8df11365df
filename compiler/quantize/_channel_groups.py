"""Values of a float module whose channels can be multiplied by the same factors.

    %0 = nn.conv2d(%x, w0);        group 0: %0, %1, %2
    %1 = add(%0, b0);              factors f: w0 * f[O,1,1,1], b0 * f, w1 / f[1,I,1,1]
    %2 = nn.relu(%1);              bridges: w0 (nothing → group 0), w1 (group 0 → …)
    nn.conv2d(%2, w1)

Sums join the groups of their sides, so a residual stream is one group. Inputs and results of the
function, and what touches an operator without a rule, have no group. Operators take part through
ops/rules/channel_factors.py.

Where factors may pass concatenations, the fields of one and its result are in one group, and each
value has a part of its channels:

    %2 = concatenate((%0, %1), axis=1);    group 0 of 12 channels: %0 0 to 3, %1 4 to 11, %2 all
    nn.conv2d(%2, w2)

Such a group takes no factors at all where one of its values may not, or is cut off at a limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import TensorType
from compiler.ir.walk import nodes_of
from compiler.ops.rules.channel_factors import RESULT, Absorber, ChannelFactors, FQChannelFactors

Factors = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Channels:
    """The channels of a value among those of its group; some may be there twice."""

    group: int
    places: NDArray[np.intp]

    def of(self, factors: Sequence[Factors]) -> Factors:
        """What each channel of the value has."""
        return factors[self.group][self.places]


_Change = tuple[Absorber, Channels, int]
"""A constant, the channels whose factors it takes up, and its axes behind that of the channels."""


@dataclass(frozen=True, slots=True, eq=False)
class Bridge:
    """A constant between the factors of an operator's data and the factors of its result.

    Attributes:
        call: the operator.
        before: channels of the data; None where it has no group.
        after: channels of the result; None where it has no group.
        magnitudes: max|w| for each (channel of the result, channel of the data); rank 1 where the
            constant has one axis for both (depthwise).
    """

    call: Call
    before: Channels | None
    after: Channels | None
    magnitudes: NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ChannelGroups:
    """The groups of one function.

    Attributes:
        sizes: channels of each group.
        group_of: value → its group.
        axis_of: value of a group → the axis of its channels.
        bridges: in visiting order.
        absorbers: call → its constants that change, with the channels whose factors they take up.
    """

    sizes: tuple[int, ...]
    group_of: Mapping[Expr, int]
    axis_of: Mapping[Expr, int]
    bridges: tuple[Bridge, ...]
    absorbers: Mapping[Expr, tuple[_Change, ...]]
    _layout: _Layout

    def channels(self, value: Expr) -> Channels | None:
        """Those of a value; None where it has no group."""
        return self._layout.channels(value) if value in self.group_of else None

    def ones(self) -> list[Factors]:
        """Factors that change nothing."""
        return [np.ones(size) for size in self.sizes]

    def rescaled(self, mod: IRModule, factors: Sequence[Factors]) -> IRModule:
        """``mod``, whose main these groups are of, with every group multiplied by its factors.

        It computes the same function, up to the rounding of the changed constants to float32.
        """
        main: Function = mod["main"]
        done: dict[Expr, Expr] = {}
        for node in nodes_of(main):
            new = with_operands(node, [done[child] for child in node.operands()])
            absorbed = self.absorbers.get(node, ())
            changes = tuple(one for one in absorbed if np.any(one[1].of(factors) != 1))
            if changes:
                assert isinstance(new, Call)
                new = _absorbed(new, changes, factors)
            done[node] = new
        body = done[main.body]
        if body is main.body:
            return mod
        return infer_module(mod.with_function("main", main.with_fields(body=body)))


def _absorbed(call: Call, changes: tuple[_Change, ...], factors: Sequence[Factors]) -> Call:
    args = list(call.args)
    values: dict[int, NDArray[np.float64]] = {}
    for absorber, channels, trailing in changes:
        constant = args[absorber.operand]
        assert isinstance(constant, Constant)
        held = values.get(absorber.operand, constant.data.astype(np.float64))
        factor = channels.of(factors).reshape(-1, *(1,) * trailing)
        values[absorber.operand] = held / factor if absorber.divides else held * factor
    for operand, value in values.items():
        args[operand] = Constant(value.astype(np.float32), span=args[operand].span)
    return call.with_fields(args=tuple(args))


def find_groups(main: Function, through_concat: bool = False) -> ChannelGroups:
    """The groups of a typed float function, O(nodes).

    Args:
        through_concat: whether factors pass concatenations.
    """
    finder = _Finder(through_concat)
    for node in nodes_of(main):
        finder.visit(node)
    finder.freeze(main.body)
    return finder.groups()


@dataclass(frozen=True, slots=True, eq=False)
class _Layout:
    """Where the channels of values are in their groups.

    Attributes:
        root_of: value → what it is tied to.
        starts: of what is no concatenation: its group and its channels there.
        parts: of concatenations, the roots of their fields.
    """

    root_of: Mapping[Expr, int]
    starts: Mapping[int, Channels]
    parts: Mapping[int, tuple[int, ...]]

    def channels(self, value: Expr) -> Channels:
        """Of a value with a group; a concatenation has those of its fields, one after the other."""
        root = self.root_of[value]
        if root in self.starts:
            return self.starts[root]
        found: list[NDArray[np.intp]] = []
        pending = [root]
        while pending:
            root = pending.pop()
            if root in self.starts:
                found.append(self.starts[root].places)
            else:
                pending.extend(reversed(self.parts[root]))
        return Channels(self.starts[root].group, np.concatenate(found))


class _Finder:
    """Union-find over the values of a function; a frozen set takes no factors.

    Values that have the same factors are tied. What is tied and what is concatenated is together.
    """

    def __init__(self, through_concat: bool) -> None:
        self._through_concat = through_concat
        self._number: dict[Expr, int] = {}
        self._tied: list[int] = []
        self._together: list[int] = []
        self._frozen: list[bool] = []
        self._axis: list[int] = []
        self._size: list[int] = []
        self._parts: dict[int, tuple[int, ...]] = {}
        self._results: dict[tuple[Expr, int], int] = {}
        self._frozen_tuples: set[Expr] = set()
        self._flows: list[tuple[Call, ChannelFactors]] = []

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
        if flow.joined is not None:
            self._concatenate(node, flow.joined)
            return
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

    def _flow(self, node: Expr) -> ChannelFactors | None:
        if not isinstance(node, Call):
            return None
        rule = FQChannelFactors.get(node.op)
        values = (node, *(arg for arg in node.args if not isinstance(arg, Tuple)))
        if rule is None or not all(_is_float32(value) for value in values):
            return None
        flow = rule(node)
        passes = flow is None or flow.joined is None or self._through_concat
        return flow if passes else None

    def _tie(self, node: Call, flow: ChannelFactors) -> None:
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

    def _concatenate(self, node: Call, axis: int) -> None:
        """The fields and the result are together; the same fields give the same result."""
        fields = node.args[0]
        before = self._results.get((fields, axis))
        if before is None and any(self._axis_of(field) != axis for field in fields.operands()):
            self.freeze(fields)
            self._add(node, None, 0)
            return
        mine = self._results[fields, axis] = self._add(
            node, axis, node.tensor_type.concrete_shape[axis]
        )
        if before is not None:
            self._join(before, mine)
            return
        numbers = tuple(self._number[field] for field in fields.operands())
        for number in numbers:
            self._unite(number, mine)
        if len(numbers) == 1:
            self._join(numbers[0], mine)
        elif all(self._size[number] for number in numbers):
            self._parts[mine] = numbers
        else:
            self.freeze(node)

    def _add(self, node: Expr, axis: int | None, size: int) -> int:
        number = self._number[node] = len(self._tied)
        self._tied.append(number)
        self._together.append(number)
        self._frozen.append(axis is None)
        self._axis.append(0 if axis is None else axis)
        self._size.append(size)
        return number

    def _unite(self, a: int, b: int) -> None:
        a, b = _find(self._together, a), _find(self._together, b)
        self._together[b] = a
        self._frozen[a] |= self._frozen[b]

    def _join(self, a: int, b: int) -> None:
        """Tie two values, and the fields of two concatenations one by one.

        A field is smaller than the concatenation, so nothing is ever a part of itself.
        """
        pending = [(a, b)]
        while pending:
            a, b = (_find(self._tied, number) for number in pending.pop())
            if a == b:
                continue
            self._unite(a, b)
            parts, others = self._parts.get(a, ()), self._parts.get(b, ())
            sizes = [[self._size[part] for part in each] for each in (parts, others)]
            if self._size[a] != self._size[b] or (parts and others and sizes[0] != sizes[1]):
                self._frozen[_find(self._together, a)] = True
                continue
            if others and not parts:
                a, b = b, a
            self._tied[b] = a
            pending.extend(zip(parts, self._parts.pop(b, ()), strict=False))

    def freeze(self, value: Expr) -> None:
        """No factors for this value, or the fields of this tuple, and all that is with them."""
        pending = [value]
        while pending:
            value = pending.pop()
            number = self._number.get(value)
            if number is not None:
                self._frozen[_find(self._together, number)] = True
            elif isinstance(value, Tuple) and value not in self._frozen_tuples:
                self._frozen_tuples.add(value)
                pending.extend(value.fields)

    def _axis_of(self, value: Expr) -> int | None:
        number = self._number.get(value)
        if number is None or self._frozen[_find(self._together, number)]:
            return None
        return self._axis[number]

    def groups(self) -> ChannelGroups:
        """What was found, groups numbered in visiting order."""
        numbers: dict[int, int] = {}
        sizes: list[int] = []
        group_of: dict[Expr, int] = {}
        root_of: dict[Expr, int] = {}
        starts: dict[int, Channels] = {}
        for value, number in self._number.items():
            together = _find(self._together, number)
            if self._frozen[together]:
                continue
            group = group_of[value] = numbers.setdefault(together, len(numbers))
            sizes.extend([0] * (len(numbers) - len(sizes)))
            root = root_of[value] = _find(self._tied, number)
            if root not in starts and root not in self._parts:
                end = sizes[group] + self._size[root]
                starts[root] = Channels(group, np.arange(sizes[group], end))
                sizes[group] = end
        parts = {
            root: tuple(_find(self._tied, part) for part in parts)
            for root, parts in self._parts.items()
        }
        layout = _Layout(root_of, starts, parts)
        bridges: list[Bridge] = []
        absorbers: dict[Expr, tuple[_Change, ...]] = {}
        for call, flow in self._flows:
            changes = []
            for absorber in flow.absorbers:
                value = call if absorber.place == RESULT else call.args[absorber.place]
                if value in group_of:
                    trailing = self._trailing(absorber, value)
                    changes.append((absorber, layout.channels(value), trailing))
            if changes:
                absorbers[call] = tuple(changes)
                if flow.own:
                    bridges.append(_bridge(call, flow, {a.place: c for a, c, _ in changes}))
        axis_of = {value: self._axis[self._number[value]] for value in group_of}
        return ChannelGroups(tuple(sizes), group_of, axis_of, tuple(bridges), absorbers, layout)

    def _trailing(self, absorber: Absorber, value: Expr) -> int:
        if absorber.trailing is not None:
            return absorber.trailing
        return len(value.tensor_type.shape) - self._axis[self._number[value]] - 1


def _bridge(call: Call, flow: ChannelFactors, channels: Mapping[int, Channels]) -> Bridge:
    """With the constant's magnitudes over the axes that its absorbers name, largest first."""
    axes: dict[int, int] = {}
    constant = call.args[flow.absorbers[0].operand]
    assert isinstance(constant, Constant)
    for absorber in flow.absorbers:
        value = call if absorber.place == RESULT else call.args[absorber.place]
        trailing = absorber.trailing
        if trailing is None:
            trailing = len(value.tensor_type.shape) - flow.own[absorber.place] - 1
        axes[absorber.place] = constant.data.ndim - trailing - 1
    kept = tuple(dict.fromkeys(axes[place] for place in (RESULT, 0, 1) if place in axes))
    magnitudes = np.abs(constant.data.astype(np.float64))
    rest = tuple(axis for axis in range(magnitudes.ndim) if axis not in kept)
    reduced = magnitudes.max(axis=rest) if rest else magnitudes
    if len(kept) == 2 and kept[0] > kept[1]:
        reduced = reduced.T
    data = next((place for place in flow.own if place != RESULT), None)
    before = None if data is None else channels.get(data)
    return Bridge(call, before, channels.get(RESULT), reduced)


def _find(parents: list[int], number: int) -> int:
    while parents[number] != number:
        parents[number] = parents[parents[number]]
        number = parents[number]
    return number


def _is_float32(value: Expr) -> bool:
    ty = value.checked_type
    return isinstance(ty, TensorType) and ty.dtype == "float32"
