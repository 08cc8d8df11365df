"""Check the joints of the three parts in @main: what the core is given, and what the caller gets.

    let %a = @quantize_inputs(%x, %y);      every parameter of @main, in order
    let %b = @quantized_main(%a.0, %a.1);   every result of quantize_inputs, once, in order
    let %c = @dequantize_outputs(%b);       every result of quantized_main, once, in order
    (%c.0, %x)                              every result of dequantize_outputs, once, in order

Between the results of dequantize_outputs, @main may return parameters and constants as they are.
The module attribute ``passthrough`` declares each: {"1": "input:x"} says that output 1 is the
parameter %x, {"1": "constant"} that output 1 is a constant. Nothing else may stand in @main.

The check reads @main itself and not ``compiler/ir/dataflow.py``, which the exporters read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.module import IRModule
from compiler.ir.ty import TupleType, Type
from compiler.ir.walk import nodes_of
from compiler.ranges.finding import Finding

PREFIX = "quantize_inputs"
CORE = "quantized_main"
SUFFIX = "dequantize_outputs"
PASSTHROUGH = "passthrough"
"""The module attribute that declares outputs which are parameters or constants."""

_INPUT = "input"
_CONSTANT = "constant"
_MAX_WIRES = 1 << 16

Wire = tuple[str, int]
"""One tensor in @main: ("input", 1), ("constant", 0), or result k of a part, ("quantized_main", k).
A value in @main is a list of wires, those of a tuple from left to right."""


def check_wiring(mod: IRModule) -> tuple[Finding, ...]:
    """Name the places where @main does more than join the three parts.

    Args:
        mod: typed, with the three parts and main.
    """
    main = mod["main"]
    findings = tuple(_foreign(main))
    if findings:
        return findings
    try:
        given, returned = _trace(main)
        return tuple(_compare(mod, main, given, returned))
    except _Untraceable as error:
        return (Finding("wiring", "@main", str(error)),)


def passed_through(mod: IRModule) -> tuple[str, ...]:
    """One sentence for every output that is not computed, as ``check_wiring`` has checked it."""
    names = _names(mod["main"])
    found: list[str] = []
    for key, source in mod.attrs.get(PASSTHROUGH, {}).items():
        what = "a constant"
        if source != _CONSTANT:
            name = source.removeprefix("input:")
            what = f"input {names.index(name)} (%{name})"
        found.append(f"output {key} is {what}, copied; not computed")
    return tuple(found)


class _Untraceable(Exception):
    """A value of @main cannot be followed to where it comes from."""


def _foreign(main: Function) -> Iterator[Finding]:
    """Nodes that have no place in @main, and calls other than one of each part."""
    called: list[str] = []
    for node in nodes_of(main):
        if isinstance(node, Call) and isinstance(node.op, GlobalVar):
            called.append(node.op.name_hint)
        elif not isinstance(node, (Var, Let, Tuple, TupleGetItem, GlobalVar, Constant)):
            yield Finding("wiring", f"@main, {describe(node)}", "stands outside the three parts")
    if sorted(called) != sorted((PREFIX, CORE, SUFFIX)):
        calls = ", ".join(f"@{name}" for name in called) or "nothing"
        wanted = ", ".join(f"@{name}" for name in (PREFIX, CORE, SUFFIX))
        yield Finding("wiring", "@main", f"calls {calls} instead of {wanted}")


def _trace(main: Function) -> tuple[dict[str, list[Wire]], list[Wire]]:
    """(the arguments of each part that is reached, the results of @main), as flat wires.

    Raises:
        _Untraceable: a variable is free, bound twice, or used in its own value.
    """
    bound: dict[Expr, Expr] = {}
    for node in nodes_of(main):
        if isinstance(node, Let):
            if node.var in bound or node.var in main.params:
                raise _Untraceable(f"binds %{node.var.name_hint} twice")
            bound[node.var] = node.value
    wires: dict[Expr, list[Wire]] = {}
    count = 0
    for param in main.params:
        size = _size(param.checked_type)
        wires[param] = [(_INPUT, count + place) for place in range(size)]
        count += size
    given: dict[str, list[Wire]] = {}
    opened: set[Expr] = set()
    stack = [main.body]
    while stack:
        node = stack[-1]
        reads = [] if node in wires else _reads(node, bound)
        missing = [read for read in reads if read not in wires]
        if missing and node in opened:
            if isinstance(node, Var):
                name = node.name_hint
            else:
                name = describe(node)
            raise _Untraceable(f"%{name} is used before it is bound")
        if missing:
            opened.add(node)
            stack.extend(missing)
            continue
        stack.pop()
        if node not in wires:
            wires[node] = _wire(node, [wires[read] for read in reads])
            if isinstance(node, Call):
                assert isinstance(node.op, GlobalVar)
                given[node.op.name_hint] = _joined(wires[arg] for arg in node.args)
    return given, wires[main.body]


def _reads(node: Expr, bound: Mapping[Expr, Expr]) -> Sequence[Expr]:
    """Return the nodes that the value of a node is made of; a let is its body, a variable its
    value."""
    if isinstance(node, Let):
        return (node.body,)
    if isinstance(node, Var):
        if node not in bound:
            raise _Untraceable(f"%{node.name_hint} is used before it is bound")
        return (bound[node],)
    if isinstance(node, Call):
        return node.args
    return node.operands()


def _wire(node: Expr, read: list[list[Wire]]) -> list[Wire]:
    if isinstance(node, Call):
        assert isinstance(node.op, GlobalVar)
        return [(node.op.name_hint, place) for place in range(_size(node.checked_type))]
    if isinstance(node, Constant):
        return [(_CONSTANT, 0)]
    if isinstance(node, Tuple):
        return _joined(read)
    if isinstance(node, TupleGetItem):
        whole = node.tuple.checked_type
        assert isinstance(whole, TupleType)
        begin = sum(map(_size, whole.fields[: node.index]))
        return read[0][begin : begin + _size(whole.fields[node.index])]
    return read[0]


def _joined(parts: Iterable[list[Wire]]) -> list[Wire]:
    found: list[Wire] = []
    for part in parts:
        found += part
        _check_count(len(found))
    return found


def _check_count(tensors: int) -> None:
    # Pairs of pairs share their fields, so a few lines can hold more tensors than memory.
    if tensors > _MAX_WIRES:
        raise _Untraceable(f"handles tuples of more than {_MAX_WIRES} tensors")


def _compare(
    mod: IRModule, main: Function, given: Mapping[str, list[Wire]], returned: list[Wire]
) -> Iterator[Finding]:
    """Every part against the results of the part before it, the outputs against the last part."""
    names = _names(main)
    source = _INPUT
    count = len(names)
    for part in (PREFIX, CORE, SUFFIX):
        if part not in given:
            yield Finding("wiring", "@main", f"@{part} is called, and its result is not used")
            return
        said = f"@{part} is given {{}} as argument {{}}"
        yield from _in_order(names, said, given[part], source, count)
        source = part
        count = _size(mod[part].checked_type.ret_type)
    declared = mod.attrs.get(PASSTHROUGH)
    computed = list(enumerate(returned))
    if declared is not None:
        problems = list(_check_declared(names, declared, returned))
        yield from (Finding("wiring", PASSTHROUGH, problem) for problem in problems)
        if problems:
            return
        computed = [(place, wire) for place, wire in computed if str(place) not in declared]
    for number, (place, wire) in enumerate(computed):
        if wire != (SUFFIX, number):
            shown = _shown(names, wire)
            yield Finding("wiring", "@main", f"returns {shown} as output {place}, {_UNDECLARED}")
            return
    if len(computed) != count:
        what = f"returns {len(computed)} of the {count} results of @{SUFFIX}"
        yield Finding("wiring", "@main", what)


_UNDECLARED = f"neither the next result of @{SUFFIX} nor declared by the attribute {PASSTHROUGH}"


def _in_order(
    names: Sequence[str], said: str, given: Sequence[Wire], source: str, count: int
) -> Iterator[Finding]:
    for number, wire in enumerate(given):
        if wire != (source, number):
            if number < count:
                wanted = _shown(names, (source, number))
            else:
                wanted = "nothing"
            what = f"{said.format(_shown(names, wire), number)} instead of {wanted}"
            yield Finding("wiring", "@main", what)
            return
    if len(given) != count:
        what = said.format(f"{len(given)} of {count} values", len(given))
        yield Finding("wiring", "@main", what)


def _check_declared(names: Sequence[str], declared: Any, returned: Sequence[Wire]) -> Iterator[str]:
    """Explain where the attribute is malformed, or @main returns something else there."""
    if not isinstance(declared, Mapping) or not declared:
        yield "is no mapping from outputs to what they copy"
        return
    legal = {str(place): wire for place, wire in enumerate(returned)}
    for key, source in declared.items():
        if key not in legal:
            yield f"{key!r} names no output; @main has {len(returned)}, counted from 0"
        elif source == _CONSTANT:
            if legal[key][0] != _CONSTANT:
                yield _otherwise(names, key, legal[key], source)
        elif not isinstance(source, str) or not source.startswith("input:"):
            yield f'{source!r} is neither "input:NAME" nor "constant"'
        else:
            name = source.removeprefix("input:")
            if names.count(name) != 1:
                yield f"@main has no one parameter %{name}, which output {key} is said to be"
            elif legal[key] != (_INPUT, names.index(name)):
                yield _otherwise(names, key, legal[key], source)


def _otherwise(names: Sequence[str], key: str, wire: Wire, source: str) -> str:
    return f"@main returns {_shown(names, wire)} as output {key}, declared is {source}"


def _shown(names: Sequence[str], wire: Wire) -> str:
    source, number = wire
    if source == _INPUT:
        if number < len(names):
            return f"%{names[number]}"
        return f"input {number}"
    if source == _CONSTANT:
        return "a constant"
    return f"result {number} of @{source}"


def _names(main: Function) -> list[str]:
    """Name every tensor that @main is given: %x, and %x.0, %x.1, … where the parameter is a
    tuple."""
    names: list[str] = []
    for param in main.params:
        name = param.name_hint
        size = _size(param.checked_type)
        whole = not isinstance(param.checked_type, TupleType)
        names += [name] if whole else [f"{name}.{place}" for place in range(size)]
    return names


def _size(ty: Type) -> int:
    """Count the tensors of a type."""
    count = 0
    stack = [ty]
    while stack:
        top = stack.pop()
        if isinstance(top, TupleType):
            stack.extend(top.fields)
        else:
            count += 1
        _check_count(count + len(stack))
    return count
