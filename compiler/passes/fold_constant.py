"""FoldConstant: calls whose every argument is a constant become constants.

    before                                after
    %0 = multiply(w, s);                  nn.conv2d(%x, w')
    nn.conv2d(%x, %0)

    (a, b).0                              a
    let %v = c; body                      body with c for %v
    if (True) {a} else {b}                a
    shape_of(%x: Tensor[(3, 4), …])       [3, 4]

Equal calls on the very same constants become one constant, so a weight that many operators read
stays one.

Left alone: calls without arguments, stateful and non-computational operators, callees that are not
operators, the body of a Primitive function, results larger than 512 MiB and than all constants of
the function together, and all others once the results take 1 GiB and 8 times these constants.
The reference evaluator computes the values. Source: Relay v0.10 transforms/fold_constant.cc.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compiler.ir.analysis import count_uses, post_order
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    is_op_call,
)
from compiler.ir.functor import expand_anf
from compiler.ir.module import IRModule
from compiler.ir.op import NON_COMPUTATIONAL, STATEFUL
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.ty import NARROW_DTYPES, TensorType, Type, bits, is_dynamic, tensor_fields
from compiler.ir.walk import nodes_of
from compiler.ops.evaluate import Value, apply_rule
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.ops.rules.simplify import FFoldFromType
from compiler.passes.opaque_primitives import OpaquePrimitives
from compiler.span import AnySpan

MAX_RESULT_BYTES = 512 * 2**20
"""Upper limit of the bytes of a result; more where the constants of the function hold more
already."""
_MAX_TOTAL_BYTES = 2**30
_MAX_TIMES_HELD = 8
_DEVICE_MARK = "on_device"


@register_pass("FoldConstant", opt_level=2, required=("InferType",))
@dataclass(frozen=True, slots=True)
class FoldConstant(FunctionPass):
    """Evaluate what does not depend on any input.

    Args:
        fold_qnn: also evaluate the qnn.* operators, which are left to the backend by default.
    """

    fold_qnn: bool = False

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The folded function, itself when there is nothing to fold."""
        if not any(map(_may_change, nodes_of(fn))):
            return fn
        with np.errstate(all="ignore"):
            return _ConstantFolder(self.fold_qnn, fn).mutate(fn)


def _may_change(node: Expr) -> bool:
    """True where folding can begin: it goes on from constants that it makes."""
    if type(node) is Call:
        known = all(type(arg) is Constant or type(arg) is Tuple for arg in node.args)
        return known or FFoldFromType.get(node.op) is not None
    return type(node) in _FOLDED_FORMS


_FOLDED_FORMS = frozenset((If, Let, TupleGetItem))


class _ConstantFolder(OpaquePrimitives):
    """Drops a result when all its readers are folded, so a chain holds no more than two values.

    Results have numbers, which stay when they are dropped: so equal calls are known as equal.
    """

    def __init__(self, fold_qnn: bool, fn: Function) -> None:
        super().__init__()
        held = _bytes_held(fn)
        self.fold_qnn = fold_qnn
        self._most = max(MAX_RESULT_BYTES, held)
        self._left = _MAX_TOTAL_BYTES + _MAX_TIMES_HELD * held
        self._foldable_ops: dict[Expr, bool] = {}
        self._sizes: dict[Type, int | None] = {}
        self._numbers: dict[Any, int] = {}
        self._folded: dict[int, Expr] = {}
        self._number_of: dict[Expr, int] = {}
        self._holders: Counter[int] = Counter()
        self._unread = count_uses(fn)

    def visit_if(self, branch: If, *args: Any) -> Expr:
        cond = self.visit(branch.cond)
        if isinstance(cond, Constant):
            return self.visit(branch.true_branch if cond.data else branch.false_branch)
        return super().visit_if(branch)

    def visit_let(self, let: Let, *args: Any) -> Expr:
        def bind(inner: Let) -> None:
            value = self.visit(inner.value)
            if isinstance(value, Constant):
                self.memo[inner.var] = value
            else:
                self.visit_binder(inner.var)

        def rebuild(inner: Let) -> None:
            value = self.memo[inner.value]
            body = self.visit(inner.body)
            if not isinstance(value, Constant):
                var = self.visit_binder(inner.var)
                body = inner.with_fields(var=var, value=value, body=body)
            self.memo[inner] = body

        expand_anf(let, bind, rebuild, self.memo.__contains__)
        return self.memo[let]

    def rewrite_tuple_getitem(self, pre: TupleGetItem, post: TupleGetItem) -> Expr:
        if isinstance(post.tuple, Tuple):
            return post.tuple.fields[pre.index]
        return post

    def rewrite_call(self, pre: Call, post: Call) -> Expr:
        folded = self._fold(pre, post)
        if folded in self._number_of:
            for arg in pre.args:
                self._unread[arg] -= 1
                if not self._unread[arg] and self.memo.get(arg) in self._number_of:
                    self._drop(arg)
        return folded

    def _drop(self, node: Expr) -> None:
        result = self.memo.pop(node)
        number = self._number_of[result]
        self._holders[number] -= 1
        if not self._holders[number]:
            del self._folded[number], self._number_of[result]

    def _fold(self, pre: Call, post: Call) -> Expr:
        op = pre.op
        if not isinstance(op, Op) or not post.args:
            return post
        from_type = FFoldFromType.get(op)
        if from_type is not None:
            ty = pre.args[0].checked_type
            if not isinstance(ty, TensorType) or is_dynamic(ty):
                return post
            return Constant(from_type(pre.attrs, ty), span=pre.span)
        if not self._may_fold(op):
            return post
        values = []
        for arg in post.args:
            value = _value_of(arg)
            if value is None:
                return post
            values.append(value)
        ty = pre.checked_type
        if ty not in self._sizes:
            self._sizes[ty] = _bytes_of(ty)
        size = self._sizes[ty]
        if size is None or size > self._most:
            return post
        key = (op, pre.attrs, *(self._number_of.get(arg, arg) for arg in post.args))
        number = self._numbers.setdefault(key, len(self._numbers))
        if number not in self._folded:
            if size > self._left:
                return post
            self._left -= size
            value = apply_rule(FNumpyCompute.require(op), op, pre.attrs, values, ty)
            folded = self._folded[number] = _constant(value, pre.span)
            if type(folded) is Constant:
                self._number_of[folded] = number
        self._holders[number] += 1
        return self._folded[number]

    def _may_fold(self, op: Op) -> bool:
        answer = self._foldable_ops.get(op)
        if answer is None:
            computed = NON_COMPUTATIONAL not in op.flags or (
                self.fold_qnn and op.name.startswith("qnn.")
            )
            answer = computed and STATEFUL not in op.flags and op in FNumpyCompute
            self._foldable_ops[op] = answer
        return answer


def _value_of(expr: Expr) -> Value | None:
    """The value of a Constant or of a Tuple of them (nested, device marks ignored); else None."""
    if isinstance(expr, Constant):
        return expr.data
    if not isinstance(expr, Tuple) and not is_op_call(expr, _DEVICE_MARK):
        return None
    values: dict[Expr, Value] = {}
    for node in post_order(expr, _looked_into):
        if isinstance(node, Constant):
            values[node] = node.data
        elif isinstance(node, Tuple):
            values[node] = tuple(values[field] for field in node.fields)
        elif is_op_call(node, _DEVICE_MARK):
            values[node] = values[node.args[0]]
        else:
            return None
    return values[expr]


def _looked_into(node: Expr) -> Sequence[Expr]:
    if isinstance(node, Tuple):
        return node.fields
    if is_op_call(node, _DEVICE_MARK):
        return node.args
    return ()


def _bytes_held(fn: Function) -> int:
    """Bytes of the constants of a function, each array once."""
    arrays = {id(node.data): node.data for node in nodes_of(fn) if type(node) is Constant}
    return sum(array.nbytes for array in arrays.values())


def _bytes_of(ty: Type) -> int | None:
    """Bytes of a value; None for what no Constant holds."""
    if is_dynamic(ty):
        return None
    tensors = tensor_fields(ty)
    # int4 lives in int8 arrays: a Constant of it would come back as int8.
    if any(t.dtype in NARROW_DTYPES for t in tensors):
        return None
    return sum(t.num_elements * max(bits(t.dtype), 8) // 8 for t in tensors)


def _constant(value: Value, span: AnySpan | None) -> Expr:
    if isinstance(value, tuple):
        return Tuple(tuple(_constant(v, span) for v in value), span=span)
    array = np.asarray(value)
    if array.flags.owndata:
        array.flags.writeable = False  # a new array: Constant need not copy it
    return Constant(array, span=span)
