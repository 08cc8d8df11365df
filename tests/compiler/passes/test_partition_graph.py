"""Functions for an external compiler: regions are convex, values stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import LoweringError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Function, is_op_call
from compiler.targets.external_codegen import external_support
from compiler.transform import PartitionGraph

op = relay.op
X = relay.var("x", (4,))


@pytest.fixture(autouse=True)
def takes_exp_and_add(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_support, "_entries", {})
    external_support.register("toy")(lambda call: is_op_call(call, "exp", "add"))


def partitioned(body: relay.Expr | relay.IRModule, **options: Any) -> relay.IRModule:
    mod = body if isinstance(body, relay.IRModule) else relay.module(body)
    new = PartitionGraph(compiler="toy", **options)(mod)
    x = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    inputs = [x if p.tensor_type.shape else np.array(True) for p in mod["main"].params]
    for a, b in zip(compiler.evaluate(mod, inputs), compiler.evaluate(new, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    return new


def regions(mod: relay.IRModule) -> list[list[str]]:
    return [
        [n.op.name for n in post_order(fn.body) if isinstance(n, Call)]  # type: ignore[attr-defined]
        for fn in post_order(mod["main"])
        if isinstance(fn, Function) and fn.get_attr("Compiler") == "toy"
    ]


def test_connected_calls_become_one_function() -> None:
    mod = partitioned(op.tanh(op.add(op.exp(X), op.exp(op.exp(X)))))
    assert regions(mod) == [["exp", "exp", "exp", "add"]]
    (fn,) = (n for n in post_order(mod["main"]) if isinstance(n, Function) and n is not mod["main"])
    assert fn.get_attr("global_symbol") == "toy_0"
    assert len(fn.params) == 1


def test_no_way_leaves_a_region_and_comes_back() -> None:
    a = op.exp(X)
    mod = partitioned(op.add(a, op.tanh(a)))
    assert sorted(regions(mod)) == [["add"], ["exp"]]


def test_values_read_outside_are_fields_of_a_tuple() -> None:
    a = op.exp(X)
    mod = partitioned(relay.Tuple((op.tanh(a), op.sqrt(op.add(a, a)))))
    assert regions(mod) == [["exp", "add"]]
    assert sum(isinstance(n, relay.TupleGetItem) for n in post_order(mod["main"])) == 2


def test_small_regions_may_be_left_alone() -> None:
    mod = relay.module(op.tanh(op.exp(op.tanh(op.add(op.exp(X), X)))))
    assert regions(partitioned(mod, min_calls=2)) == [["exp", "add"]]
    assert PartitionGraph(compiler="toy", min_calls=9)(mod) is mod


def test_regions_stay_within_their_branch_and_behind_their_variables() -> None:
    mod = compiler.infer_module(
        compiler.parse("""#[version = "0.0.5"]
def @main(%c: bool, %x: Tensor[(4), float32]) {
  %0 = exp(%x);
  let %v = tanh(%0);
  %1 = if (%c) { exp(%0) } else { add(%0, %v) };
  add(add(%1, exp(%v)), %0)
}""")
    )
    new = partitioned(mod)
    assert sorted(map(len, regions(new))) == [1, 1, 1, 1, 2]
    again = PartitionGraph(compiler="toy")(new)
    assert compiler.structural_equal(again, new)


def test_stop_fusion_ends_a_region() -> None:
    assert len(regions(partitioned(op.exp(op.annotation.stop_fusion(op.exp(X)))))) == 2


def test_tuples_are_packed_inside_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    external_support.register("joiner")(lambda call: is_op_call(call, "exp", "concatenate"))
    t = op.tanh(X)
    body = op.tanh(op.exp(op.concatenate([op.exp(X), t, op.exp(t)], axis=0)))
    mod = relay.module(body)
    new = PartitionGraph(compiler="joiner")(mod)
    x = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    np.testing.assert_array_equal(compiler.evaluate(new, [x]), compiler.evaluate(mod, [x]))
    functions = [n for n in post_order(new["main"]) if isinstance(n, Function)]
    joined = [fn for fn in functions if fn.get_attr("Compiler") == "joiner"]
    (only,) = joined
    assert len([n for n in post_order(only.body) if isinstance(n, Call)]) == 4
    assert all(isinstance(p.type_annotation, relay.TensorType) for p in only.params)


def test_an_unknown_compiler_is_refused() -> None:
    with pytest.raises(LoweringError, match="toi"):
        PartitionGraph(compiler="toi")(relay.module(op.exp(X)))


def test_a_long_chain_is_partitioned_in_one_sweep() -> None:
    body: relay.Expr = X
    for i in range(5_000):
        body = op.tanh(body) if i % 4 == 3 else op.exp(body)
    new = PartitionGraph(compiler="toy")(relay.module(body))
    assert len(regions(new)) == 1_250
