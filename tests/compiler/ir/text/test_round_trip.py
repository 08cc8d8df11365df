from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.ir.adt import RefCreate, RefRead
from compiler.ir.analysis import free_vars, well_formed
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    call_op,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.structural import assert_structural_equal
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.ir.ty import TensorType

VECTOR = TensorType((2,))


class Builder:
    """Random well-formed float vectors: nodes of outer scopes may be shared by inner ones."""

    def __init__(self, data: st.DataObject) -> None:
        self._draw = data.draw

    def pick(self, pool: list[Expr]) -> Expr:
        return pool[self._draw(st.integers(0, len(pool) - 1))]

    def scope(self, pool: list[Expr], depth: int) -> Expr:
        pool = list(pool)
        for _ in range(self._draw(st.integers(0, 3))):
            pool.append(self.node(pool, depth))
        if self._draw(st.booleans()):
            var = Var(self._draw(st.sampled_from(["x", "y", "a b"])))
            return Let(var, self.node(pool, depth), self.scope([*pool, var], depth + 1))
        return self.node(pool, depth)

    def node(self, pool: list[Expr], depth: int) -> Expr:
        kind = self._draw(st.integers(0, 7 if depth < 3 else 3))
        a, b = self.pick(pool), self.pick(pool)
        if kind <= 1:
            return call_op("add", a, b)
        if kind == 2:
            return TupleGetItem(Tuple((a, b)), 1)
        if kind == 3:
            return RefRead(RefCreate(a))
        if kind == 4:
            cond = Constant(np.array(True))
            return If(cond, self.scope(pool, depth + 1), self.scope(pool, depth + 1))
        if kind == 5:
            param = Var("x", VECTOR)
            return Call(Function((param,), self.scope([*pool, param], depth + 1)), (a,))
        if kind == 6:
            return self.scope(pool, depth + 1)
        return call_op("nn.relu", a)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_well_formed_function_comes_back_from_its_text(data: st.DataObject) -> None:
    x, y = Var("x", VECTOR), Var("x", VECTOR)
    fn = Function((x, y), Builder(data).scope([x, y], 0))
    mod = IRModule({"main": fn})
    assert not well_formed(mod)
    assert not free_vars(fn)
    shown = text(mod)
    back = parse(shown)
    assert_structural_equal(back, mod)
    assert text(back) == shown
    assert_structural_equal(infer_module(back), infer_module(mod))
