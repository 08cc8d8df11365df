"""Relay text 0.0.5 of expressions, types and modules; ``parser.parse`` reads it back.

The same object prints to the same bytes in every process. Source: Relay v0.10, its text printer.
"""

from __future__ import annotations

from typing import Any

from compiler.errors import CompilerError
from compiler.ir.adt import TypeData
from compiler.ir.attrs import Attrs, DictAttrs
from compiler.ir.expr import Expr, Function, GlobalVar, text_for_people
from compiler.ir.garbage import collector_rests
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.module import IRModule
from compiler.ir.text import literals
from compiler.ir.text.metadata import ExternalData, MetadataWriter
from compiler.ir.text.printer_body import BodyPrinter, ScalarUses, TypeText, value_text
from compiler.ir.ty import Type

VERSION = "0.0.5"
HEADER = f'#[version = "{VERSION}"]'


@collector_rests
def text(
    obj: IRModule | Expr | Type | Any,
    show_types: bool = True,
    show_meta: bool = True,
    external_data: ExternalData | None = None,
    show_spans: bool = True,
    brief_constants: bool = False,
) -> str:
    """Relay text.

    Args:
        obj: a module (with version line), an expression, a type, or attributes.
        show_types: add ``/* ty=… */`` where types are known.
        show_meta: append the metadata section; without it a text that refers to metadata is for
            people and does not parse.
        external_data: an .npz path that takes arrays above 1 MiB, or a mapping that takes all.
        show_spans: name the source of each node beside its type.
        brief_constants: describe the constants of the metadata section (dtype, shape, hash, first
            values) instead of writing them; such a text is for people and does not parse.

    Raises:
        CompilerError: the object has no text.
    """
    meta = MetadataWriter(external_data, brief_constants)
    if isinstance(obj, IRModule):
        shown = _module(obj, meta, show_types, show_spans)
    elif isinstance(obj, Expr):
        shown = BodyPrinter(obj, meta, show_types, show_spans).expression(obj)
    elif isinstance(obj, TypeData):
        shown = _type_definition(obj)
    elif isinstance(obj, Type):
        shown = TypeText().text(obj)
    elif isinstance(obj, (Attrs, DictAttrs)):
        shown = ", ".join(f"{literals.key(k)}={value_text(v, meta)}" for k, v in obj.items())
    else:
        raise CompilerError(
            f"{type(obj).__name__} has no Relay text",
            fix="give an IRModule, an expression, a type or attributes",
        )
    section = meta.finish() if show_meta else ""
    if section:
        return f"{shown.rstrip()}\n\n{section}"
    return shown


@text_for_people.register(IRModule)
@text_for_people.register(Expr)
def _text_for_people(obj: IRModule | Expr) -> str:
    try:
        return text(obj, show_spans=False, brief_constants=True)
    except CompilerError:
        return repr(obj)


def astext(obj: Any, show_types: bool = True) -> str:
    """Text of any object, with the version line and the metadata."""
    shown = text(obj, show_types)
    if isinstance(obj, IRModule):
        return shown
    return f"{HEADER}\n{shown}"


def _module(mod: IRModule, meta: MetadataWriter, show_types: bool, show_spans: bool) -> str:
    parts = [_type_definition(data) for data in mod.type_definitions.values()]
    functions = mod.functions
    lowered = {gv: fn for gv, fn in functions.items() if isinstance(fn, LoweredFunction)}
    defined: dict[GlobalVar, Function] = {}
    for gv, fn in functions.items():
        if gv in lowered:
            continue
        if not isinstance(fn, Function):
            raise CompilerError(
                f"@{gv.name_hint} is a {type(fn).__name__}, which has no Relay text"
            )
        defined[gv] = fn
    uses = ScalarUses(*defined.values())  # a scalar may be shared between definitions
    for gv, fn in defined.items():
        printer = BodyPrinter(fn, meta, show_types, show_spans, uses)
        parts.append(printer.definition(gv.name_hint, fn))
    for gv, fn in lowered.items():
        parts.append(fn.definition(literals.name(gv.name_hint), meta.array))
    # Runtime modules of other compilers have no text.
    shown = {k: v for k, v in mod.attrs.items() if k != "external_mods"}
    if shown:
        items = [f"  {literals.string(k)}={value_text(v, meta)}," for k, v in shown.items()]
        parts.append("\n".join(["attributes {", *items, "}"]))
    return f"{HEADER}\n" + "\n\n".join(parts) + "\n"


def _type_definition(data: TypeData) -> str:
    types = TypeText()
    head = f"type {literals.name(data.header.name_hint)}{types.parameters(data.type_vars)} {{"
    lines = [head]
    for con in data.constructors:
        inputs = ", ".join(types.text(t) for t in con.inputs)
        shown = literals.name(con.name_hint)
        lines.append(f"  {shown}({inputs})," if con.inputs else f"  {shown},")
    return "\n".join([*lines, "}"])
