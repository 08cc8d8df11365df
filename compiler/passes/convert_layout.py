"""ConvertLayout: integer convolutions and pools work on NHWC, and what lies between them as well.

    before                                          after
    %0 = nn.conv2d(%x, w[16, 3, 3, 3]);             %0 = layout_transform(%x, "NCHW", "NHWC");
    %1 = add(%0, b[16, 1, 1]);                      %1 = nn.conv2d(%0, w[16, 3, 3, 3], NHWC, OHWI);
    %2 = clip(%1);                                  %2 = add(%1, b[16]);
    %3 = nn.global_avg_pool2d(%2);                  %3 = clip(%2);
    nn.batch_flatten(%3)                            %4 = nn.global_avg_pool2d(%3, layout="NHWC");
                                                    reshape(%4, newshape=[1, 16])

The channels of a pixel lie side by side, so a sum over channels reads memory in order. The rule of
an operator (ops/rules/layout.py) says what becomes of it. An operator without a rule gets its
operands in the order of the graph. Constants are transposed at once. A transposition that moves no
element (of axes of size 1) is a reshape; a transpose that undoes the order of its operand vanishes.
Convolutions of floats and operators with dynamic shapes stay as they are.
Not handled: a flattened image is transposed back; the weight of the dense behind it stays.
Source: Relay v0.10 ConvertLayout, AlterOpLayout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any

import numpy as np

from compiler.ir.expr import Call, Constant, Expr, Function, TempExpr, Tuple, TupleGetItem
from compiler.ir.functor import ForwardRewriter
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import TupleType, Type, is_dynamic, tensor_fields
from compiler.ops.op_call import op_call
from compiler.ops.rules.layout import Order, is_natural, layout_rule, natural
from compiler.span import AnySpan

_LETTERS: dict[Order, str] = {(0, 3, 1, 2): "NHWC"}
"""Names of the axes where the way back from IMAGE_LAYOUT is meant."""


@register_pass("ConvertLayout", opt_level=3, required=("InferType",))
@dataclass(frozen=True, slots=True)
class ConvertLayout(FunctionPass):
    """Give integer image operators the layout NHWC.

    Attributes:
        orders: takes the order of the axes of each new result, by the span of its call.
    """

    orders: dict[AnySpan | None, Order] | None = None

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function in the new layout, or itself."""
        if fn.has_nonzero_attr("Primitive"):
            return fn
        return fn.with_fields(body=ForwardRewriter(_Relayout(self.orders).rewrite).rewrite_body(fn))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Laid(TempExpr):
    """A tensor of the graph that lies in another order: its memory has the shape ``lying``."""

    value: Expr
    order: Order
    lying: tuple[int, ...]
    run: _Relayout

    @property
    def has_natural_memory(self) -> bool:
        """Return whether only axes of size 1 are out of order."""
        kept = [axis for axis, size in zip(self.order, self.lying) if size != 1]
        return kept == sorted(kept)

    def realize(self) -> Expr:
        """The tensor as the graph has it."""
        back = tuple(map(self.order.index, range(len(self.order))))
        return self.run.moving(self.value, self.lying, back, self.span)


class _Relayout:
    """One run: every tensor is moved to an order at most once."""

    def __init__(self, orders: dict[AnySpan | None, Order] | None) -> None:
        self._orders = orders
        self._moved: dict[tuple[Expr, Order], Expr] = {}

    def rewrite(self, ref_call: Call, new_args: tuple[Expr, ...], ctx: Any) -> Expr | None:
        """The call on operands in other orders; None leaves it as it is."""
        rule = layout_rule(ref_call.op)
        types = [arg.checked_type_or_none for arg in ref_call.args]
        if rule is None or any(ty is None or is_dynamic(ty) for ty in types):
            return None
        if is_dynamic(ref_call.checked_type):
            return None
        known = [ty for ty in types if ty is not None]
        found = rule(ref_call, [_order_of(arg, ty) for arg, ty in zip(new_args, known)])
        if found is None:
            return None
        args = [
            self._argument(arg, ty, order, ref_call)
            for arg, ty, order in zip(new_args, known, found.args)
        ]
        if found.vanishes:
            laid = self._laid(args[0], ref_call.checked_type, found.out, ref_call.span)
            # Where only axes of size 1 are out of order, what follows need not know of them.
            if isinstance(laid, _Laid) and laid.has_natural_memory:
                return laid.realize()
            return laid
        if self._orders is not None:
            self._orders[ref_call.span] = found.out
        new = ref_call.fresh_copy(op=found.op or ref_call.op, args=tuple(args), attrs=found.attrs)
        made = ref_call.checked_type
        if not isinstance(made, TupleType):
            return self._laid(new, made, found.out, ref_call.span)
        return Tuple(
            tuple(
                self._laid(TupleGetItem(new, k), field, found.out, ref_call.span)
                for k, field in enumerate(made.fields)
            )
        )

    def _laid(self, value: Expr, ty: Type, order: Order, span: AnySpan | None) -> Expr:
        if is_natural(order):
            return value
        (tensor,) = tensor_fields(ty)
        lying = tuple(tensor.concrete_shape[axis] for axis in order)
        return _Laid(value, order, lying, self, span=span)

    def _argument(self, arg: Expr, ty: Type, order: Order | None, call: Call) -> Expr:
        """An argument in the order that is wanted; None: as the graph has it."""
        if isinstance(arg, Tuple):
            assert isinstance(ty, TupleType)
            fields = zip(arg.fields, ty.fields)
            return replace(arg, fields=tuple(self._argument(f, t, order, call) for f, t in fields))
        if order is None:
            if isinstance(arg, TempExpr):
                return arg.realize()
            return arg
        (tensor,) = tensor_fields(ty)
        shape = tensor.concrete_shape
        if isinstance(arg, _Laid):
            if len(arg.order) != len(order):
                return self._argument(arg.realize(), ty, order, call)
            steps = tuple(arg.order.index(axis) for axis in order)
            return self.moving(arg.value, tuple(shape[a] for a in arg.order), steps, call.span)
        full = (1,) * (len(order) - len(shape)) + shape
        if isinstance(arg, Constant):
            return self._constant(arg, full, order)
        if len(shape) < len(order) and shape:
            arg = op_call("reshape", arg, newshape=full, span=call.span)
        if shape:
            return self.moving(arg, full, order, call.span)
        return arg

    def _constant(self, constant: Constant, full: Sequence[int], order: Order) -> Constant:
        """Transposed, without the leading axes of size 1 that broadcasting adds again."""
        if not constant.data.shape:
            return constant
        key = (constant, order)
        if key not in self._moved:
            data = constant.data.reshape(full).transpose(order)
            while data.ndim > 1 and data.shape[0] == 1 and constant.data.ndim < len(order):
                data = data[0]
            self._moved[key] = Constant(np.ascontiguousarray(data), span=constant.span)
        made = self._moved[key]
        assert isinstance(made, Constant)
        return made

    def moving(self, value: Expr, lying: Sequence[int], order: Order, span: AnySpan | None) -> Expr:
        """``value``, whose memory has the shape ``lying``, with its axes in ``order``."""
        if is_natural(order):
            return value
        key = (value, order)
        if key not in self._moved:
            kept = [axis for axis in order if lying[axis] != 1]
            if kept == sorted(kept):
                shape = tuple(lying[axis] for axis in order)
                self._moved[key] = op_call("reshape", value, newshape=shape, span=span)
            else:
                self._moved[key] = _transform(value, order, span)
        return self._moved[key]


def _transform(value: Expr, order: Order, span: AnySpan | None) -> Call:
    letters = _LETTERS.get(order, "NCHW" if len(order) == 4 else ascii_uppercase)[: len(order)]
    target = "".join(letters[axis] for axis in order)
    return op_call("layout_transform", value, src_layout=letters, dst_layout=target, span=span)


def _order_of(arg: Expr, ty: Type) -> Order:
    """The order of a tensor; of a tuple, the first that is not natural."""
    if isinstance(arg, _Laid):
        return arg.order
    if isinstance(arg, Tuple):
        orders = [f.order for f in arg.fields if isinstance(f, _Laid)]
        if orders:
            return orders[0]
    fields = tensor_fields(ty)
    return natural(len(fields[0].shape) if fields else 0)
