"""Picture: the boxes and edges of a module, without positions.

Every function of the module, and every function literal inside one, becomes a frame; every node of
its body a box. A call of a kernel is a box with a row for each operator of the kernel. Constants
are named inside the box that reads them, because a picture with a box per weight shows nothing
else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from compiler.drawing.wording import Wording, box_title, details_of, type_text
from compiler.ir.adt import Match
from compiler.ir.analysis import post_order
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
)
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.ty import NARROW_DTYPES, TensorType, Type, tensor_fields
from compiler.ir.walk import is_lowered_call, nodes_of
from compiler.span import onnx_nodes

QUANTIZED_DTYPES = ("int8", "uint8", *NARROW_DTYPES)
ACCUMULATOR_DTYPES = ("int16", "uint16", "int32", "uint32")
DATA_FLOW = {
    "quantize_inputs": "prefix",
    "quantized_main": "integer main",
    "dequantize_outputs": "suffix",
    "main": "whole",
}
"""Functions of a partitioned module in the order in which data pass them, and what each is; others
follow."""
SIMULATED = "relay.op.annotation.simulated_quantize"

Row = tuple[str, dict[str, str]]
"""An operator inside a kernel, and what a click on it shows: its text, type and span."""


class Kind(Enum):
    """Kind of numbers that a box gives; it decides the colour and the outline."""

    INPUT = "input"
    FLOAT = "float"
    SIMULATED = "simulated"
    QUANTIZED = "quantized"
    ACCUMULATOR = "accumulator"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Box:
    """One node: ``detail`` is what a click shows, ``rows`` the operators inside a kernel."""

    key: int
    title: str
    subtitle: str
    kind: Kind
    detail: dict[str, str]
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A value on its way from box ``source`` to box ``target``, labelled with its type."""

    source: int
    target: int
    label: str
    quantized: bool = False


@dataclass(slots=True)
class Frame:
    """A function: its boxes in post-order and the edges between them."""

    title: str
    boxes: list[Box] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Picture:
    """The frames of a module as data flow through it, each followed by the literals inside it."""

    frames: tuple[Frame, ...]

    @property
    def num_boxes(self) -> int:
        """Number of boxes in all frames."""
        return sum(len(frame.boxes) for frame in self.frames)


def picture_of(mod: IRModule) -> Picture:
    """The boxes and edges of every function of ``mod``; linear in its size, without recursion.

    Args:
        mod: any module; types are shown where InferType has run.
    """
    frames: list[Frame] = []
    next_key = 0
    places = {name: place for place, name in enumerate(DATA_FLOW)}
    by_place = sorted(
        mod.functions.items(), key=lambda item: places.get(item[0].name_hint, len(places))
    )
    for gv, fn in by_place:
        if not isinstance(fn, Function) or "Extern" in fn.attrs:
            continue  # shown in the boxes of its calls
        pending = deque([(f"@{gv.name_hint}", fn)])
        while pending:
            title, function = pending.popleft()
            builder = _FrameBuilder(title, next_key, mod)
            literals = builder.build(function)
            pending.extend((f"{name} in {title}", literal) for literal, name in literals.items())
            next_key = builder.next_key
            frames.append(builder.frame)
    return Picture(tuple(frames))


class _FrameBuilder:
    """Boxes of one function body; function literals are named and left to their own frames."""

    def __init__(self, title: str, first_key: int, mod: IRModule) -> None:
        self.frame = Frame(title)
        self._mod = mod
        self.next_key = first_key
        self._keys: dict[Expr, int] = {}
        self._types: dict[int, tuple[str, bool]] = {}
        self._wording = Wording()
        self._kernels: dict[Expr | None, Kernel] = {}

    def build(self, fn: Function) -> dict[Function, str]:
        """Fill the frame; the function literals found with their names, in post-order."""
        attrs = ", ".join(f"{k}={v}" for k, v in fn.attrs.items())
        if attrs:
            self.frame.title += f" [{attrs}]"
        for param in fn.params:
            self._add_var(param, "parameter")
        literals: dict[Function, str] = {}
        let_values: dict[Expr, Expr] = {}
        for node in _scope_post_order(fn.body, let_values):
            if isinstance(node, Function) and node.has_nonzero_attr("Primitive"):
                self._kernels[node] = kernel_of(node)
                self._wording.name(node, self._kernels[node].name)
            elif isinstance(node, Function):
                literals[node] = f"fn{len(literals)}"
                self._wording.name(node, literals[node])
            elif isinstance(node, Let):
                self._stand_for(node, node.body)
            elif isinstance(node, Var):
                if let_values.get(node) in self._kernels:
                    self._kernels[node] = self._kernels[let_values[node]]
                    self._wording.name(node, self._kernels[node].name)
                elif node in let_values:
                    self._stand_for(node, let_values[node])
                else:
                    self._add_var(node, "variable")
            elif not isinstance(node, (Constant, GlobalVar, Op)):
                self._add_node(node)
        return literals

    def _stand_for(self, node: Expr, value: Expr) -> None:
        """A let, or the variable it binds, has no box: it is the box of its value."""
        if value in self._keys:
            self._keys[node] = self._keys[value]
        self._wording.name(node, self._wording.text_of_operand(value))

    def _add_var(self, var: Var, role: str) -> None:
        if var in self._keys:
            return
        ty = var.checked_type_or_none or var.type_annotation
        title = f"%{var.name_hint}"
        self._wording.name(var, title)
        detail = {"text": f"{title}: {type_text(ty)}", "role": role, "type": type_text(ty)}
        self._put(var, title, ty, Kind.INPUT, detail)

    def _add_node(self, node: Expr) -> None:
        ty = node.checked_type_or_none
        name = self._wording.number(node)
        detail = details_of(node, f"{name} = {self._wording.text(node)}")
        title = box_title(node)
        kernel = None
        if isinstance(node, Call):
            kernel = self._kernels.get(node.op) or lowered_kernel(node, self._mod)
            if kernel is not None and (given := kernel.constants_of(node)):
                detail["constants"] = given
        if kernel is not None:
            if kernel.runs_on:
                title = f"{kernel.name} on {kernel.runs_on}"
            else:
                title = kernel.name
            if kernel.loops:
                detail["loops"] = kernel.loops
        key = self._put(node, f"{name}  {title}", ty, kind_of(node), detail, kernel)
        labels = _operand_labels(node)
        for operand, label in zip(shown_operands(node), labels):
            if operand not in self._keys:
                continue
            source = self._keys[operand]
            text, quantized = self._types[source]
            full = f"{label}: {text}" if label else text
            self.frame.edges.append(Edge(source, key, full, quantized))

    def _put(
        self,
        node: Expr,
        title: str,
        ty: Type | None,
        kind: Kind,
        detail: dict[str, str],
        kernel: Kernel | None = None,
    ) -> int:
        key = self.next_key
        self.next_key += 1
        self._keys[node] = key
        if ty:
            quantized = any(t.dtype in QUANTIZED_DTYPES for t in tensor_fields(ty))
        else:
            quantized = False
        self._types[key] = (type_text(ty), quantized)
        rows = () if kernel is None else kernel.rows
        self.frame.boxes.append(Box(key, title, type_text(ty), kind, detail, rows))
        return key


def kind_of(node: Expr) -> Kind:
    """The kind of a box, from the operator and the dtype of its (first) result."""
    if isinstance(node, Call) and isinstance(node.op, Op) and node.op.name == SIMULATED:
        return Kind.SIMULATED
    ty = node.checked_type_or_none
    fields: list[TensorType] = tensor_fields(ty) if ty is not None else []
    if not fields:
        return Kind.OTHER
    dtype = fields[0].dtype
    if dtype in QUANTIZED_DTYPES:
        return Kind.QUANTIZED
    if dtype in ACCUMULATOR_DTYPES:
        return Kind.ACCUMULATOR
    if dtype.startswith("float"):
        return Kind.FLOAT
    return Kind.OTHER


def _scope_post_order(root: Expr, let_values: dict[Expr, Expr]) -> Iterator[Expr]:
    """Nodes of one scope, operands first; a function literal is yielded but not entered.

    ``let_values`` is filled with the value of every let variable before a use of it is yielded.
    """

    def operands(node: Expr) -> Sequence[Expr]:
        if isinstance(node, Function):
            return ()
        if isinstance(node, Let):
            let_values[node.var] = node.value
            return (node.value, node.body)
        return shown_operands(node)

    return post_order(root, operands)


def _operand_labels(node: Expr) -> tuple[str, ...]:
    """Name the role of each operand for its user, where the order does not say it."""
    if isinstance(node, If):
        return ("if", "then", "else")
    if isinstance(node, Match):
        return ("match", *("clause" for _ in node.clauses))
    if isinstance(node, Tuple):
        return tuple(f".{i}" for i in range(len(node.fields)))
    return ("",) * len(shown_operands(node))


@dataclass(frozen=True, slots=True)
class Kernel:
    """A primitive function as its box shows it.

    Attributes:
        name: its symbol, the first ONNX node that it computes, or "kernel".
        runs_on: the external compiler, or "".
        rows: its operators in order, on hardware each behind its unit.
        loops: text of a lowered function, "" where there is none.
        params: names of its parameters, as the details use them.
    """

    name: str
    runs_on: str
    rows: tuple[Row, ...]
    loops: str = ""
    params: tuple[str, ...] = ()

    def constants_of(self, call: Call) -> str:
        """The parameters that a call binds to constants, with their types, one a line."""
        bound = zip(self.params, call.args)
        types = [
            (name, type_text(arg.checked_type)) for name, arg in bound if isinstance(arg, Constant)
        ]
        return "\n".join(f"{name}: {shown}" for name, shown in types)


def lowered_kernel(call: Call, mod: IRModule) -> Kernel | None:
    """Return the content of the box of a ``call_lowered``; None for any other call."""
    if not is_lowered_call(call) or not isinstance(call.args[0], GlobalVar):
        return None
    name = call.args[0].name_hint
    metadata = getattr(call.attrs, "metadata", {})
    source = metadata.get("relay_attrs", {})
    if not mod.contains(name):
        return Kernel(f"@{name}", str(source.get("Compiler", "")), ())
    callee = mod[name]
    if isinstance(callee, LoweredFunction):
        loops = callee.definition(name, lambda array: f"<{array.size} numbers>")
        return Kernel(f"@{name}", str(callee.attrs.get("target", "")), (), loops)
    assert isinstance(callee, Function)
    return replace(kernel_of(callee, source), name=f"@{name}")


def shown_operands(node: Expr) -> tuple[Expr, ...]:
    """Operands as they are drawn: a lowered function's arguments, not the tuple around them."""
    if is_lowered_call(node):
        return node.operands()[2].operands()
    return node.operands()


def kernel_of(function: Function, attrs: Mapping[str, Any] | None = None) -> Kernel:
    """The rows of the box of a call of ``function``; ``attrs``: the attributes from fusion."""
    attrs = function.attrs if attrs is None else attrs
    units = list(zip(attrs.get("hdfg_stages", ()), attrs.get("hdfg_ops", ())))
    rows: list[Row] = []
    wording = Wording()
    for param in function.params:
        wording.name(param, f"%{param.name_hint}")
    place = 0
    for node in nodes_of(function):
        if not isinstance(node, (Call, Tuple, TupleGetItem)):
            continue
        words = f"{wording.number(node)} = {wording.text(node)}"
        if not isinstance(node, Call) or not isinstance(node.op, Op):
            continue
        row = f"{box_title(node)}  {type_text(node.checked_type_or_none)}"
        if place < len(units) and node.op.name == units[place][1]:
            row = f"{units[place][0]}: {row}"
            place += 1
        rows.append((row, details_of(node, words)))
    sources = (name for node in nodes_of(function) for name in onnx_nodes(node.span))
    name = str(attrs.get("global_symbol") or next(sources, "kernel"))
    return Kernel(
        name,
        str(attrs.get("Compiler", "")),
        tuple(rows),
        params=tuple(f"%{param.name_hint}" for param in function.params),
    )
