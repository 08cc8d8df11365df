"""A lowered Relay function as a list of steps over values: what C is written from.

    def @main(%x) { let %q = @quantize_inputs(%x); … }          step 0: call quantize_inputs  x → v1
    call_lowered(@fused_conv2d_add, (%q.0, const, const))       step 1: kernel …       v1, k, k → v2

Tuples are flattened, Lets are names, reshapes are other views of the same memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.ir.analysis import post_order
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, tensor_fields
from compiler.ops.lowered.call_lowered import get_call_lowered_props
from compiler.ops.number_format import storage_dtype

Array = NDArray[Any]
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
    """

    dtype: str
    shape: tuple[int, ...]
    place: Place
    data: Array | None = None
    name: str = ""

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
    """

    callee: str
    args: tuple[Value, ...]
    outs: tuple[Value, ...]
    comment: str = ""


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


def program_of(mod: IRModule, name: str) -> Program:
    """The steps of one function.

    Args:
        mod: after LowerTE, typed.
        name: of a function without control flow.
    Raises:
        CodegenError: it has control flow, closures, or calls that were not lowered.
    """
    return _Builder(mod, name).build()


def callees(program: Program) -> list[str]:
    """Names of what the steps call, each once, in order."""
    return list(dict.fromkeys(step.callee for step in program.steps if step.callee))


class _Builder:
    """Walks a function once, in the order of evaluation."""

    def __init__(self, mod: IRModule, name: str) -> None:
        self._mod = mod
        self._program = Program(name)
        self._values: dict[Expr, tuple[Value, ...]] = {}
        self._bound: dict[Expr, Expr] = {}

    def build(self) -> Program:
        program = self._program
        function = self._mod[program.name]
        if not isinstance(function, Function):
            raise CodegenError(f"@{program.name} is no Relay function")
        for param in function.params:
            made = _values_of(param.checked_type, "param")
            for number, value in enumerate(made):
                value.name = param.name_hint + (f"_{number}" if len(made) > 1 else "")
            self._values[param] = made
            program.params += made
        for node in post_order(function.body):
            if isinstance(node, Let):
                # The value is visited before the body: its name means it from here on.
                self._bound[node.var] = node.value
        for node in post_order(function.body):
            self._visit(node)
        self._finish(self._of(function.body), tensor_fields(function.body.checked_type))
        return program

    def _of(self, node: Expr) -> tuple[Value, ...]:
        while node in self._bound:
            node = self._bound[node]
        return self._values[node]

    def _visit(self, node: Expr) -> None:
        if isinstance(node, Constant):
            array = np.asarray(node.data)
            constant = Value(str(array.dtype), array.shape, "const", array)
            self._values[node] = (constant,)
        elif isinstance(node, Tuple):
            self._values[node] = tuple(value for part in node.fields for value in self._of(part))
        elif isinstance(node, TupleGetItem):
            whole = node.tuple.checked_type
            assert isinstance(whole, TupleType)
            start = sum(len(tensor_fields(ty)) for ty in whole.fields[: node.index])
            count = len(tensor_fields(node.checked_type))
            self._values[node] = self._of(node.tuple)[start : start + count]
        elif isinstance(node, Let):
            self._values[node] = self._of(node.body)
        elif isinstance(node, Call):
            self._values[node] = self._call(node)
        elif not isinstance(node, Op | GlobalVar | Var):
            raise CodegenError(
                f"@{self._program.name}: {describe(node)} has no C form",
                where=str(node.span) if node.span is not None else None,
                fix="C is generated for functions without branches and closures",
            )

    def _call(self, call: Call) -> tuple[Value, ...]:
        lowered = get_call_lowered_props(call)
        callee: Expr = call.op if lowered is None else lowered.lowered_func
        args = call.args if lowered is None else lowered.arguments
        given = tuple(value for arg in args for value in self._of(arg))
        if isinstance(callee, Op) and callee.name == "device_copy":
            return given
        if not isinstance(callee, GlobalVar) or not self._mod.contains(callee.name_hint):
            raise CodegenError(
                f"@{self._program.name} calls {describe(call)}, which was not lowered to C",
                fix="run FuseOps and LowerTE first; parts for external compilers have no C form",
            )
        outs = _values_of(call.checked_type, "computed")
        reshapes = lowered is not None and "relay.reshape_only" in lowered.attrs.metadata
        if reshapes and given[0].place == "computed":
            # Row-major memory is the same in every shape.
            return given
        comment = "" if call.span is None else str(call.span)
        self._program.steps.append(Step(callee.name_hint, given, outs, comment))
        return outs

    def _finish(self, results: Sequence[Value], types: Sequence[TensorType]) -> None:
        """Results that a step writes stay, others are copied: caller's memory is not shared."""
        found: dict[Value, None] = {}
        for value, ty in zip(results, types, strict=True):
            if value.place != "computed" or value in found:
                copy = Value(value.dtype, value.shape, "computed")
                self._program.steps.append(Step("", (value,), (copy,)))
                value = copy
            value.shape = ty.concrete_shape  # a reshape is another view of the same memory
            found[value] = None
        self._program.results = tuple(found)


def _values_of(ty: Any, place: Place) -> tuple[Value, ...]:
    return tuple(_value(field_type, place) for field_type in tensor_fields(ty))


def _value(ty: TensorType, place: Place) -> Value:
    return Value(str(storage_dtype(ty.dtype)), ty.concrete_shape, place)
