"""scan: a function runs once for every step of a sequence, and hands states from step to step.

    scan(fn (%h, %x, %w) { (%h', %y) }, (%h0,), (%xs,), (%w,), length=T)

    h = h0
    for t in 0 … T - 1:  h, ys[t] = body(h, xs[t], w)           -> (h, ys)

The body is closed: what it reads of its surroundings are its last parameters, the same in every
step. ``ir/loops.py`` opens a scan into the three operators below, which stand among the operators
of the body, and closes it again:

    scan.state(h0)              h, in front of every step
    scan.step(xs)               xs[t]
    scan.end((h,), (h',), (y,)) what scan gives

Source: ONNX operator Scan; jax.lax.scan.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Args, Call, Expr, Tuple, is_op_call
from compiler.ir.op import NON_COMPUTATIONAL, OpPattern, define_op
from compiler.ir.ty import FuncType, TensorType, TupleType, Type, is_float, tensor_fields
from compiler.ops.annotation.attach_simulated_quantize import as_input, point_attrs
from compiler.ops.annotation.wide_point import wide_point
from compiler.ops.arg_types import Types, tensor
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.op_call import pieces_of
from compiler.ops.rules.annotate import (
    FQAnnotateRewrite,
    QAnnotateExpr,
    accumulating,
    annotated,
    kind_of,
    unannotated,
    with_args,
)
from compiler.ops.rules.dom_scale import FQDomScale, moved_scale
from compiler.ops.rules.integer_calls import cast
from compiler.ops.rules.never_negative import FNeverNegative, first_positive
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.rules.partition import FQPartitionRewrite, QPartitionExpr, inner
from compiler.ops.rules.pass_through import in_integers, movable
from compiler.ops.rules.realize import (
    WIDE_INPUT,
    FQRealizeRewrite,
    QRealizeIntExpr,
    of_integers,
    storage_dtype,
)
from compiler.ops.rules.requantize import to_scalar
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QAnnotateKind

MOST_STEPS: Final = 1 << 24
"""Upper limit of the steps of a loop: one without inputs would otherwise run as long as a text
says."""


class ScanAttrs(OpAttrs):
    """The number of steps, ``MOST_STEPS`` at most; for each input whether it is read, and for each
    output whether it is written, from its end to its beginning (0 or 1)."""

    length: int
    reverse_inputs: tuple[int, ...] = ()
    reverse_outputs: tuple[int, ...] = ()

    def borders(self, results: int) -> tuple[int, int]:
        """Count the states, and the states and inputs, among the operands of a body: constants are
        behind them. ``results`` are those of the body, which begin with as many states."""
        states = results - len(self.reverse_outputs)
        return states, states + len(self.reverse_inputs)


@define_op("scan", arg_names=("body", "states", "inputs", "constants"), pattern=OpPattern.OPAQUE)
def scan(types: Types, attrs: ScanAttrs) -> Type:
    """The last states, then an output of all steps for each further result of the body.

    Raises:
        TypeInferenceError: the body does not take or give these, or there is no step.
    """
    if not 1 <= attrs.length <= MOST_STEPS:
        raise TypeInferenceError(f"scan: {attrs.length} steps; there may be 1 to {MOST_STEPS}")
    body = types[0]
    groups = [one.fields if isinstance(one, TupleType) else None for one in types[1:]]
    if not isinstance(body, FuncType) or None in groups:
        raise TypeInferenceError(
            "scan takes a function and tuples of states, inputs and constants",
            where=", ".join(map(str, types)),
        )
    states, inputs, constants = (tuple(group or ()) for group in groups)
    read = tuple(_one_step(field, attrs.length) for field in inputs)
    if body.arg_types != (*states, *read, *constants):
        raise TypeInferenceError(
            "scan: the parameters of the body are not its states, one step of its inputs and its "
            "constants",
            where=f"{body}; one step is ({', '.join(map(str, (*states, *read, *constants)))})",
        )
    if isinstance(body.ret_type, TupleType):
        made = body.ret_type.fields
    else:
        made = ()
    if made[: len(states)] != states:
        raise TypeInferenceError(
            "scan: the body does not give its states first, as it takes them",
            where=f"{body.ret_type}; the states are ({', '.join(map(str, states))})",
        )
    outputs = made[len(states) :]
    _check_directions("inputs", attrs.reverse_inputs, len(inputs))
    _check_directions("outputs", attrs.reverse_outputs, len(outputs))
    return TupleType((*states, *(_all_steps(one, attrs.length) for one in outputs)))


def _one_step(ty: Type, length: int) -> TensorType:
    if not isinstance(ty, TensorType) or ty.shape[:1] != (length,):
        raise TypeInferenceError(f"scan: an input of {length} steps has type {ty}")
    return TensorType(ty.shape[1:], ty.dtype)


def _all_steps(ty: Type, length: int) -> TensorType:
    if not isinstance(ty, TensorType):
        raise TypeInferenceError(f"scan: a step gives {ty}, which is no tensor")
    return TensorType((length, *ty.shape), ty.dtype)


def _check_directions(what: str, given: tuple[int, ...], count: int) -> None:
    if len(given) != count or not {0, 1}.issuperset(given):
        raise TypeInferenceError(
            f"scan: reverse_{what} {given} is not a 0 or 1 for each of {count} {what}"
        )


@FNumpyCompute.register(scan)
def scan_numpy(attrs: ScanAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Step after step; in front of the arrays stands the body, which the executor can call."""
    assert isinstance(out_type, TupleType)
    body: Any = args[0]
    first, last = attrs.borders(len(out_type.fields))
    given = args[1:]
    states = list(given[:first])
    inputs = given[first:last]
    constants = given[last:]
    outputs = [np.empty(ty.concrete_shape, ty.dtype) for ty in tensor_fields(out_type)[first:]]
    for step in range(attrs.length):
        places = step, attrs.length - 1 - step
        read = [one[places[back]] for one, back in zip(inputs, attrs.reverse_inputs)]
        made = body(*states, *map(np.asarray, read), *constants)
        states = list(made[: len(states)])
        for output, back, one in zip(outputs, attrs.reverse_outputs, made[len(states) :]):
            output[places[back]] = one
    return [*states, *outputs]


class ScanMarkAttrs(OpAttrs):
    """Name of the loop that an opened operator belongs to; ``reverse`` of its inputs or outputs as
    in ``scan``; ``length`` in steps."""

    loop: str
    length: int
    reverse: tuple[int, ...] = ()


_mark = partial(
    define_op, attrs_type=ScanMarkAttrs, pattern=OpPattern.OPAQUE, flags=(NON_COMPUTATIONAL,)
)


@_mark("scan.state")
def scan_state(types: Types, attrs: ScanMarkAttrs) -> Type:
    """The type of the first state."""
    return tensor("scan.state", types, 0, "data")


@_mark("scan.step")
def scan_step(types: Types, attrs: ScanMarkAttrs) -> Type:
    """One step of the first axis."""
    return _one_step(types[0], attrs.length)


@_mark("scan.end", arg_names=("states", "next_states", "outputs"))
def scan_end(types: Types, attrs: ScanMarkAttrs) -> Type:
    """Return the types of the results, as of ``scan``.

    Raises:
        TypeInferenceError: a next state has another type than its state.
    """
    groups = [one.fields for one in types if isinstance(one, TupleType)]
    if len(groups) != len(types):
        raise TypeInferenceError("scan.end takes tuples", where=", ".join(map(str, types)))
    states, following, outputs = groups
    if states != following:
        raise TypeInferenceError(
            f"scan: next states {types[1]} are not of the types of the states {types[0]}"
        )
    _check_directions("outputs", attrs.reverse, len(outputs))
    return TupleType((*states, *(_all_steps(one, attrs.length) for one in outputs)))


# ---- quantization of open loops ---------------------------------------------------------------


@FQPartitionRewrite.register(scan_state, scan_step)
def mark_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Regions of integers go through the borders of a loop."""
    return QPartitionExpr(with_args(ref_call, (inner(args[0]),)))


@FQPartitionRewrite.register(scan_end)
def end_partition(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Partition as ``mark_partition``."""
    groups = [Tuple(tuple(inner(field) for field in _fields_of(group))) for group in args]
    call = with_args(ref_call, tuple(groups))
    return Tuple(tuple(QPartitionExpr(piece) for piece in pieces_of(call, ref_call)))


@FQAnnotateRewrite.register(scan_state)
def state_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """One point for the state in front of every step, of 16 bits: errors of a state add up. Layers
    read it through points of their own bits."""
    return annotated(ref_call, (unannotated(args[0]),), wide=True)


@FQAnnotateRewrite.register(scan_step)
def step_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """A step of what is there: sums as they are; what is float is quantized in front of the loop,
    all steps at once."""
    if kind_of(args[0]) == QAnnotateKind.ACTIVATION:
        return accumulating(ref_call, args[0])
    return annotated(ref_call, (as_input(args[0], ctx),), QAnnotateKind.INPUT)


@FQAnnotateRewrite.register(scan_end)
def end_annotate(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """``tied_states`` quantizes next states from what they are in front of points of others."""
    states, following, outputs = (_fields_of(arg) for arg in args)
    # Counters and masks are integers already.
    real = [is_float(ty.dtype) for ty in tensor_fields(ref_call.checked_type)]

    def state(field: Expr, has_scale: bool) -> Expr:
        held = unannotated(field)
        if has_scale:
            return wide_point(held, ctx)
        return held

    def output(field: Expr, has_scale: bool) -> Expr:
        held = unannotated(field)
        if has_scale and not kind_of(field):
            return as_input(field, ctx)
        return held

    groups = (
        tuple(map(state, states, real)),
        tuple(_unrounded(unannotated(field)) for field in following),
        tuple(map(output, outputs, real[len(states) :])),
    )
    call = with_args(ref_call, tuple(Tuple(group) for group in groups))
    kinds = [
        *(QAnnotateKind.ACTIVATION for _ in states),
        *(kind_of(field) or QAnnotateKind.INPUT for field in outputs),
    ]
    pieces = zip(pieces_of(call, ref_call), kinds, real)
    return Tuple(tuple(QAnnotateExpr(p, kind) if has_scale else p for p, kind, has_scale in pieces))


def _unrounded(value: Expr) -> Expr:
    """Return the value that a narrow point of a value reads."""
    attrs = point_attrs(value)
    if attrs is None or attrs.given or attrs.kind == QAnnotateKind.WEIGHT:
        return value
    assert isinstance(value, Call)
    return value.args[0]


@FQRealizeRewrite.register(scan_state)
def state_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """Held in int16 between the steps, which every next state passes as well."""
    (data,) = args
    if not isinstance(data, QRealizeIntExpr):
        return None
    state = with_args(ref_call, (cast(data.data, WIDE_INPUT),))
    acc = ctx.qconfig.dtype_activation
    return data.like(cast(state, acc), dtype=acc)


@FQRealizeRewrite.register(scan_step)
@of_integers
def step_realize(ref_call: Call, data: QRealizeIntExpr, ctx: QuantizeContext) -> Expr | None:
    """A step of the integers."""
    data = movable(in_integers(data, ctx), ref_call, ctx)
    return data.like(with_args(ref_call, (data.data,)))


@FQRealizeRewrite.register(scan_end)
def end_realize(ref_call: Call, args: Args, ctx: QuantizeContext) -> Expr | None:
    """All that is integers stays so; states in int16."""
    groups: list[Expr] = [_states_of(args[0])]
    found: list[Expr] = []
    for number, group in enumerate(args[1:]):
        values: list[Expr] = []
        for field in _fields_of(group):
            if isinstance(field, QRealizeIntExpr):
                field = in_integers(field, ctx)
                rank = len(ref_call.args[1 + number].operands()[len(values)].tensor_type.shape)
                field = to_scalar(field, rank, ctx.qconfig)
                dtype = storage_dtype(field.low, field.high, ctx.qconfig) or field.dtype
                dtype = dtype if number else WIDE_INPUT
                field = field.like(field.narrowed(dtype, ref_call), dtype=dtype)
            values.append(field)
        groups.append(Tuple(tuple(v.data if isinstance(v, QRealizeIntExpr) else v for v in values)))
        found += values
    pieces = pieces_of(with_args(ref_call, tuple(groups)), ref_call)
    return Tuple(
        tuple(
            v.like(piece) if isinstance(v, QRealizeIntExpr) else piece
            for v, piece in zip(found, pieces)
        )
    )


def _states_of(group: Expr) -> Expr:
    """The marks themselves, behind what their readers see."""
    fields: list[Expr] = []
    for field in _fields_of(group):
        if isinstance(field, QRealizeIntExpr):
            value = field.data
        else:
            value = field
        while not is_op_call(value, "scan.state"):
            assert isinstance(value, Call)
            value = value.args[0]
        fields.append(value)
    return Tuple(tuple(fields))


def _fields_of(group: Expr) -> tuple[Expr, ...]:
    assert isinstance(group, Tuple)
    return group.fields


FQDomScale.register(scan_state, scan_step)(moved_scale)
FNeverNegative.register(scan_step)(first_positive)
