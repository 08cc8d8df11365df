"""partition_suffix: cut the conversions of integers to outputs off the end of a function.

    before                                          quantized_main        dequantize_outputs
    %9 = annotation.stop_fusion(…) /* int8 */;      annotation            fn (%input: int8) {
    multiply(cast(%9, "float32"), 0.0625f)          .stop_fusion(…)         multiply(cast(…), …) }

From the result downward, the first integer tensors met are the borders.
Source: partition_suffix in Relay v0.10 quantize/_partition_conversions.py.
"""

from __future__ import annotations

from collections.abc import Set

from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, Var
from compiler.ir.rebuild import substitute
from compiler.ir.ty import TensorType, Type, holds_float, tensor_fields
from compiler.ir.walk import nodes_of


def split_suffix(main: Function, quantized_dtypes: Set[str]) -> tuple[Function, Function]:
    """(the core, dequantize_outputs as a function of what the core returns).

    The core returns its one border as a tensor, several as a tuple in visiting order, followed by
    the parameters that dequantize_outputs reads besides. Without any border the core is all of
    ``main`` and dequantize_outputs the identity.
    """
    integral = _integral_nodes(main)
    borders: list[Expr] = []
    threaded: list[Expr] = []
    seen: set[Expr] = set()
    stack: list[Expr] = [main.body]
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, (Constant, Op)):
            continue
        seen.add(node)
        if _is_border(node, quantized_dtypes) or node in integral:
            borders.append(node)
        elif isinstance(node, Var):
            threaded.append(node)
        else:
            stack.extend(reversed(node.operands()))
    if not borders:
        whole = Var("input", main.body.checked_type)
        return main, Function((whole,), whole, main.ret_type)
    outputs = borders + threaded
    if len(outputs) == 1:
        inputs = [Var("input", outputs[0].checked_type)]
        core_body = outputs[0]
    else:
        inputs = [Var(f"input{i}", out.checked_type) for i, out in enumerate(outputs)]
        core_body = Tuple(tuple(outputs))
    core = Function(main.params, core_body)
    body = substitute(main.body, dict(zip(outputs, inputs)))
    return core, Function(tuple(inputs), body, main.ret_type)


def _is_border(node: Expr, quantized_dtypes: Set[str]) -> bool:
    """True for a tensor of these dtypes, and for a call that returns a tuple of such."""
    ty: Type = node.checked_type
    if isinstance(ty, TensorType):
        return ty.dtype in quantized_dtypes
    tensors = tensor_fields(ty)
    return (
        isinstance(node, Call)
        and bool(tensors)
        and all(tensor.dtype in quantized_dtypes for tensor in tensors)
    )


def _integral_nodes(main: Function) -> set[Expr]:
    """Tensors that only integer operators compute from integers of any width, as an argmax does."""
    found: set[Expr] = set()
    for node in nodes_of(main):
        if isinstance(node, Op) or holds_float(node.checked_type):
            continue
        if all(child in found or isinstance(child, Op) for child in node.operands()):
            found.add(node)
    return {node for node in found if isinstance(node.checked_type, TensorType)}
