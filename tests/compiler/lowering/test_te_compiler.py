"""The cache of lowered functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import compiler
from compiler import relay
from compiler.ir.expr import Function
from compiler.lir.nodes import PrimFunc
from compiler.lowering.kernel_cache import KernelCache
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


def only(te: TECompiler, source: Function) -> PrimFunc:
    (prim,) = te.lower(CCacheKey(source, C)).prim_funcs.values()
    return prim


def test_another_process_finds_what_one_has_lowered(tmp_path: Path) -> None:
    weights = relay.const(np.arange(4, dtype="float32"))
    source = kernel(lambda p: op.add(p, weights))
    made = only(TECompiler(mod_name="m", kernels=KernelCache(tmp_path)), source)
    (entry,) = tmp_path.iterdir()
    read = only(TECompiler(mod_name="other", kernels=KernelCache(tmp_path)), source)
    assert read.name == "other_fused_add"
    assert read.digest() == made.digest()
    x = np.ones(4, "float32")
    np.testing.assert_array_equal(read.evaluate([x])[0], made.evaluate([x])[0])
    assert [p.name for p in tmp_path.iterdir()] == [entry.name]


def test_a_damaged_entry_is_made_anew(tmp_path: Path) -> None:
    made = only(TECompiler(kernels=KernelCache(tmp_path)), kernel())
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    for damaged in (b"", whole[:-40], whole.replace(b"primfn", b"primfm")):
        entry.write_bytes(damaged)
        assert only(TECompiler(kernels=KernelCache(tmp_path)), kernel()).digest() == made.digest()
        assert entry.read_bytes() == whole


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = only(TECompiler(kernels=KernelCache(tmp_path / "file" / "below")), kernel())
    assert made.digest() == only(TECompiler(), kernel()).digest()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_lower_uses_the_folder(tmp_path: Path) -> None:
    mod = relay.module(op.exp(relay.var("x", (4,))))
    first = compiler.lower(mod, target="reference", cache_dir=tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    again = compiler.lower(mod, target="reference", cache_dir=tmp_path)
    assert compiler.structural_equal(first.mod, again.mod)
