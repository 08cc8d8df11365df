"""Relay's functions that register quantization rules, for operators of users."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from compiler.ir.op import DEFAULT_LEVEL, OpRule, get_op
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.realize import FQRealizeRewrite

R = TypeVar("R", bound=Callable[..., Any])


class Registrar(Protocol):
    """``register(op_name, rule, level)``; without a rule, a decorator.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: it has a rule of this level already.
    """

    def __call__(
        self, op_name: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
    ) -> Callable[[R], R]: ...


def _registrar(table: OpRule[Any]) -> Registrar:
    def register(
        op_name: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
    ) -> Callable[[R], R]:
        add = table.register(get_op(op_name), level=level)
        if rule is not None:
            add(rule)
        return add

    return register


register_partition_function = _registrar(FQPartitionRewrite)
"""Say how an operator takes part in QuantizePartition."""
register_annotate_function = _registrar(FQAnnotateRewrite)
"""Say how an operator takes part in QuantizeAnnotate, behind the guard of ``debug_enabled_ops``."""
register_realize_function = _registrar(FQRealizeRewrite)
"""Say what an operator computes on integers."""
