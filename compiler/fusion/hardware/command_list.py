"""The external code generator of described accelerators: a group as a list of commands.

    # opu_0
    input   p0 int8[1x3x32x32]
    const   c0 int8[16x3x3x3]
    ipa     nn.conv2d p0 c0 -> t0 int32[1x16x32x32] {"padding": [1, 1, 1, 1], …}
    add     add t0 c1 -> t1 int32[1x16x32x32]
    output  t1

A driver for real hardware reads the commands; ``run`` computes what they mean with the reference
executor, so results can always be checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from compiler.errors import ArtifactError, CodegenError, check_known
from compiler.fusion.hardware.description import shipped_descriptions
from compiler.fusion.hardware.group_calls import group_steps
from compiler.ir.expr import Array, Call, Constant, Expr, Function, Op, Tuple, TupleGetItem
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.ir.ty import TensorType, Type
from compiler.ir.walk import nodes_of
from compiler.runtime.archive import json_bytes, read_json
from compiler.runtime.external_module import ExternalModule, external_loaders
from compiler.runtime.npy import array_of, npy_bytes
from compiler.targets.external_codegen import external_codegen
from compiler.targets.reference.executor import ReferenceExecutor
from compiler.targets.target import Target

FREE = "free"
"""Stands for the unit of an operator that only rides along, such as a change of shape."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor by name; ``kind`` is "input" or "const"."""

    kind: str
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Command:
    """One call: the unit that serves it, its operands by name, its result and attributes."""

    unit: str
    op: str
    operands: tuple[str, ...]
    result: str
    type: str
    attrs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class CommandList:
    """A group, ready for a driver.

    Attributes:
        symbol: its ``global_symbol``.
        buffers: inputs and constants.
        commands: in order.
        output: name of the result.
        constants: values of the buffers of kind "const", by name.
    """

    symbol: str
    buffers: tuple[Buffer, ...]
    commands: tuple[Command, ...]
    output: str
    constants: Mapping[str, Array]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, without the constants."""
        return {
            "symbol": self.symbol,
            "buffers": [asdict(buffer) for buffer in self.buffers],
            "commands": [asdict(command) for command in self.commands],
            "output": self.output,
        }

    def __str__(self) -> str:
        lines = [f"# {self.symbol}"]
        lines += [f"{b.kind:<9} {b.name} {b.type}" for b in self.buffers]
        lines += [command_line(command) for command in self.commands]
        return "\n".join([*lines, f"{'output':<9} {self.output}"])


def command_line(command: Command) -> str:
    """``ipa       nn.conv2d p0 c0 -> t0 int32[1x16x32x32] {"padding": [1, 1, 1, 1], …}``."""
    if command.attrs:
        attrs = f" {json.dumps(dict(command.attrs))}"
    else:
        attrs = ""
    called = " ".join([command.op, *command.operands])
    return f"{command.unit:<9} {called} -> {command.result} {command.type}{attrs}"


def command_list(function: Function) -> CommandList:
    """The commands of a group that FuseOpHW made.

    Raises:
        CodegenError: the function is no hardware group.
    """
    if "hdfg_stages" not in function.attrs:
        raise CodegenError(
            "this function is no hardware group: it has no hdfg_stages",
            where=str(function.get_attr("global_symbol", "a function without global_symbol")),
            fix="run FuseOpHW first",
        )
    units: dict[Expr, str] = {call: unit for unit, call in group_steps(function)}
    names: dict[Expr, str] = {}
    buffers: list[Buffer] = []
    commands: list[Command] = []
    constants: dict[str, Array] = {}
    for param in function.params:
        names[param] = f"p{len(buffers)}"
        buffers.append(Buffer("input", names[param], type_text(param.checked_type)))
    for node in nodes_of(function):
        if isinstance(node, Constant):
            names[node] = f"c{len(constants)}"
            constants[names[node]] = node.data
            buffers.append(Buffer("const", names[node], type_text(node.checked_type)))
        elif isinstance(node, (Call, Tuple, TupleGetItem)):
            names[node] = f"t{len(commands)}"
            commands.append(_command(node, names, units.get(node, FREE)))
    symbol = str(function.get_attr("global_symbol", "group"))
    return CommandList(symbol, tuple(buffers), tuple(commands), names[function.body], constants)


def _command(node: Expr, names: Mapping[Expr, str], unit: str) -> Command:
    operands = tuple(names[o] for o in node.operands() if o in names)
    attrs: dict[str, Any] = {}
    if isinstance(node, Call):
        op = node.op.name if isinstance(node.op, Op) else "call"
        if node.attrs is not None:
            attrs = dict(node.attrs.items())
        else:
            attrs = {}
    else:
        op = "tuple" if isinstance(node, Tuple) else "item"
        if isinstance(node, TupleGetItem):
            attrs = {"index": node.index}
        else:
            attrs = {}
    return Command(unit, op, operands, names[node], type_text(node.checked_type), attrs)


def type_text(ty: Type) -> str:
    """``int8[1x3x32x32]``."""
    if isinstance(ty, TensorType):
        return f"{ty.dtype}[{'x'.join(map(str, ty.shape))}]"
    return str(ty)


def _read(members: Mapping[str, bytes], symbol: str) -> Function:
    """The function that ``CommandListModule.members`` wrote.

    Raises:
        ArtifactError: a member is missing or damaged.
        ParseError: the text is no module.
    """
    wanted = read_json(members.get(f"{symbol}.json", b""), f"{symbol}.json")
    tensors: dict[str, Array] = {}
    for key, name in dict(wanted.get("in_text", {})).items():
        file = f"{symbol}.{name}.npy"
        if file not in members:
            raise ArtifactError(f"the command list lacks {file!r}", where=f"group {symbol}")
        tensors[key] = array_of(members[file], file)
    source = members[f"{symbol}.relay"].decode()
    parsed = infer_module(parse(source, source_name=f"{symbol}.relay", external_data=tensors))
    function = parsed["main"]
    assert isinstance(function, Function)
    return function


class CommandListModule:
    """Groups of one accelerator; implements ``runtime.external_module.ExternalModule``.

    Args:
        kind: name of the hardware description.
        functions: the groups by ``global_symbol``, without their ``Compiler`` attribute.
    """

    def __init__(self, kind: str, functions: Mapping[str, Function]) -> None:
        self._kind = kind
        self._mods = {
            symbol: IRModule.from_expr(fn.without_attr("Primitive"))
            for symbol, fn in functions.items()
        }
        self.commands = {symbol: command_list(fn) for symbol, fn in functions.items()}

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(self.commands)

    def run(self, symbol: str, args: Sequence[Array]) -> list[Array]:
        """Evaluate the group ``symbol`` on ``args`` with the reference evaluator.

        Raises:
            CodegenError: no group has this symbol.
            EvaluationError: the arrays do not fit.
        """
        check_known(symbol, self._mods, f"{self._kind} has no function {symbol!r}", CodegenError)
        mod = self._mods[symbol]
        return ReferenceExecutor(mod).run(args)

    def members(self) -> dict[str, bytes]:
        """Per group the commands as JSON and the constants as .npy, for a driver; and the function
        they came from as text over the same constants."""
        found: dict[str, bytes] = {}
        for symbol, commands in self.commands.items():
            tensors: dict[str, Array] = {}
            shown = text(self._mods[symbol], external_data=tensors, show_spans=False)
            constants = dict(commands.constants)
            name_of = {id(array): name for name, array in constants.items()}
            for key, array in tensors.items():
                if id(array) not in name_of:  # scales that the text alone says
                    name_of[id(array)] = f"{key}_in_text"
                    constants[name_of[id(array)]] = array
            in_text = {key: name_of[id(array)] for key, array in tensors.items()}
            found[f"{symbol}.json"] = json_bytes({**commands.to_dict(), "in_text": in_text})
            found[f"{symbol}.relay"] = shown.encode()
            for name, array in constants.items():
                found[f"{symbol}.{name}.npy"] = npy_bytes(array)
        return found


def register_command_list(name: str) -> None:
    """Let groups of description ``name`` compile to, and load as, command lists.

    The shipped descriptions are registered. One of your own needs this call once, or a code
    generator under its name; nothing happens where there is one already.
    """

    def compile_group(function: Function, target: Target) -> ExternalModule:
        return CommandListModule(name, {str(function.get_attr("global_symbol")): function})

    def load(members: Mapping[str, bytes]) -> ExternalModule:
        symbols = [n.removesuffix(".relay") for n in members if n.endswith(".relay")]
        return CommandListModule(name, {symbol: _read(members, symbol) for symbol in symbols})

    if name not in external_codegen:
        external_codegen.register(name)(compile_group)
    if name not in external_loaders:
        external_loaders.register(name)(load)


for _shipped in shipped_descriptions():
    register_command_list(_shipped)
