"""MergeRequantize: what stands around a requantization becomes a field of it.

    before                                          after
    %1 = add(%0, b);                                %1 = qnn.requantize(%0, m, s, b,
    %2 = nn.relu(%1);                                      axis=1, relu=True, low=0, high=255,
    %3 = cast(%2, dtype="int64");                          out_dtype="uint8", stored=True)
    %4 = qnn.requantize(%3, m, s, axis=1, …);
    %5 = clip(%4, a_min=0f, a_max=255f);
    %6 = cast(%5, dtype="uint8");
    annotation.stop_fusion(%6)

In front: casts to wider integers, a constant bias, a relu, clips, a stop_fusion. Behind: clips,
constant sums behind a clip, casts to narrower integers and stop_fusion, where all that reads the
value does the same; a stop_fusion also where other readers have none. No value changes.

A requantization never decreases as its data grow, so R(clip(x, a, b)) = clip(R(x), R(a), R(b)).
Limits in front, also those of channels, become limits of the result where all channels get the same
ones and no x overflows without them. Limits of more than 8 bits tell what calibration has seen:
what stands in front of those stays.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, Quant, TupleGetItem, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.rebuild import rebuilt_function, typed_alike, with_operands
from compiler.ir.ty import TensorType, bits, integer_range, is_integer
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.number_format import Array
from compiler.ops.qnn.requantize import (
    OP,
    RequantizeAttrs,
    all_hold,
    bias_dtype,
    factors_of,
    limits_fit,
    requantize_numpy,
)
from compiler.ops.tensor.clip import integer_bound
from compiler.span import join_spans

Users = Mapping[Expr, Sequence[Expr | None]]
_STOP = "annotation.stop_fusion"
_SUMS = ("add", "subtract")
_LIMITS = ("clip", "maximum", "minimum")
_LEVELS = 256


@register_pass("MergeRequantize", opt_level=0, required=("InferType",))
@dataclass(frozen=True, slots=True)
class MergeRequantize(FunctionPass):
    """Draw bias, relu, clip, casts and stop_fusion into the requantizations between them."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function, itself where nothing is drawn in."""
        if not mentions(fn, (OP,)):
            return fn
        order = nodes_of(fn)
        users: dict[Expr, list[Expr | None]] = {fn.body: [None]}
        for node in order:
            for operand in node.operands():
                users.setdefault(operand, []).append(node)
        merged: dict[Expr, _Merged] = {}
        taken: set[Expr] = set()
        for node in order:
            if is_op_call(node, OP):
                one = _Merged(node, users, taken)
                merged |= dict.fromkeys(one.last, one)
        if not any(one.changed for one in merged.values()):
            return fn
        made: dict[_Merged, Expr] = {}
        read = _scales_of(merged.values())

        def new_form(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            one = merged.get(node)
            if one is None:
                return _worth(node, read.get(node), new)
            if one not in made:
                made[one] = one.call(new)
                made[one].set_checked_type(node.checked_type)
            return made[one]

        return rebuilt_function(fn, new_form)


def _dtype(node: Expr) -> str:
    ty = node.checked_type
    if isinstance(ty, TensorType):
        return ty.dtype
    return ""


def _scales_of(merged: Iterable[_Merged]) -> dict[Expr, Quant | None]:
    """The scale of what is multiplied; None where two requantizations read it at different ones."""
    found: dict[Expr, Quant | None] = {}
    for one in merged:
        if one.read is not None:
            other = found.setdefault(one.data, one.read)
            found[one.data] = None if _differ(other, one.read) else other
    return found


def _differ(one: Quant | None, other: Quant | None) -> bool:
    """True of two known scales that are not the same."""
    return one is not None and other is not None and not np.array_equal(one.scales, other.scales)


def _worth(node: Expr, quant: Quant | None, new: Mapping[Expr, Expr]) -> Expr | None:
    """A value that says its scale; None where it is unknown, or said already."""
    if quant is None or _carried(node) is not None or not isinstance(node, (Call, TupleGetItem)):
        return None
    made = with_operands(node, [new.get(each, each) for each in node.operands()])
    return typed_alike(made, made.with_fields(quant=quant))


def _carried(node: Expr) -> Quant | None:
    """The scale of a value, or of the one that it is in another dtype."""
    while node.quant is None and is_op_call(node, "cast", _STOP):
        node = node.args[0]
    return node.quant


class _Merged:
    """A requantization with all that it takes in.

    Args:
        taken: nodes that others take in.
    Attributes:
        last: the nodes that it stands for, all of one value.
        data: what it reads.
        read: the scale of the integers that it multiplies.
    """

    def __init__(self, call: Call, users: Users, taken: set[Expr]) -> None:
        self._call = call
        self._users = users
        self._taken = taken
        self._attrs = RequantizeAttrs.of(call)
        self._vectors = call.args[1:]
        self._spans = [call.span]
        self._quant = call.quant
        self.data = call.args[0]
        self.read: Quant | None = None
        biased = self._attrs.bias or len(self._vectors) % 2
        if biased:
            self._sum_dtype = bias_dtype(_dtype(self.data))
        else:
            self._sum_dtype = ""
        self.last: tuple[Expr, ...] = (call,)
        while self._takes_behind():
            pass
        while self._takes_front():
            pass
        taken.update(self.last)

    @property
    def changed(self) -> bool:
        """True if it takes in anything."""
        return self.data is not self._call.args[0] or self.last != (self._call,)

    def call(self, new: Mapping[Expr, Expr]) -> Call:
        """The call over new operands."""
        data = new[self.data]
        if _differ(_carried(data), self.read):
            self._attrs = replace(self._attrs, own_factor=True)
        vectors = tuple(new.get(each, each) for each in self._vectors)
        span = join_spans(self._spans)
        return self._call.fresh_copy(
            args=(data, *vectors),
            attrs=self._attrs,
            span=span,
            quant=self._quant,
        )

    def _takes_front(self) -> bool:
        """Take in what computes the data, if a field can say it."""
        node = self.data
        if not isinstance(node, Call) or node in self._taken:
            return False
        alone = len(self._users[node]) == 1
        taken = False
        if is_op_call(node, "cast"):
            taken = self._widens(node)
        elif alone and not self._sum_dtype and is_op_call(node, "nn.relu"):
            self._attrs = replace(self._attrs, relu=True)
            taken = True
        elif (
            alone and is_op_call(node, _STOP) and bits(_dtype(node)) >= bits(self._attrs.out_dtype)
        ):
            self._attrs = replace(self._attrs, stored=True)
            taken = True
        elif alone and is_op_call(node, *_LIMITS):
            taken = self._takes_limits(node)
        elif alone and not self._sum_dtype and is_op_call(node, *_SUMS):
            place = 1 - int(isinstance(node.args[0], Constant))
            taken = self._takes_bias(node, place)
            if taken:
                self.data = node.args[1 - place]
        if taken:
            self.read = self.read or node.quant
            self._spans.insert(0, node.span)
            if self.data is node:
                self.data = node.args[0]
        return taken

    def _widens(self, cast: Call) -> bool:
        """True if a cast changes no integer, and a bias behind it may be added without it."""
        source = _dtype(cast.args[0])
        dtype = _dtype(cast)
        if not is_integer(source) or not is_integer(dtype):
            return False
        (low, high), (least, most) = integer_range(source), integer_range(dtype)
        return least <= low and high <= most and self._sum_dtype in ("", bias_dtype(source))

    def _takes_limits(self, node: Call) -> bool:
        """Take in limits of the data that are one pair of limits of the result."""
        attrs = self._attrs
        dtype = _dtype(node)
        known = _limits(node)
        vectors = [held.data for held in self._vectors if isinstance(held, Constant)]
        low, high = attrs.low, attrs.high
        if known is None or low is None or high is None or high - low >= _LEVELS:
            return False
        # 32 bits times 31, half of at most 2^62 added, shifted down: 64 bits and then 32 hold it.
        narrow = all_hold(integer_range(dtype), "int32") and attrs.compute_dtype == "int64"
        if not narrow or self._sum_dtype or len(vectors) < len(self._vectors):
            return False
        shape = node.tensor_type.shape
        ends = list[int]()
        rank = len(shape)
        multiplier, shift, _ = factors_of(attrs, vectors, rank)
        if shift.max(initial=0) > 0 or multiplier.min(initial=0) < 0:
            return False
        if node.args[0].tensor_type.shape != shape:
            return False
        for limits in known:
            data = limits.astype(dtype).reshape((1,) * (rank - limits.ndim) + limits.shape)
            data, _ = np.broadcast_arrays(data, shift)
            (made,) = requantize_numpy(attrs, [data, *vectors], node.checked_type)
            if not made.size or made.min() < made.max():
                return False
            ends.append(int(made.flat[0]))
        self._attrs = replace(attrs, low=ends[0], high=ends[1])
        return True

    def _takes_bias(self, node: Call, place: int) -> bool:
        """Take in a constant of a sum, of one element or along the axis of the vectors."""
        held = node.args[place]
        data = node.args[1 - place]
        if not isinstance(held, Constant) or (is_op_call(node, "subtract") and place == 0):
            return False
        shape = data.tensor_type.shape
        if shape != node.tensor_type.shape or len(held.data.shape) > len(shape):
            return False
        dtype = _dtype(node)
        bias = held.data.astype(np.int64) * (-1 if is_op_call(node, "subtract") else 1)
        if dtype != bias_dtype(dtype) or not bias.size:
            return False
        if not -(1 << 31) <= bias.min() <= bias.max() < 1 << 31:
            return False
        if bias.size == 1:
            self._attrs = replace(self._attrs, bias=int(bias.reshape(())))
        elif not self._takes_vector(bias, len(shape)):
            return False
        if is_op_call(node, "subtract") and self.read is not None and bias.size == 1:
            self.read = self.read._replace(zero_point=-self._attrs.bias)
        self._sum_dtype = dtype
        return True

    def _takes_vector(self, bias: Array, rank: int) -> bool:
        long = [axis - bias.ndim + rank for axis, size in enumerate(bias.shape) if size > 1]
        axis = self._attrs.axis
        if len(long) != 1 or (self._vectors and axis % rank != long[0]):
            return False
        self._attrs = replace(self._attrs, axis=long[0])
        self._vectors = (*self._vectors, Constant(bias.reshape(-1).astype(np.int32)))
        return True

    def _takes_behind(self) -> bool:
        """Take in what reads the result, if all of that does the same and a field can say it."""
        users = [user for node in self.last for user in self._users[node]]
        if self._attrs.stored or not users:
            return False
        marks = [user for user in users if user is not None and is_op_call(user, _STOP)]
        if marks:
            self._attrs = replace(self._attrs, stored=True)
            self._quant = marks[0].quant or self._quant
            self.last = tuple(dict.fromkeys((*self.last, *marks)))
            return True
        first = users[0]
        if not isinstance(first, Call):
            return False
        number = _added(first)
        for user in users:
            if not isinstance(user, Call) or user.op is not first.op or user.attrs != first.attrs:
                return False
            if _added(user) != number:
                return False
            if is_op_call(user, "cast") and _differ(user.quant, self._quant):  # of who reads it
                return False
        changed = self._changed(first, number)
        if changed is None or not limits_fit(changed):
            return False
        self._attrs = changed
        self.last = tuple(dict.fromkeys(u for u in users if u is not None))
        if number and self._quant is not None:
            moved = self._quant.zero_point + number
            self._quant = self._quant._replace(zero_point=moved)
        if self._quant is None or not is_op_call(first, "cast"):
            self._quant = first.quant or self._quant
        if not is_op_call(first, "cast"):  # it is of who reads it
            self._spans.append(first.span)
        return True

    def _changed(self, user: Call, number: int | None) -> RequantizeAttrs | None:
        """The fields with what reads the result; None where they cannot say it."""
        attrs = self._attrs
        if attrs.low is None or attrs.high is None:
            bound = None
        else:
            bound = (attrs.low, attrs.high)
        if is_op_call(user, "cast"):
            dtype = _dtype(user)
            narrower = is_integer(dtype) and bits(dtype) <= bits(attrs.out_dtype)
            if narrower:
                return replace(attrs, out_dtype=dtype)
            return None
        whole = attrs.out_dtype == attrs.compute_dtype and not attrs.zero_point
        if is_op_call(user, "clip") and (bound is not None or whole):
            clip: Any = user.attrs
            low, high = (integer_bound(b, attrs.out_dtype) for b in (clip.a_min, clip.a_max))
            if bound is not None:
                low, high = (max(min(end, high), low) for end in bound)
            return replace(attrs, low=low, high=high)
        if number is not None and bound is not None:
            low, high = (end + number for end in bound)
            return replace(attrs, low=low, high=high, zero_point=attrs.zero_point + number)
        return None


def _limits(node: Call) -> list[Array] | None:
    """The ends of a clip, or of an extremum with constants; None where they are computed."""
    attrs: Any = node.attrs
    dtype = _dtype(node)
    if is_op_call(node, "clip"):
        return [np.asarray(integer_bound(end, dtype)) for end in (attrs.a_min, attrs.a_max)]
    if not isinstance(node.args[1], Constant):
        return None
    ends = [np.asarray(end) for end in integer_range(dtype)]
    ends[is_op_call(node, "minimum")] = node.args[1].data.astype(np.int64)
    return ends


def _added(node: Call) -> int | None:
    """The number that is added to a value; None for others."""
    if not is_op_call(node, *_SUMS):
        return None
    is_sum = is_op_call(node, "add")
    place = int(not isinstance(node.args[0], Constant))
    held = node.args[place]
    if not isinstance(held, Constant) or held.data.shape != () or not (is_sum or place):
        return None
    return int(held.data) * (1 if is_sum else -1)
