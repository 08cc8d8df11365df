"""Relay's spelling of giving an operator its quantization rules, for operators of one's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from compiler.ir.op import DEFAULT_LEVEL, OpRule, get_op
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.realize import FQRealizeRewrite

R = TypeVar("R", bound=Callable[..., Any])


def _register(
    table: OpRule[Any], op_name: str, rule: Callable[..., Any] | None, level: int
) -> Callable[[R], R]:
    add = table.register(get_op(op_name), level=level)
    if rule is not None:
        add(rule)
    return add


def register_partition_function(
    op_name: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
) -> Callable[[R], R]:
    """Say how an operator takes part in QuantizePartition; also a decorator.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: it has a rule of this level already.
    """
    return _register(FQPartitionRewrite, op_name, rule, level)


def register_annotate_function(
    op_name: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
) -> Callable[[R], R]:
    """Say how an operator takes part in QuantizeAnnotate; also a decorator.

    The rule runs behind the guard of ``debug_enabled_ops``.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: it has a rule of this level already.
    """
    return _register(FQAnnotateRewrite, op_name, rule, level)


def register_realize_function(
    op_name: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
) -> Callable[[R], R]:
    """Say what an operator computes on integers; also a decorator.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: it has a rule of this level already.
    """
    return _register(FQRealizeRewrite, op_name, rule, level)
