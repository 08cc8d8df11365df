"""Relay's functions that register quantization rules, for operators of users."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from compiler.ir.op import DEFAULT_LEVEL, OpRule, get_op
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.ops.rules.partition import FQPartitionRewrite
from compiler.ops.rules.realize import FQRealizeRewrite

R = TypeVar("R", bound=Callable[..., Any])


def _register(
    table: OpRule[Any],
    op_name: str,
    frewrite: Callable[..., Any] | None = None,
    level: int = DEFAULT_LEVEL,
) -> Callable[[R], R]:
    """``register(op_name, frewrite, level)``; without a rule, a decorator.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: it has a rule of this level already.
    """
    add = table.register(get_op(op_name), level=level)
    if frewrite is not None:
        add(frewrite)
    return add


register_partition_function = partial(_register, FQPartitionRewrite)
"""Say how an operator takes part in QuantizePartition."""
register_annotate_function = partial(_register, FQAnnotateRewrite)
"""Say how an operator takes part in QuantizeAnnotate, behind the guard of ``debug_enabled_ops``."""
register_realize_function = partial(_register, FQRealizeRewrite)
"""Say what an operator computes on integers."""
