"""One call in place of the arithmetic that exporters and SimplifyInference make of it."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TypeVar

from compiler.ir.expr import Call, Constant, Expr, Function, is_op_call
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt_function
from compiler.ir.walk import mentions, nodes_of

Found = TypeVar("Found")


def with_recovered_calls(
    fn: Function,
    mod: IRModule,
    recognise: Callable[[Expr], Found | None],
    make: Callable[[Found, Mapping[Expr, Expr], Expr], Expr],
    needed: Container[str],
) -> Function:
    """The function with a call wherever a node is recognised, typed; itself when none is.

    Args:
        recognise: what a node is the last step of, or None.
        make: the call, from what was recognised, the new forms of earlier nodes, and the node.
        needed: operators; a function without any of them holds nothing to recognise.
    """
    if not mentions(fn, needed):
        return fn
    found = {node: what for node in nodes_of(fn) if (what := recognise(node)) is not None}
    if not found:
        return fn

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if node in found:
            return make(found[node], new, node)
        return None

    return retyped(fn, mod, made)


def retyped(
    fn: Function, mod: IRModule, made: Callable[[Expr, Mapping[Expr, Expr]], Expr | None]
) -> Function:
    """The function with what ``made``, as of ``rebuilt``, makes of its nodes, typed."""
    result = infer_expr(rebuilt_function(fn, made), mod)
    assert isinstance(result, Function)
    return result


def args_of(node: Expr) -> tuple[Expr, ...]:
    """The arguments of what is known to be a call."""
    assert isinstance(node, Call)
    return node.args


def factors_of(node: Expr) -> tuple[Expr, ...]:
    """The two factors of a multiply; the base, twice, of a power of 2; () of anything else."""
    if is_op_call(node, "multiply"):
        return args_of(node)
    if not is_op_call(node, "power"):
        return ()
    base, exponent = args_of(node)
    if not isinstance(exponent, Constant) or exponent.data.size != 1:
        return ()
    if float(exponent.data.reshape(())) == 2.0:
        return (base, base)
    return ()


def quotient_of(node: Expr) -> tuple[Expr, Expr] | None:
    """(x, y) of x / y, also where it is written as x * (1 / y)."""
    if is_op_call(node, "divide"):
        numerator, denominator = args_of(node)
        return numerator, denominator
    if is_op_call(node, "multiply"):
        for data, factor in (args_of(node), args_of(node)[::-1]):
            if is_op_call(factor, "divide"):
                one, denominator = args_of(factor)
                if isinstance(one, Constant) and one.data.size == 1 and one.data.item() == 1:
                    return data, denominator
    return None
