"""legalize: a flow of integer operators as a flow of words.

    %1 = nn.integer_softmax(%0, table)      %1.a = max(%0) ... %1 = cast(%1.k, int32)

Results keep their identity: what knew a value of the flow finds it again. Steps that touch floats,
as in the conversions around the core, stay as they are.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Dataflow, Step, Value
from compiler.ir.ty import is_integer

_DEEPEST: Final = 8
"""Bodies within bodies; more is a body that holds itself."""


def is_integral(step: Step) -> bool:
    """Whether a step reads and writes integers and bools only."""
    return all(_whole(value) for value in (*step.args, *step.results))


def _whole(value: Value) -> bool:
    return is_integer(value.type.dtype) or value.type.dtype == "bool"


def body_of(step: Step) -> tuple[list[Step], list[Value]] | None:
    """The steps of an operator's body and its results; None for a word, and for what has no body.

    Args:
        step: integral.
    """
    rule = FBody.get(step.op)
    words = Words(step)
    found = None if rule is None else rule(step, words)
    if found is None:
        return None
    results = [found] if isinstance(found, Value) else list(found)
    for made, value in zip(results, step.results, strict=True):
        assert made.type == value.type, f"the body of {step.name} gives {made.type}"
    return words.steps, results


def legalize(flow: Dataflow, kept: Container[str] = ()) -> Dataflow:
    """The same flow in words; its steps and values are changed in place.

    Args:
        flow: of typed operators; it is not to be used again.
        kept: names of operators that stay as they are.
    """
    values = {*flow.inputs, *(v for step in flow.steps for v in (*step.args, *step.results))}
    for value in values:
        value.users = [user for user in value.users if not user.results]  # the outputs
    same: dict[Value, Value] = {}
    steps: list[Step] = []
    waiting = [(step, 0) for step in reversed(flow.steps)]
    while waiting:
        step, depth = waiting.pop()
        step.args = tuple(same.get(arg, arg) for arg in step.args)
        body = body_of(step) if step.name not in kept and is_integral(step) else None
        if body is None:
            for arg in step.args:
                arg.users.append(step)
            steps.append(step)
            continue
        assert depth < _DEEPEST, f"the body of {step.name} holds itself"
        inner, results = body
        written = set(inner)
        for made, value in zip(results, step.results):
            if made.producer in written:
                same[made] = value
                _give(made.producer, made.index, value)
            else:
                same[value] = made
                made.users += value.users
        waiting += [(each, depth + 1) for each in reversed(inner)]
    return Dataflow(flow.inputs, tuple(steps), tuple(same.get(v, v) for v in flow.outputs))


def _give(step: Step, index: int, value: Value) -> None:
    """Let a step compute a value that another one was to compute."""
    value.producer, value.index = step, index
    step.results = (*step.results[:index], value, *step.results[index + 1 :])
