"""A lowered Relay function as a list of steps over values: what C is written from.

    def @main(%x) { let %q = @quantize_inputs(%x); … }          step 0: call quantize_inputs  x → v1
    call_lowered(@fused_conv2d_add, (%q.0, const, const))       step 1: kernel …       v1, k, k → v2

Tuples are flattened, Lets are names, reshapes are other views of the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from compiler.errors import CodegenError
from compiler.ir import dataflow as flat
from compiler.ir.dataflow import SCAN, Form, flatten_function
from compiler.ir.expr import Call, Expr, Function, GlobalVar, Op, describe, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, tensor_fields
from compiler.ops.lowered.call_lowered import get_call_lowered_props
from compiler.ops.number_format import Array, storage_dtype
from compiler.ops.transform.scan import ScanAttrs
from compiler.runtime.packed import Form as Packing

Place = Literal["param", "const", "computed"]


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of a program.

    Attributes:
        dtype: of its elements in memory.
        shape: elements per axis.
        place: where it comes from.
        data: contents of a constant.
        name: of a parameter.
        packed: instead of ``data``, what the bytes of the value are the packed numbers of.
    """

    dtype: str
    shape: tuple[int, ...]
    place: Place
    data: Array | None = None
    name: str = ""
    packed: tuple[Array, Packing] | None = None

    @property
    def size(self) -> int:
        """Elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes."""
        return self.size * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One call.

    Attributes:
        callee: name of a PrimFunc, or of another function of the module; "" copies one value.
        args: read.
        outs: written.
        comment: operators and where they came from.
        number: of the call in the function; -1 of a copy that no call asks for.
        loop: the callee is the body of this scan; ``args`` are its states, inputs and constants,
            ``outs`` the last states and the outputs of all steps.
    """

    callee: str
    args: tuple[Value, ...]
    outs: tuple[Value, ...]
    comment: str = ""
    number: int = -1
    loop: ScanAttrs | None = None

    @property
    def states(self) -> tuple[Value, ...]:
        """States of a loop, as they are after it; the next ones lie in temporaries."""
        if self.loop is None:
            return ()
        return self.outs[: self.loop.borders(len(self.outs))[0]]


@dataclass(slots=True, eq=False)
class Program:
    """A function of the module.

    Attributes:
        name: of the function.
        params: in order; tuples are flattened.
        results: one per tensor of the result; each is written by exactly one step.
        steps: in the order of execution.
    """

    name: str
    params: tuple[Value, ...] = ()
    results: tuple[Value, ...] = ()
    steps: list[Step] = field(default_factory=list)


C_FORM = Form(
    "C", CodegenError, tuples=True, fix="C is generated for functions without branches and closures"
)
_COPY = "device_copy"


def program_of(mod: IRModule, name: str) -> Program:
    """The steps of one function.

    Args:
        mod: after LowerTE, typed.
        name: of a function without control flow.
    Raises:
        CodegenError: it has control flow, closures, or calls that were not lowered.
    """
    function = mod[name]
    if not isinstance(function, Function):
        raise CodegenError(f"@{name} is no Relay function")
    try:
        flow = flatten_function(function, mod, lambda call: _callee(call, mod, name), C_FORM)
    except CodegenError as error:
        error.add_note(f"in @{name}")
        raise
    values: dict[flat.Value, Value] = {}
    for given in flow.inputs:
        values[given] = _value(given.type, "param", given.name)
    program = Program(name, params=tuple(values.values()))
    for number, step in enumerate(flow.steps):
        read = tuple(_read(arg, values) for arg in step.args)
        metadata = getattr(step.attrs, "metadata", {})
        # Row-major memory is the same in every shape.
        reshapes = "relay.reshape_only" in metadata and read[0].place == "computed"
        if step.name == _COPY or reshapes:
            values.update(zip(step.results, read))
            continue
        outs = tuple(_value(result.type, "computed") for result in step.results)
        values.update(zip(step.results, outs))
        comment = "" if step.span is None else str(step.span)
        loop = step.attrs if isinstance(step.attrs, ScanAttrs) else None
        program.steps.append(Step(step.name, read, outs, comment, number, loop))
    results = [_read(output, values) for output in flow.outputs]
    _finish(program, results, tensor_fields(function.body.checked_type))
    return program


def callees(program: Program) -> list[str]:
    """Names of what the steps call, each once, in order."""
    return list(dict.fromkeys(step.callee for step in program.steps if step.callee))


def _callee(call: Call, mod: IRModule, name: str) -> tuple[str, Sequence[Expr]]:
    """Return the callee of a lowered call, and its operands.

    Raises:
        CodegenError: it was not lowered.
    """
    lowered = get_call_lowered_props(call)
    callee: Expr = call.op if lowered is None else lowered.lowered_func
    args = call.args if lowered is None else lowered.arguments
    if is_op_call(call, SCAN):
        callee = call.args[0]
        args = call.args[1:]
    if isinstance(callee, Op) and callee.name == _COPY:
        return _COPY, args
    if not isinstance(callee, GlobalVar) or not mod.contains(callee.name_hint):
        raise CodegenError(
            f"@{name} calls {describe(call)}, which was not lowered to C",
            fix="run FuseOps and LowerTE first; parts for external compilers have no C form",
        )
    return callee.name_hint, args


def _read(value: flat.Value, values: dict[flat.Value, Value]) -> Value:
    """The tensor that a value is; constants are met here first."""
    if value not in values:
        array = np.asarray(value.data)
        values[value] = Value(str(array.dtype), array.shape, "const", array)
    return values[value]


def _finish(program: Program, results: Sequence[Value], types: Sequence[TensorType]) -> None:
    """Results that a step writes stay, others are copied: caller's memory is not shared."""
    found: dict[Value, None] = {}
    for value, ty in zip(results, types, strict=True):
        if value.place != "computed" or value in found:
            copy = Value(value.dtype, value.shape, "computed")
            program.steps.append(Step("", (value,), (copy,)))
            value = copy
        value.shape = ty.concrete_shape  # a reshape is another view of the same memory
        found[value] = None
    program.results = tuple(found)


def _value(ty: TensorType, place: Place, name: str = "") -> Value:
    return Value(str(storage_dtype(ty.dtype)), ty.concrete_shape, place, name=name)
