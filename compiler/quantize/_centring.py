"""Centring: the middle of what a channel holds becomes 0 where only layers without padding read it.

    before                             after, s per channel
    %1 = add(nn.conv2d(%0, w0), b0);   %1 = add(nn.conv2d(%0, w0), b0 - s);
    %2 = nn.conv2d(%1, w1);            %2 = nn.conv2d(%1, w1);
    add(%2, b1)                        add(%2, b1 + w1 s)

All channels of a tensor share one range and one zero point. So the range is as wide as from the
lowest channel to the highest one, and smoothing lets a channel that lies between 1 and 3 count as 3
where its values are within 1 of 2. The shift costs nothing: biases take it up, and the function
stays the same.

Sums of two values have the sum of their shifts. A value that only a sum reads is shifted so that
the sum is centred. What anything else reads is not shifted: a relu, a layer with padding, whose 0
would be another number in each channel, or a result.
Source: Wei et al., "Outlier Suppression+: accurate quantization of large language models by
equivalent and effective shifting and scaling", 2023, section 4.1 (the shift of a channel).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import nodes_of
from compiler.ops.rules.mean_response import MeanResponse
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.quantize.calibration.bias_room import add_operands
from compiler.quantize.calibration.weighted_calls import weight_of, weighted_calls

Shift = NDArray[np.float64]

_SKEWED: Final = 1 / 3
"""Distance of the mean from the middle, of the width of a channel's range, beyond which few values
make one end. Then the mean becomes 0, so that a range may still cut these values off."""


@dataclass(frozen=True, slots=True, eq=False)
class Centring:
    """What is taken from values of a function, and the biases that take it up.

    Attributes:
        shifts: value → what is taken from each of its channels.
        trailing: value → axes behind that of its channels.
        biases: call of add → its operands that change, by their places.
    """

    shifts: Mapping[Expr, Shift]
    trailing: Mapping[Expr, int]
    biases: Mapping[Expr, tuple[int, Constant]]

    @staticmethod
    def of(main: Function, ranges: Sequence[ChannelRanges]) -> Centring:
        """The shifts of a typed float function; O(nodes).

        Args:
            ranges: of the data of each weighted operator, in visiting order.
        """
        values = _Values.of(main)
        shifts = values.shifts(ranges)
        return Centring(shifts, values.trailing, values.biases(shifts))

    def applied(self, mod: IRModule) -> IRModule:
        """``mod``, which holds the nodes of the function, with other biases."""
        main: Function = mod["main"]
        done: dict[Expr, Expr] = {}
        for node in nodes_of(main):
            new = with_operands(node, [done[child] for child in node.operands()])
            if node in self.biases:
                assert isinstance(new, Call)
                place, bias = self.biases[node]
                new = new.with_fields(args=(*new.args[:place], bias, *new.args[place + 1 :]))
            done[node] = new
        body = done[main.body]
        if body is main.body:
            return mod
        return infer_module(mod.with_function("main", main.with_fields(body=body)))

    def ranges(self, main: Function, ranges: Sequence[ChannelRanges]) -> list[ChannelRanges]:
        """``ranges`` of the function as they are with the other biases."""
        return [
            one.minus(self.shifts[call.args[0]]) if call.args[0] in self.shifts else one
            for (call, _), one in zip(weighted_calls(main), ranges, strict=True)
        ]


@dataclass(frozen=True, slots=True, eq=False)
class _Values:
    """Values that may be shifted.

    Attributes:
        layers: weighted operators.
        biased: add of a constant per channel to what a layer gives → the layer, and the place of
            the constant.
        trailing: those adds, and sums of values → axes behind that of the channels.
        users: of every node.
        shifted: those of ``trailing`` that only layers without padding and such sums read,
            operands before users.
    """

    layers: Mapping[Expr, MeanResponse]
    biased: Mapping[Expr, tuple[Call, int]]
    trailing: Mapping[Expr, int]
    users: Mapping[Expr, Sequence[Expr]]
    shifted: Sequence[Expr]

    @staticmethod
    def of(main: Function) -> _Values:
        layers: dict[Expr, MeanResponse] = dict(weighted_calls(main))
        users: dict[Expr, list[Expr]] = {}
        biased: dict[Expr, tuple[Call, int]] = {}
        trailing: dict[Expr, int] = {}
        nodes = nodes_of(main)
        for node in nodes:
            for operand in node.operands():
                users.setdefault(operand, []).append(node)
        for node in nodes:
            for place, (product, bias) in enumerate(reversed(add_operands(node))):
                if product in layers and isinstance(product, Call) and isinstance(bias, Constant):
                    behind = FQProductShape.require(product.op)(product).out_trailing
                    if behind is not None and _is_along(bias, node, behind):
                        biased[node], trailing[node] = (product, 1 - place), behind
            known = {trailing[arg] for arg in _summed(node) if arg in trailing}
            if len(known) == 1:
                trailing[node] = known.pop()
        absorbed = {product for product, _ in biased.values() if len(users[product]) == 1}
        kept: set[Expr] = set()
        for node in reversed(nodes):
            read = users.get(node, ())
            if node in trailing and read:
                axis = len(node.tensor_type.shape) - trailing[node] - 1
                if all(
                    (user in kept and trailing[user] == trailing[node] and bool(_summed(user)))
                    or (user in absorbed and _sees_all(user, layers[user], node, axis))
                    for user in read
                ):
                    kept.add(node)
        return _Values(layers, biased, trailing, users, [n for n in nodes if n in kept])

    def shifts(self, ranges: Sequence[ChannelRanges]) -> dict[Expr, Shift]:
        """The middle of what layers read; of what only sums read, the rest of theirs."""
        middles = {
            call.args[0]: _middle(one)
            for call, one in zip(self.layers, ranges, strict=True)
            if isinstance(call, Call)
        }
        made = [node for node in self.shifted if node in self.biased]
        found = {node: middles[node] for node in made if node in middles}
        for node in made:
            total = self.users[node][0]
            if node not in found and total in middles:
                known = [found[arg] for arg in total.operands() if arg in found]
                found[node] = middles[total] - sum(known)
        for node in self.shifted:
            known = [found[arg] for arg in _summed(node) if arg in found]
            if known:
                found[node] = np.asarray(sum(known[1:], start=known[0]))
        return found

    def biases(self, shifts: Mapping[Expr, Shift]) -> dict[Expr, tuple[int, Constant]]:
        """The constants of adds behind layers whose data or whose result is shifted."""
        found: dict[Expr, tuple[int, Constant]] = {}
        for node, (product, place) in self.biased.items():
            weight, data = weight_of(product), product.args[0]
            if node not in shifts and data not in shifts:
                continue
            assert isinstance(node, Call)
            assert weight is not None
            held = node.args[place]
            assert isinstance(held, Constant)
            more = np.zeros(held.data.size)
            if data in shifts:
                more += self.layers[product].respond(weight.data, shifts[data])
            if node in shifts:
                more -= shifts[node]
            changed = held.data.astype(np.float64) + more.reshape(held.data.shape)
            found[node] = place, Constant(changed.astype(np.float32), span=held.span)
        return found


def _middle(one: ChannelRanges) -> Shift:
    middle = (one.low + one.high) / 2
    skewed = np.abs(middle - one.mean) > _SKEWED * (one.high - one.low)
    return np.asarray(np.where(skewed, one.mean, middle))


def _is_along(bias: Constant, node: Expr, trailing: int) -> bool:
    """Whether a constant has a number for each channel of a sum, and no more."""
    held, shape = bias.data, node.tensor_type.shape
    if trailing >= min(held.ndim, len(shape)):
        return False
    return bool(held.size == held.shape[-1 - trailing] == shape[-1 - trailing])


def _summed(node: Expr) -> tuple[Expr, ...]:
    """Both sides of a sum of two values of one shape; nothing for other nodes."""
    if not is_op_call(node, "add"):
        return ()
    assert isinstance(node, Call)
    one, other = node.args
    constant = isinstance(one, Constant) or isinstance(other, Constant)
    alike = one.checked_type == other.checked_type and one is not other
    return (one, other) if alike and not constant else ()


def _sees_all(layer: Expr, response: MeanResponse, data: Expr, axis: int) -> bool:
    """Whether a layer reads a value, its channels along an axis, and never padding."""
    assert isinstance(layer, Call)
    weight = weight_of(layer)
    if weight is None or layer.args[0] is not data or response.data_axis != axis:
        return False
    channels = data.tensor_type.concrete_shape[axis]
    seen = response.respond(np.ones_like(weight.data), np.ones(channels))
    terms = FQProductShape.require(layer.op)(layer).terms
    return np.array_equal(seen, np.full_like(seen, terms))
