"""Times of single steps."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.targets.engine.executor import EngineExecutor


def test_outputs_are_held_while_a_profile_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = relay.var("x", (64,), "int8")
    engine = EngineExecutor(relay.module(relay.op.cast(x, dtype="int32")))
    made: list[weakref.ref[Any]] = []
    held: list[bool] = []
    kernels, empty = engine.kernels, np.empty

    def known(*given: Any, **named: Any) -> Any:
        array = empty(*given, **named)
        made.append(weakref.ref(array))
        return array

    def run(*given: Any) -> None:
        held.append(any(ref() is not None and ref().shape == (64,) for ref in made))
        kernels(*given)

    monkeypatch.setattr(np, "empty", known)
    monkeypatch.setattr(engine, "kernels", run)
    assert engine.profile([np.ones(64, "int8")], rounds=2).shape
    assert held == [True, True]
