"""EtaExpand: kernels that are used as values get a closure, so that LowerTE meets calls only."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import assert_structural_equal, evaluate, lower, parse, transform
from compiler.ir.analysis import post_order
from compiler.ir.expr import is_op_call

KERNEL = "fn (%p: Tensor[(2, 5), float32], Primitive=1) -> Tensor[(2, 5), float32]"
HEAD = '#[version = "0.0.5"]\n'
MAIN = HEAD + "def @main(%x: Tensor[(2, 5), float32], %c: bool)"

BRANCHES = (
    f"{MAIN} {{ %0 = if (%c) {{ {KERNEL} {{ exp(%p) }} }} else {{ {KERNEL} {{ tanh(%p) }} }};"
    " %0(%x) }"
)
BOUND = (
    f"{MAIN} {{ let %f = {KERNEL} {{ exp(%p) }}; let %g = %f;"
    f" let %h = if (%c) {{ %f }} else {{ {KERNEL} {{ tanh(%p) }} }}; add(%h(%x), %g(%x)) }}"
)
FIELD = f"{MAIN} {{ %0 = ({KERNEL} {{ exp(%p) }}, %x); %0.0(%0.1) }}"
GLOBAL = (
    HEAD
    + "def @k(%p: Tensor[(2, 5), float32], Primitive=1) -> Tensor[(2, 5), float32] { exp(%p) }\n"
    + f"{MAIN.removeprefix(HEAD)} {{ %0 = if (%c) {{ @k }} else {{ @k }}; %0(%x) }}"
)
PROGRAMS = {"branches": BRANCHES, "let": BOUND, "field": FIELD, "global": GLOBAL}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("condition", [False, True])
def test_a_kernel_that_is_a_value_is_lowered_and_means_the_same(name: str, condition: bool) -> None:
    mod = parse(PROGRAMS[name])
    inputs = {"x": np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5), "c": condition}
    (wanted,) = evaluate(mod, inputs)
    expanded = transform.EtaExpand()(mod)
    np.testing.assert_array_equal(evaluate(expanded, inputs)[0], wanted)
    lowered = lower(mod, target="reference")
    main = lowered.mod["main"]
    assert not any(is_op_call(n, op) for n in post_order(main) for op in ("exp", "tanh"))
    np.testing.assert_allclose(lowered.run(inputs)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_twice_is_once(name: str) -> None:
    once = transform.EtaExpand()(parse(PROGRAMS[name]))
    assert transform.EtaExpand()(once)["main"] is once["main"]


def test_what_is_lowered_already_is_lowered_to_itself() -> None:
    lowered = lower(parse(BRANCHES), target="reference").mod
    assert transform.EtaExpand()(lowered)["main"] is lowered["main"]
    assert_structural_equal(lower(lowered, target="reference").mod, lowered)
    inputs = {"x": np.ones((2, 5), np.float32), "c": True}
    np.testing.assert_array_equal(evaluate(lowered, inputs), evaluate(parse(BRANCHES), inputs))
