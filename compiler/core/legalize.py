"""words_of: an integer operator as the words that compute it.

    nn.integer_softmax(x, table)      max(x), subtract, take, sum, ..., floor_divide, cast

Executors and analyses walk a flow (``ir/dataflow.py``) operator by operator, and each operator word
by word, so values of the module keep their identity.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

from compiler.core.words import FBody, Words
from compiler.ir.dataflow import Step, Value
from compiler.ir.ty import is_integer

_DEEPEST: Final = 8
"""Bodies within bodies; more is a body that holds itself."""


def is_integral(step: Step) -> bool:
    """Return whether a step reads and writes integers and bools only."""
    return all(is_whole(value) for value in (*step.args, *step.results))


def is_whole(value: Value) -> bool:
    """Return whether a value is integers or bools."""
    return is_integer(value.type.dtype) or value.type.dtype == "bool"


def words_of(
    step: Step, kept: Container[str] = (), floats: bool = False
) -> tuple[list[Step], list[Value]]:
    """The steps that compute an operator in words, and its results: a word stays as it is.

    Args:
        step: one that touches floats stays as it is, too, unless ``floats``: its body moves them.
        kept: names of operators that stay as they are.
    """
    same: dict[Value, Value] = {}
    steps: list[Step] = []
    waiting = [(step, 0)]
    while waiting:
        outer, depth = waiting.pop()
        outer.args = tuple(_last(arg, same) for arg in outer.args)
        whole = is_integral(outer) or (floats and outer is step)
        if whole and outer.name not in kept:
            rule = FBody.get(outer.op)
        else:
            rule = None
        if rule is None:
            found = None
        else:
            found = rule(outer, words := Words(outer))
        if found is None:
            steps.append(outer)
            continue
        assert depth < _DEEPEST, f"the body of {outer.name} holds itself"
        results = [found] if isinstance(found, Value) else list(found)
        for made, value in zip(results, outer.results, strict=True):
            assert made.type == value.type, f"the body of {outer.name} gives {made.type}"
            same[value] = made
        waiting += [(each, depth + 1) for each in reversed(words.steps)]
        forget([outer], step)
    return steps, [_last(value, same) for value in step.results]


def _last(value: Value, same: dict[Value, Value]) -> Value:
    """Return the value that replaces a value, body by body."""
    while value in same:
        value = same[value]
    return value


def forget(words: Iterable[Step], step: Step) -> None:
    """Words lose their values when all has been read: both know each other, and so reference
    counts alone would not free them."""
    for word in words:
        if word is not step:
            word.args = word.results = ()
