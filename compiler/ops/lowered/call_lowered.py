"""call_lowered(@f, (args…), metadata={…}): a call of a function that has been lowered.

The first argument is the global name of a PrimFunc or of an ``Extern`` function, the second the
tuple of its arguments. Executors that run lowered modules handle it; it is no operator on tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from compiler.errors import TypeInferenceError
from compiler.ir.attrs import NO_ATTRS, Attrs, DictAttrs
from compiler.ir.expr import Call, Expr, GlobalVar, Op, Tuple
from compiler.ir.op import NON_COMPUTATIONAL, OpPattern, define_op
from compiler.ir.ty import FuncType, TupleType, Type
from compiler.ops.arg_types import Types
from compiler.span import AnySpan


@dataclass(frozen=True, eq=False)
class CallLoweredAttrs(Attrs):
    """Facts of the callee that lowering knows.

    ``metadata`` holds ``relay_attrs`` (the attributes of the function it was made from),
    ``all_prim_fn_vars`` (names of the PrimFuncs made for it) and, where it only reshapes,
    ``relay.reshape_only``.
    """

    metadata: DictAttrs = NO_ATTRS

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", _frozen(self.metadata))


def _frozen(value: Any) -> Any:
    """Maps become DictAttrs at every level, so that the record has a value of its own."""
    if isinstance(value, Mapping):
        return DictAttrs({key: _frozen(held) for key, held in value.items()})
    return value


@define_op(
    "call_lowered",
    arg_names=("func", "args"),
    pattern=OpPattern.OPAQUE,
    flags=(NON_COMPUTATIONAL,),
    doc="a call of a lowered function: call_lowered(@f, (args…), metadata={…})",
)
def call_lowered(types: Types, attrs: CallLoweredAttrs) -> Type:
    """The result type of the callee; the types of the tuple must be the types of its parameters.

    Raises:
        TypeInferenceError: the callee is no function, or takes other arguments.
    """
    callee, packed = types
    if not isinstance(callee, FuncType):
        raise TypeInferenceError(
            f"call_lowered: the callee is of type {callee}, not a function",
            fix="give the global name of a lowered function",
        )
    if packed != TupleType(callee.arg_types):
        raise TypeInferenceError(
            f"call_lowered: the arguments are {packed}",
            where=f"the function takes {TupleType(callee.arg_types)}",
            fix="give one argument of the right type for every parameter",
        )
    return callee.ret_type


class CallLoweredProps(NamedTuple):
    """A ``call_lowered`` taken apart."""

    lowered_func: GlobalVar
    arguments: tuple[Expr, ...]
    attrs: CallLoweredAttrs


def make_call_lowered(
    func: GlobalVar, args: Sequence[Expr], metadata: Mapping[str, Any], span: AnySpan | None
) -> Call:
    """``call_lowered(func, (args…), metadata=…)``."""
    packed = Tuple(tuple(args), span=span)
    return Call(call_lowered, (func, packed), CallLoweredAttrs(DictAttrs(metadata)), span=span)


def get_call_lowered_props(expr: Expr) -> CallLoweredProps | None:
    """The parts of a ``call_lowered``; None for any other expression."""
    if not isinstance(expr, Call) or not isinstance(expr.op, Op) or expr.op is not call_lowered:
        return None
    func, packed = expr.args
    assert isinstance(func, GlobalVar)
    assert isinstance(packed, Tuple)
    return CallLoweredProps(func, packed.fields, CallLoweredAttrs.of(expr))
