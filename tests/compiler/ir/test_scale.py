"""Graphs far deeper than the interpreter's stack (C-24, the part of the IR)."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import pytest

from compiler.ir.analysis import bind, free_vars, post_order, well_formed
from compiler.ir.blob import ModuleBlob
from compiler.ir.expr import Constant, Expr, Function, If, Let, Var, call_op
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import InferType
from compiler.ir.structural import structural_equal, structural_hash
from compiler.ir.text.printer import text
from compiler.ir.ty import TensorType


def chain() -> IRModule:
    x = Var("x", TensorType((2,)))
    z: Expr = x
    for _ in range(5_000):
        z = z + 1.0
    return IRModule({"main": Function((x,), z)})


def lets() -> IRModule:
    x = Var("x", TensorType((2,)))
    bindings, last = [], x
    for _ in range(2_500):
        var = Var("v")
        bindings.append((var, last + 1.0))
        last = var
    body: Expr = last
    for var, value in reversed(bindings):
        body = Let(var, value, body)
    return IRModule({"main": Function((x,), body)})


def branches() -> IRModule:
    x, c = Var("x", TensorType((2,))), Var("c", TensorType((), "bool"))
    z: Expr = x
    for _ in range(1_500):
        z = If(c, z + 1.0, x)
    return IRModule({"main": Function((c, x), z)})


@pytest.mark.parametrize("build", [chain, lets, branches])
def test_everything_in_the_ir_takes_deep_graphs(build: Callable[[], IRModule]) -> None:
    assert sys.getrecursionlimit() <= 1000
    mod, again = build(), build()
    typed = InferType()(mod)
    assert typed["main"].body.checked_type == TensorType((2,))
    assert InferType()(typed) is typed
    assert well_formed(typed) == []
    assert structural_equal(typed, again)
    assert structural_hash(typed) == structural_hash(again)
    assert len(text(typed)) > 100_000
    main = mod["main"]
    assert free_vars(main) == []
    bound = bind(main, {main.params[-1]: Constant(np.zeros(2, "float32"))})
    assert sum(1 for _ in post_order(bound)) >= 1_500
    assert structural_equal(ModuleBlob.pack(mod).unpack(), again)


def test_two_to_the_hundred_paths_are_a_hundred_nodes() -> None:
    x = Var("x", TensorType((2,)))
    y: Expr = x
    for _ in range(100):
        y = call_op("add", y, y)
    mod = InferType()(IRModule({"main": Function((x,), y)}))
    assert len(text(mod, show_types=False).splitlines()) == 103
    assert structural_equal(mod, mod)
    assert len(structural_hash(mod)) == 32
