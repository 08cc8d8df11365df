"""The body of every requantization in its place."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.core.legalize import forget
from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import mentions, nodes_of
from compiler.ops.qnn.requantize import OP


def inlined_module(mod: IRModule) -> IRModule:
    """A typed module without requantizations: the calls of their bodies instead."""
    made = mod
    for var, function in mod.functions.items():
        if isinstance(function, Function) and mentions(function, (OP,)):
            made = made.with_function(var.name_hint, inlined(function))
    return mod if made is mod else infer_module(made)


def inlined(fn: Function) -> Function:
    """A typed function without requantizations."""
    if not mentions(fn, (OP,)):
        return fn

    def new_form(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        return _body(node, new) if is_op_call(node, OP) else None

    return fn.with_fields(body=rebuilt(nodes_of(fn), new_form)[fn.body])


def _body(call: Call, new: Mapping[Expr, Expr]) -> Expr | None:
    data, *vectors = call.args
    known = [Value(v.tensor_type, data=v.data) for v in vectors if isinstance(v, Constant)]
    assert isinstance(call.op, Op)
    step = Step(call.op, call.attrs, (Value(data.tensor_type), *known), span=call.span)
    step.results = (Value(call.tensor_type, step),)
    if len(known) < len(vectors):
        return None
    result = FBody.require(call.op)(step, words := Words(step))
    assert isinstance(result, Value)
    nodes: dict[Value, Expr] = {step.args[0]: new[data]}
    for word in words.steps:
        for arg in word.args:
            if arg.data is not None:
                nodes[arg] = Constant(arg.data)
        args = tuple(nodes[arg] for arg in word.args)
        nodes[word.result] = Call(word.op, args, word.attrs, span=call.span)
    forget((*words.steps, step), Step(call.op, None, ()))
    return nodes[result]
