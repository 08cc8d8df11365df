"""Loops opened and closed: the body of a scan among the operators around it, or as a function.

    closed                                          open
    scan(fn (%h, %x, %w) {                          %0 = scan.state(%h0, loop="a");
      %0 = add(nn.dense(%h, %w), %x);               %1 = scan.step(%xs, loop="a");
      (tanh(%0), tanh(%0))                          %2 = tanh(add(nn.dense(%0, %w), %1));
    }, (%h0,), (%xs,), (%w,))                       scan.end((%0,), (%2,), (%2,), loop="a")

Texts and executors have the closed form. Passes over a function read and rewrite the open one as
they do any other dataflow: what lies between the marks of a loop belongs to it, so what does not
depend on a step leaves the loop by itself. Lowered modules hold the body as a function: ``lifted``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

from compiler.errors import CompilerError, LoweringError
from compiler.ir.dataflow import SCAN, UNROLL_INNER
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    is_op_call,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt, substitute
from compiler.ir.ty import TupleType
from compiler.ir.walk import mentions, nodes_of, post_order

STATE = "scan.state"
STEP = "scan.step"
END = "scan.end"


def opened(mod: IRModule) -> IRModule:
    """``main`` with every scan open; the module itself where it has none.

    Raises:
        CompilerError: the body of a scan is no function literal.
    """
    main: Function = mod["main"]
    if not mentions(main, (SCAN,)):
        return mod
    names = map("loop_{}".format, count())

    def marked(call: Call, body: Function, *groups: Sequence[Expr]) -> Expr:
        return _marked(call, body, next(names), *groups)

    while _outermost(main):
        main = main.with_fields(body=_rewritten(main, marked))
        mod = infer_module(mod.with_function("main", main))
        main = mod["main"]
    return mod


def lifted(mod: IRModule) -> IRModule:
    """Every body of a scan as a function of the module; the module itself where it has none.

    Raises:
        LoweringError: a loop within a loop.
        CompilerError: the body of a scan is no function literal.
    """
    functions: dict[str, Function] = {}

    def called(call: Call, body: Function, *groups: Sequence[Expr]) -> Expr:
        if mentions(body, (SCAN,)):
            what = "a loop within a loop has no C form"
            raise LoweringError(what, fix=UNROLL_INNER, span=call.span)
        name = next(f"loop_{n}" for n in count(len(functions)) if f"loop_{n}" not in mod)
        functions[name] = body
        return call.with_fields(args=(GlobalVar(name), *(Tuple(tuple(group)) for group in groups)))

    for name, function in mod.functions.items():
        if isinstance(function, Function) and mentions(function, (SCAN,)):
            body = _rewritten(function, called)
            functions[name.name_hint] = function.with_fields(body=body)
    for key, made in functions.items():
        mod = mod.with_function(key, made)
    if functions:
        return infer_module(mod)
    return mod


def ends_of(main: Function) -> tuple[TupleGetItem, ...]:
    """A tensor of the end of each open loop: a function that returns values of a loop closes with
    them, ``closed``."""
    if not mentions(main, (END,)):
        return ()
    return tuple(TupleGetItem(node, 0) for node in nodes_of(main) if is_op_call(node, END))


def turns_of(main: Function) -> dict[Expr, int]:
    """Count the runs of each node of a function whose loops are open; O(edges)."""
    return {node: prod(lengths) for node, lengths in lengths_of(main).items()}


def lengths_of(main: Function) -> dict[Expr, tuple[int, ...]]:
    """The steps of each open loop that a node stands in, for all nodes; O(edges)."""
    if not mentions(main, (END,)):
        return dict.fromkeys(nodes_of(main), ())
    loops: dict[Expr, dict[str, int]] = {}
    for node in nodes_of(main):
        held = {name: n for child in node.operands() for name, n in loops[child].items()}
        if is_op_call(node, STATE, STEP):
            held[_attrs(node).loop] = _attrs(node).length
        elif is_op_call(node, END):
            del held[_attrs(node).loop]
        loops[node] = held
    return {node: tuple(held.values()) for node, held in loops.items()}


def read_by_loops(main: Function) -> set[Expr]:
    """Return the nodes that the steps and first states of open loops depend on; O(edges)."""
    found: set[Expr] = set()
    if mentions(main, (END,)):
        for node in reversed(nodes_of(main)):
            if is_op_call(node, STATE, STEP) or node in found:
                found.update(node.operands())
    return found


def looped(main: Function) -> set[Expr]:
    """Return the nodes that depend on the steps of an open loop, in it or behind it; O(edges)."""
    found: set[Expr] = set()
    if mentions(main, (END,)):
        for node in nodes_of(main):
            if is_op_call(node, STATE, STEP) or not found.isdisjoint(node.operands()):
                found.add(node)
    return found


def closed(mod: IRModule) -> IRModule:
    """``main`` with every open loop as one scan; the module itself where none is open.

    What is read of a loop from outside, but by its end, becomes an output of all its steps, one
    behind the other along the first axis.

    Raises:
        CompilerError: marks do not belong together.
    """
    main: Function = mod["main"]
    while mentions(main, (END, STATE, STEP)):
        main = _closed(mod["main"])
        mod = infer_module(mod.with_function("main", main))
        main = mod["main"]
    return mod


def _attrs(call: Expr) -> Any:
    assert isinstance(call, Call)
    return call.attrs


def _call(name: str, *args: Expr, **attrs: Any) -> Call:
    op = Op.get(name)
    assert op.attrs_type is not None
    return Call(op, args, op.attrs_type.make(**attrs))


def _below(node: Expr) -> Sequence[Expr]:
    """Operands, but the body of a scan."""
    if is_op_call(node, SCAN):
        return node.operands()[2:]
    return node.operands()


def _outermost(main: Function) -> list[Call]:
    """The scans of a function, without those in bodies of others."""
    nodes = post_order(main.body, _below)
    return [node for node in nodes if isinstance(node, Call) and is_op_call(node, SCAN)]


def _rewritten(main: Function, made: Any) -> Expr:
    """The body of ``main``, each of its outermost scans as ``made`` says."""

    def replaced(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call) or not is_op_call(node, SCAN):
            return None
        body = node.args[0]
        if not isinstance(body, Function):
            raise CompilerError("the body of a scan is no function literal", span=node.span)
        groups = [_fields(new[arg], arg) for arg in node.args[1:]]
        result: Expr = made(node, body, *groups)
        return result

    return rebuilt(post_order(main.body, _below), replaced)[main.body]


def _fields(value: Expr, typed: Expr) -> tuple[Expr, ...]:
    """The fields of a tuple that has the type of ``typed``."""
    if isinstance(value, Tuple):
        return value.fields
    ty = typed.checked_type
    assert isinstance(ty, TupleType)
    return tuple(TupleGetItem(value, place) for place in range(len(ty.fields)))


def _marked(
    call: Call,
    body: Function,
    loop: str,
    states: Sequence[Expr],
    inputs: Sequence[Expr],
    constants: Sequence[Expr],
) -> Expr:
    """A scan as the operators of its body, with marks around them."""
    attrs = _attrs(call)
    mark: dict[str, Any] = {"loop": loop, "length": attrs.length}
    held = tuple(_call(STATE, one, **mark) for one in states)
    read = [
        _call(STEP, one, **mark, reverse=(back,))
        for one, back in zip(inputs, attrs.reverse_inputs, strict=True)
    ]
    given = dict(zip(body.params, (*held, *read, *constants), strict=True))
    made = substitute(Tuple(_fields(body.body, body.body)), given)
    assert isinstance(made, Tuple)
    following = made.fields[: len(held)]
    outputs = made.fields[len(held) :]
    end = _call(
        END, Tuple(held), Tuple(following), Tuple(outputs), **mark, reverse=attrs.reverse_outputs
    )
    return end.with_fields(span=call.span)


def _closed(main: Function) -> Function:
    """The function with the first of its loops closed; it holds no other."""
    nodes = nodes_of(main)
    end = next((node for node in nodes if is_op_call(node, END)), None)
    if end is None:
        raise CompilerError("a step of a loop is read, but not the end of the loop")
    assert isinstance(end, Call)
    loop = _attrs(end).loop
    inside: set[Expr] = set()
    marks: list[Call] = []
    for node in nodes:
        if isinstance(node, Call) and is_op_call(node, STATE, STEP) and _attrs(node).loop == loop:
            marks.append(node)
            inside.add(node)
        elif node is not end and not inside.isdisjoint(node.operands()):
            inside.add(node)
    if isinstance(main.body, Tuple):
        inside.discard(main.body)
    states = [_mark_of(state) for state in end.args[0].operands()]
    inputs = [mark for mark in marks if is_op_call(mark, STEP)]
    if any(mark not in inside for mark in states):
        raise CompilerError("the states of a loop are not its own", span=end.span)
    results = (*end.args[1].operands(), *end.args[2].operands())
    constants = _read_from_outside(nodes, inside, {*states, *inputs}, results)
    escaped = _escaped(main, nodes, inside, end)
    arguments = (*states, *inputs, *constants)
    kinds: list[tuple[str, Sequence[Expr]]] = [("h", states), ("x", inputs), ("w", constants)]
    params = tuple(
        Var(f"{kind}_{place}", group[place].checked_type, quant=group[place].quant)
        for kind, group in kinds
        for place in range(len(group))
    )
    body = substitute(Tuple((*results, *escaped)), dict(zip(arguments, params)))
    groups = [tuple(mark.args[0] for mark in states), tuple(mark.args[0] for mark in inputs)]
    scan = _call(
        SCAN,
        Function(params, body),
        *(Tuple(group) for group in (*groups, tuple(constants))),
        length=_attrs(end).length,
        reverse_inputs=[_attrs(mark).reverse[0] for mark in inputs],
        reverse_outputs=[*_attrs(end).reverse, *(0 for _ in escaped)],
    ).with_fields(span=end.span)
    ty = end.checked_type
    assert isinstance(ty, TupleType)
    new: dict[Expr, Expr] = {end: scan}
    for place, value in enumerate(escaped):
        field = TupleGetItem(scan, len(ty.fields) + place)
        length, *rest = (_attrs(end).length, *value.tensor_type.concrete_shape)
        shape = (length * rest[0], *rest[1:]) if rest else (length,)
        new[value] = _call("reshape", field, newshape=shape)
    return main.with_fields(body=substitute(main.body, new))


def _mark_of(state: Expr) -> Call:
    """The mark of a state, which passes may have put quantize points behind."""
    while isinstance(state, Call) and not is_op_call(state, STATE):
        state = state.args[0]
    assert isinstance(state, Call)
    return state


def _read_from_outside(
    nodes: Sequence[Expr], inside: set[Expr], marks: set[Call], results: Sequence[Expr]
) -> list[Expr]:
    """Values that the operators of a loop read and no step changes; tuples join the loop."""
    found: dict[Expr, None] = {}
    readers = (node for node in nodes if node in inside and node not in marks)
    waiting = [*results[::-1], *(child for node in readers for child in node.operands()[::-1])]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tuple) and node not in inside:
            waiting += node.fields[::-1]
        elif node not in inside and not isinstance(node, (Constant, Function, GlobalVar, Op)):
            found[node] = None
    return list(found)


def _escaped(main: Function, nodes: Sequence[Expr], inside: set[Expr], end: Call) -> list[Expr]:
    """Values of a loop that are read behind it."""
    found: dict[Expr, None] = {}
    # The tuples of the end stand in the loop, where all they hold depends on its steps.
    for node in nodes:
        if node not in inside and node is not end and node not in end.args:
            found.update((child, None) for child in node.operands() if child in inside)
    if main.body in inside:
        found[main.body] = None
    return list(found)
