"""EtaExpand: a kernel that is passed around as a value becomes a closure that calls it.

    before                                          after
    %0 = if (%c) { fn (%p, Primitive=1) {…} }       %0 = if (%c) { fn (%p) { fn (%p, …) {…}(%p) } }
         else { fn (%p, Primitive=1) {…} };              else { fn (%p) { fn (%p, …) {…}(%p) } };
    %0(%x)                                          %0(%x)

LowerTE replaces *calls* of primitive functions; one that is the branch of an If, a field, an
argument or a result has no call. Where a kernel, its global name or the Let variable that stands
for it is the callee of a call or the value of a Let, nothing changes.
Not handled: constructors, which Relay's pass of this name expands as well.
Source: Relay v0.10 transforms/eta_expand.cc.
"""

from __future__ import annotations

from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Let, Var
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import FunctionPass, PassContext, register_pass
from compiler.ir.rebuild import with_operands
from compiler.ir.ty import FuncType
from compiler.ops.lowered.call_lowered import get_call_lowered_props
from compiler.passes.opaque_primitives import is_kernel, outside_kernels


@register_pass("EtaExpand", opt_level=0, required=("InferType",))
class EtaExpand(FunctionPass):
    """Give every kernel that is used as a value a function that calls it."""

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The function with closures around such kernels, itself where there are none."""
        if _is_kernel(fn):
            return fn
        kernels = _kernels(fn, mod)
        if not kernels:
            return fn
        return _expanded(fn, kernels)


def _is_kernel(expr: object) -> bool:
    return isinstance(expr, LoweredFunction) or is_kernel(expr)


def _kernels(fn: Function, mod: IRModule) -> set[Expr]:
    """Literals, global names and Let variables of ``fn`` that mean a kernel."""
    found: set[Expr] = set()
    nodes = outside_kernels(list(post_order(fn)), _is_kernel)
    for node in nodes:
        if _is_kernel(node) or (
            isinstance(node, GlobalVar) and node.name_hint in mod and _is_kernel(mod[node])
        ):
            found.add(node)
    # A variable may be bound to another one: outer bindings come first.
    lets = [node for node in nodes if isinstance(node, Let)]
    for let in reversed(lets):
        if let.value in found:
            found.add(let.var)
    return found


def _expanded(fn: Function, kernels: set[Expr]) -> Function:
    new: dict[Expr, Expr] = {}
    closures: dict[Expr, Function] = {}
    for node in outside_kernels(list(post_order(fn)), _is_kernel):
        if node in kernels:
            new[node] = node
            continue
        operands: list[Expr] = []
        for place, operand in enumerate(node.operands()):
            if operand in kernels and not _stands_for_a_call(node, place):
                if operand not in closures:
                    closures[operand] = _closure(operand)
                operands.append(closures[operand])
            else:
                operands.append(new.get(operand, operand))
        new[node] = with_operands(node, operands)
    result = new[fn]
    assert isinstance(result, Function)
    return result


def _stands_for_a_call(node: Expr, place: int) -> bool:
    """True for a callee, and for the two parts of a Let that bind."""
    if isinstance(node, Call):
        # Operands of a call of an operator: the operator, then its arguments.
        return place == (1 if get_call_lowered_props(node) is not None else 0)
    return isinstance(node, Let) and place < 2


def _closure(kernel: Expr) -> Function:
    ty = kernel.checked_type
    assert isinstance(ty, FuncType)
    params = tuple(Var(f"p{i}", arg) for i, arg in enumerate(ty.arg_types))
    return Function(params, Call(kernel, params, span=kernel.span), ty.ret_type, span=kernel.span)
