"""Mended defects of the forms, put back one at a time, to see what finds them."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from compiler.targets.engine.planner import rules


@dataclass(frozen=True)
class Defect:
    """What a function did before it was mended.

    Attributes:
        module, function: where; ``Class.method`` of a class.
        before: the text of today -> what stood there; or the whole function.
    """

    module: str
    function: str
    before: Mapping[str, str] | Callable[..., Any]


@contextmanager
def put_back(defect: Defect) -> Iterator[None]:
    """The defect is there again; it fails where the text of today is another one."""
    module = import_module(defect.module)
    owner, _, name = defect.function.rpartition(".")
    if owner:
        with _method_put_back(vars(module), vars(module)[owner], name, defect):
            yield
        return
    whole, known = getattr(module, defect.function), dict(rules)
    if callable(defect.before):
        then = defect.before
    else:
        exec(_source(whole, defect), vars(module))
        then = getattr(module, defect.function)
        setattr(module, defect.function, whole)
    readers = [m for m in sys.modules.values() if vars(m).get(defect.function) is whole]
    for reader in readers:
        setattr(reader, defect.function, then)
    try:
        yield
    finally:
        for reader in readers:
            setattr(reader, defect.function, whole)
        rules.update(known)


def _source(whole: Callable[..., Any], defect: Defect) -> Any:
    source = textwrap.dedent(inspect.getsource(whole))
    assert isinstance(defect.before, Mapping)
    for now, before in defect.before.items():
        assert source.count(now) == 1, f"{defect.function} is written otherwise: {now}"
        source = source.replace(now, before)
    return compile(source, inspect.getfile(whole), "exec")


@contextmanager
def _method_put_back(
    scope: dict[str, Any], owner: Any, name: str, defect: Defect
) -> Iterator[None]:
    whole, made = getattr(owner, name), dict[str, Any]()
    exec(_source(whole, defect), scope, made)
    setattr(owner, name, made[name])
    try:
        yield
    finally:
        setattr(owner, name, whole)


def _largest_along(item: Any, axis: int | None) -> Any:
    """Without a look at the shape of the operand."""
    if axis is not None and item.view is None:
        if item.product is not None and item.product.channel_axis == axis:
            return np.maximum(np.abs(item.product.low), np.abs(item.product.high))
        if item.chain is not None and item.chain.op == "ADD":
            inner, added = item.chain.args
            if added.data is not None:
                return _largest_along(inner, axis) + np.abs(added.data.astype(np.int64)).reshape(-1)
    return np.array([max(abs(item.low), abs(item.high))])


ENGINE = "compiler.targets.engine"
_WHOLE = 'if shifted or (ties == "up" and powers.any() and bits(dtype) == 64):'
_DENSE = "out = dense_view(planner, step, item, stored, row_major=True)"
_WANTED = """planner.define(step, item)
    item.stored = stored
    out = item.view = planner.emitter.allocate(item)"""
_BATCH = Defect(f"{ENGINE}.windows", "reduce", {_DENSE: _WANTED})

DEFECTS: dict[str, Defect] = {
    "an unsigned value, shifted by all its bits": Defect(
        "compiler.ops.tensor.fixed_point_multiply",
        "multiplied_by",
        {"shift < least": "shift < -64"},
    ),
    "a power of two of int64 that int32 does not hold": Defect(
        f"{ENGINE}.rules", "rescale", {_WHOLE: "if False:"}
    ),
    "an average of a window of padding": Defect(
        f"{ENGINE}.windows", "pool", {"if count or not reached:": "if count:"}
    ),
    "ties along an axis that is not the channels'": Defect(
        f"{ENGINE}.rules", "largest_along", _largest_along
    ),
    "a mean of a batch in front of a window": _BATCH,
    "a sum of a batch in front of a window": _BATCH,
}
"""The case of ``inner_values`` that shows it -> the defect."""
