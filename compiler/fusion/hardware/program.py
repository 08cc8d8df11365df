"""A whole module as an accelerator and its host run it, in order; what ``qsearch export`` writes.

    # main on opu_q: 7 groups, 0 operators on the host
    input     p0 float32[1x1x8x8] input
    opu_q     opu_q_1 p0 -> t0 int8[1x1x8x8]
    opu_q     opu_q_2 t0 -> t1 uint8[1x16x8x8]
    …
    output    t6

A step of unit ``opu_q`` runs the group of that name (its commands: command_list.py). A step of unit
``host`` is an operator that no unit takes. Functions that main calls are written out in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from compiler.errors import CodegenError, EvaluationError
from compiler.fusion.hardware.command_list import (
    Buffer,
    Command,
    CommandListModule,
    command_line,
    type_text,
)
from compiler.fusion.hardware.cost import hardware_cost
from compiler.fusion.hardware.group_calls import group_functions, is_group
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.ir.dataflow import Dataflow, Form, Step, Value, flatten_function
from compiler.ir.expr import Array, Call, Expr, Function, GlobalVar
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType
from compiler.ops.evaluate import evaluate_op, flatten
from compiler.runtime.archive import json_bytes
from compiler.runtime.npy import npy_bytes
from compiler.span import onnx_nodes

HOST = "host"
"""Unit of an operator that the host computes."""

_COMMANDS: Final = Form(
    "command list",
    CodegenError,
    fix="give the model fixed sizes (--dim NAME=N), or export another format",
)

FORMAT = 1
"""Version of the JSON file."""


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Steps of the function main, ready for a driver.

    Attributes:
        hardware: name of the description.
        inputs: buffers of the parameters, in order.
        parameters: their names in the module, in the same order.
        constants: values of the constants that the host reads, by buffer name.
        steps: ``Command`` per call; ``op`` is the symbol of a group or the name of an operator.
        outputs: names of the results.
        groups: the commands and constants of every group.
        cost: what ``hardware_cost`` says of the module, by name.
    """

    hardware: str
    inputs: tuple[Buffer, ...]
    parameters: tuple[str, ...]
    constants: Mapping[str, Array]
    steps: tuple[Command, ...]
    outputs: tuple[str, ...]
    groups: CommandListModule
    cost: Mapping[str, float]
    _flow: Dataflow

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; constants are in files of their own."""
        return {
            "format": FORMAT,
            "hardware": self.hardware,
            "cost": dict(self.cost),
            "inputs": [
                {**asdict(buffer), "parameter": parameter}
                for buffer, parameter in zip(self.inputs, self.parameters)
            ],
            "constants": list(self.constants),
            "steps": [asdict(step) for step in self.steps],
            "outputs": list(self.outputs),
            "groups": list(self.groups.symbols),
        }

    def __str__(self) -> str:
        host = sum(step.unit == HOST for step in self.steps)
        lines = [
            f"# main on {self.hardware}: {len(self.groups.symbols)} groups, "
            f"{host} operators on the host"
        ]
        for buffer, parameter in zip(self.inputs, self.parameters):
            lines.append(f"{buffer.kind:<9} {buffer.name} {buffer.type} {parameter}")
        for name, array in self.constants.items():
            ty = TensorType(array.shape, str(array.dtype))
            lines.append(f"{'const':<9} {name} {type_text(ty)}")
        lines += [command_line(step) for step in self.steps]
        lines += [f"{'output':<9} {name}" for name in self.outputs]
        lines += [str(self.groups.commands[symbol]) for symbol in self.groups.symbols]
        return "\n".join(lines) + "\n"

    def files(self, name: str) -> dict[str, bytes]:
        """``NAME.json`` and ``NAME.txt``; per group the files of ``CommandListModule.members``;
        per constant of the host an .npy. By file name.

        Raises:
            CodegenError: a group is called like the program.
        """
        found = {f"{name}.json": json_bytes(self.to_dict()), f"{name}.txt": str(self).encode()}
        found |= {f"{HOST}.{key}.npy": npy_bytes(array) for key, array in self.constants.items()}
        members = self.groups.members()
        clash = sorted(found.keys() & members.keys())
        if clash:
            raise CodegenError(
                f"the program and a group would both write {clash[0]}", fix="give another --name"
            )
        return {**found, **members}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """The outputs for one array per input: what the steps mean, group after group.

        Raises:
            EvaluationError: the arrays do not fit.
        """
        if len(inputs) != len(self.inputs):
            raise EvaluationError(f"{len(inputs)} arrays for {len(self.inputs)} inputs")
        held: dict[Value, Array] = dict(zip(self._flow.inputs, inputs))
        for step in self._flow.steps:
            args = [held[v] if v.data is None else v.data for v in step.args]
            if step.name in self.groups.symbols:
                results = self.groups.run(step.name, args)
            else:
                types = tuple(value.type for value in step.results)
                out = types[0] if len(types) == 1 else TupleType(types)
                results = flatten([evaluate_op(step.op, step.attrs, args, out)])
            held.update(zip(step.results, results))
        return [held[v] if v.data is None else v.data for v in self._flow.outputs]


def _group_of(call: Call, grouped: IRModule, hdfg: HDFG) -> tuple[str, Sequence[Expr]] | None:
    """Symbol and arguments of a call of a group; None for other calls."""
    if isinstance(call.op, GlobalVar):
        callee = grouped[call.op]
    else:
        callee = call.op
    if not isinstance(callee, Function) or not is_group(callee, hdfg.name):
        return None
    return str(callee.get_attr("global_symbol")), call.args


def program(mod: IRModule, hdfg: HDFG) -> Program:
    """Prepare and group a module, and list what runs in which order.

    Args:
        mod: typed, or typable; static shapes.
        hdfg: the accelerator.
    Raises:
        CodegenError: main has branches, loops (scan, too), references or values of unknown size.
    """
    grouped = group_for_hardware(mod, hdfg)
    flow = flatten_function(
        grouped["main"], grouped, lambda call: _group_of(call, grouped, hdfg), _COMMANDS
    )
    symbols = {step.name for step in flow.steps}
    functions = {
        str(function.get_attr("global_symbol")): function
        for function in group_functions(grouped, hdfg.name)
    }
    listing = _Listing(flow)
    return Program(
        hardware=hdfg.name,
        inputs=listing.inputs,
        parameters=tuple(value.name for value in flow.inputs),
        constants=listing.constants,
        steps=tuple(listing.command(step, hdfg.name, functions) for step in flow.steps),
        outputs=tuple(listing.name(value) for value in flow.outputs),
        groups=CommandListModule(
            hdfg.name,
            {
                symbol: function.without_attr("Compiler")
                for symbol, function in functions.items()
                if symbol in symbols
            },
        ),
        cost=hardware_cost(grouped, hdfg).totals(),
        _flow=flow,
    )


class _Listing:
    """Names of values: p0 … for inputs, c0 … for constants, t0 … for results."""

    def __init__(self, flow: Dataflow) -> None:
        self._names: dict[Value, str] = {}
        self._results = 0
        self.constants: dict[str, Array] = {}
        for number, value in enumerate(flow.inputs):
            self._names[value] = f"p{number}"
        self.inputs = tuple(
            Buffer("input", self._names[value], type_text(value.type)) for value in flow.inputs
        )

    def name(self, value: Value) -> str:
        """The name of an input, a constant or a result; a new one for what has none yet."""
        if value not in self._names:
            if value.data is None:
                self._names[value] = f"t{self._results}"
                self._results += 1
            else:
                self._names[value] = f"c{len(self.constants)}"
                self.constants[self._names[value]] = value.data
        return self._names[value]

    def command(self, step: Step, hardware: str, groups: Mapping[str, object]) -> Command:
        """A step as a command; several results are named with commas between them.

        Raises:
            CodegenError: the step is a loop.
        """
        if step.body is not None:
            raise _COMMANDS.error(
                f"{next(iter(onnx_nodes(step.span)), step.name)} is a loop, which no command holds",
                fix="export another format",
                span=step.span,
            )
        operands = tuple(self.name(value) for value in step.args)
        return Command(
            hardware if step.name in groups else HOST,
            step.name,
            operands,
            ",".join(self.name(value) for value in step.results),
            ",".join(type_text(value.type) for value in step.results),
            {} if step.attrs is None else dict(step.attrs.items()),
        )
