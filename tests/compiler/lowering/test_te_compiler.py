"""The cache of lowered functions."""

from __future__ import annotations

import numpy as np

from compiler import relay
from compiler.ir.expr import Function
from compiler.lowering.te_compiler import CCacheKey, TECompiler
from compiler.targets.target import Target

op = relay.op
C, REFERENCE = Target("c"), Target("reference")


def kernel(build: object = op.exp, **attrs: object) -> Function:
    p = relay.var("p", (4,))
    fn = relay.Function((p,), build(p), attrs={"Primitive": 1, **attrs})  # type: ignore[operator]
    return relay.module(fn)["main"]


def test_equal_functions_for_one_target_are_one_entry() -> None:
    te = TECompiler(mod_name="m")
    first = te.lower(CCacheKey(kernel(), C))
    assert te.lower(CCacheKey(kernel(), C)) is first
    assert first.use_count == 2
    assert te.lower(CCacheKey(kernel(), REFERENCE)) is not first
    assert te.lower(CCacheKey(kernel(hash="1"), C)) is not first
    assert te.get_op_weights() == {"m_fused_exp": 2, "m_fused_exp_1": 1, "m_fused_exp_2": 1}


def test_names_of_the_module_are_taken() -> None:
    mod = relay.module({"fused_exp": kernel(op.tanh)})
    made = TECompiler(mod).lower(CCacheKey(kernel(), C))
    assert made.prim_fn_var.name_hint == "fused_exp_1"


def test_the_hash_of_the_source_is_kept() -> None:
    (prim,) = TECompiler().lower(CCacheKey(kernel(hash="abc"), C)).prim_funcs.values()
    assert prim.attrs["hash"] == "abc"


def test_jit_gives_a_function_on_arrays() -> None:
    x = np.linspace(-1, 1, 4, dtype="float32")
    (y,) = TECompiler().jit(kernel(op.tanh), REFERENCE)(x)
    np.testing.assert_allclose(y, np.tanh(x), rtol=1e-6)


def test_clear_forgets_entries_but_not_names() -> None:
    te = TECompiler()
    te.lower(CCacheKey(kernel(), C))
    assert len(te.list_items()) == 1
    te.clear()
    assert te.list_items() == []
    assert te.lower(CCacheKey(kernel(), C)).prim_fn_var.name_hint == "fused_exp_1"
