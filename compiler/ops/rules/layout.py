"""The question of ConvertLayout: what becomes of an operator on operands in another order.

An *order* names, for each axis of a tensor as it lies in memory, the axis of the tensor in the
graph: (0, 2, 3, 1) is an NCHW tensor that lies as NHWC. A rule answers with the orders in which the
operator wants its operands, the order of its result and its new attributes.
Source: Relay v0.10 FInferCorrectLayout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any, cast

from compiler.ir.attrs import Attrs
from compiler.ir.expr import Call, Constant, Expr, Op
from compiler.ir.op import OpPattern, OpRule
from compiler.ir.ty import holds_float

Order = tuple[int, ...]

IMAGE_LAYOUT = "NHWC"
"""The layout that convolutions and pools want: the channels of a pixel lie side by side."""
_SIDE_BY_SIDE: Order = tuple("NCHW".index(letter) for letter in IMAGE_LAYOUT)


@dataclass(frozen=True, slots=True)
class Relaid:
    """A call on operands in other orders.

    Attributes:
        args: the order that each argument is wanted in, of each field where it is a tuple; None
            takes the argument as the graph has it.
        out: the order of the result, of each field where it is a tuple.
        attrs: of the new call.
        op: of the new call; None keeps the operator.
        vanishes: the call only permutes axes: its first argument stands for it.
    """

    args: tuple[Order | None, ...]
    out: Order
    attrs: Attrs | None = None
    op: Op | None = None
    vanishes: bool = False


LayoutRule = Callable[[Call, Sequence[Order]], Relaid | None]
"""``rule(call, orders)``: ``call`` is typed and has static shapes, ``orders`` are the orders of
its arguments; of a tuple, the first order that is not natural. None: the operator takes its
operands as the graph has them."""

FConvertLayout: OpRule[LayoutRule] = OpRule("FConvertLayout", asked_by="ConvertLayout")


def natural(rank: int) -> Order:
    """The order of the graph itself."""
    return tuple(range(rank))


def is_natural(order: Order) -> bool:
    """True for the order of the graph itself."""
    return order == natural(len(order))


def layout_rule(op: Expr) -> LayoutRule | None:
    """The rule of an operator; operators that treat all axes alike need none of their own."""
    rule = FConvertLayout.get(op)
    if rule is None and treats_axes_alike(op):
        return elementwise_layout
    return rule


def treats_axes_alike(op: Expr) -> bool:
    """True for elementwise and broadcast operators with no attribute that names an axis."""
    return isinstance(op, Op) and _names_no_axis(op)


@cache
def _names_no_axis(op: Op) -> bool:
    # What else an elementwise operator reads (a table, a diagonal) lies along no axis of the data.
    if op.pattern != OpPattern.BROADCAST and (op.pattern, op.num_inputs) != (OpPattern.ELEMWISE, 1):
        return False
    if op.attrs_type is not None:
        names = [f.name for f in fields(op.attrs_type)]
    else:
        names = []
    return not any(word in name for name in names for word in ("axis", "axes", "shape", "reps"))


def elementwise_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """All operands in the order of the largest one that is computed; they broadcast as before."""
    shape = call.tensor_type.concrete_shape
    found: Order | None = None
    largest = -1
    for arg, order in zip(call.args, orders):
        size = arg.tensor_type.num_elements
        if isinstance(arg, Constant) or len(order) != len(shape) or size < largest:
            continue
        if size > largest or (found is not None and is_natural(found)):
            found = order
            largest = size
    if found is None or is_natural(found):
        return None
    return Relaid((found,) * len(call.args), found, call.attrs)


def data_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """The first operand moves; what else the operator reads (a table) does not depend on axes."""
    if is_natural(orders[0]):
        return None
    return Relaid((orders[0], *(None,) * (len(call.args) - 1)), orders[0], call.attrs)


def following(change: Callable[[Any, Order], dict[str, Any] | None]) -> LayoutRule:
    """The rule of an operator whose attributes name axes of its data, which they follow.

    Args:
        change: of the attributes and the order of the data; None: it takes them as the graph does.
    """

    def rule(call: Call, orders: Sequence[Order]) -> Relaid | None:
        order = orders[0]
        attrs = cast(Any, call.attrs)
        changed = None if is_natural(order) else change(attrs, order)
        if changed is None:
            return None
        return Relaid((order, *(None,) * (len(call.args) - 1)), order, replace(attrs, **changed))

    return rule


@following
def axis_layout(attrs: Any, order: Order) -> dict[str, Any] | None:
    """Follow with the one ``axis`` of an operator."""
    if attrs.axis is None:
        return None
    return {"axis": order.index(attrs.axis % len(order))}


def image_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """For image operators with ``layout`` and perhaps ``out_layout``: integers go to IMAGE_LAYOUT.

    Floats stay: the order of their sums could change.
    """
    if holds_float(call.checked_type) or holds_float(call.args[0].checked_type):
        return None
    attrs: Any = call.attrs
    order, out, changed = image_fields(attrs, "layout", orders[0])
    if is_natural(orders[0]) and not changed:
        return None
    return Relaid((order, *(None,) * (len(call.args) - 1)), out, replace(attrs, **changed))


_ALONG_AN_AXIS = (
    "concatenate",
    "fixed_point_multiply_per_axis",
    "nn.bias_add",
    "nn.fixed_point_softmax",
    "nn.integer_softmax",
    "nn.integer_standardize",
    "nn.prelu",
    "split",
)
_OF_IMAGES = (
    "image.resize2d",
    "nn.adaptive_avg_pool2d",
    "nn.avg_pool2d",
    "nn.global_avg_pool2d",
    "nn.global_max_pool2d",
    "nn.max_pool2d",
    "nn.upsampling",
)
FConvertLayout.register("annotation.stop_fusion", "lookup")(data_layout)
FConvertLayout.register(*_ALONG_AN_AXIS)(axis_layout)
FConvertLayout.register(*_OF_IMAGES)(image_layout)


def image_fields(attrs: Any, name: str, order: Order) -> tuple[Order, Order, dict[str, str]]:
    """Orders of data and result in IMAGE_LAYOUT, and the attributes that change.

    Args:
        attrs: of the operator.
        name: of the attribute with the layout of the data.
        order: in which the data lie.
    """
    layout: str = getattr(attrs, name)
    out_layout: str = getattr(attrs, "out_layout", "") or layout
    wanted = tuple(layout.index(letter) for letter in IMAGE_LAYOUT)
    out = tuple(out_layout.index(letter) for letter in IMAGE_LAYOUT)
    changed = {name: IMAGE_LAYOUT} if layout != IMAGE_LAYOUT else {}
    if out_layout != layout:
        changed["out_layout"] = ""
    return wanted, out, changed


def permutation_layout(order: Order, axes: Order, images: bool = False) -> Relaid | None:
    """For an operator whose axis k is axis ``axes[k]`` of data in an order of their own.

    Args:
        images: also of images whose channels lie side by side.
    """
    out = tuple(axes.index(axis) for axis in order)
    if is_natural(order) and not (images and out == _SIDE_BY_SIDE):
        return None
    return Relaid((order,), out, vanishes=True)


def reshape_layout(call: Call, orders: Sequence[Order]) -> Relaid | None:
    """For operators that only reshape: axes that are split or joined must lie side by side."""
    order = orders[0]
    old = call.args[0].tensor_type.concrete_shape
    new = call.tensor_type.concrete_shape
    if is_natural(order):
        return None
    out = _reshaped_order(old, order, new)
    if out is None:
        return None
    reshape = Op.get("reshape")
    assert reshape.attrs_type is not None
    attrs = reshape.attrs_type.make(newshape=tuple(new[axis] for axis in out))
    return Relaid((order,), out, attrs, reshape)


def _reshaped_order(old: Sequence[int], order: Order, new: Sequence[int]) -> Order | None:
    """The order of the result when memory in ``order`` is left as it is; None where there is none.

    Axes of size 1 count for nothing.
    """
    if 0 in old:
        return None
    left, right = ([axis for axis, size in enumerate(s) if size != 1] for s in (old, new))
    runs = reshape_runs([old[axis] for axis in left], [new[axis] for axis in right])
    group_of = {left[a.start]: (tuple(left[a]), right[b]) for a, b in runs}
    lying = [axis for axis in order if old[axis] != 1]
    found: list[int] = []
    at = 0
    while at < len(lying):
        axes, made = group_of.get(lying[at], ((), []))
        if not axes or tuple(lying[at : at + len(axes)]) != axes:
            return None
        found += made
        at += len(axes)
    if found == sorted(found):
        return natural(len(new))
    for axis in range(len(new) - 1, -1, -1):
        if new[axis] == 1:
            behind = [found.index(k) for k in range(axis + 1, len(new)) if k in found][:1]
            found.insert(behind[0] if behind else len(found), axis)
    return tuple(found)


def reshape_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[slice, slice]]:
    """The shortest runs of axes that hold equally many elements before and after a reshape."""
    runs = []
    i = j = 0
    while i < len(old):
        first = i, j
        before = old[i]
        i = i + 1
        after = 1
        while before != after:
            if before < after:
                before *= old[i]
                i += 1
            else:
                after *= new[j]
                j += 1
        runs.append((slice(first[0], i), slice(first[1], j)))
    return runs
