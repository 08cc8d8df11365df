"""``compiler.lower`` and ``evaluate(executor=…)``: the whole way in one call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError, EvaluationError, LoweringError
from compiler.ir.lowered_function import LoweredFunction
from compiler.ir.pass_infra import PassContext
from compiler.targets.target import Target
from tests.needs import NEEDS_C

op, nn = relay.op, relay.op.nn
X = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype("float32")


def network() -> relay.IRModule:
    rng = np.random.default_rng(1)
    x = relay.var("x", (1, 4, 6, 6))
    ones = relay.const(np.ones(4, "float32"))
    y = nn.conv2d(x, relay.const(rng.standard_normal((4, 4, 3, 3)).astype("float32")), padding=1)
    y = relay.TupleGetItem(nn.batch_norm(y, ones, ones, ones, ones), 0)
    return relay.module(nn.softmax(nn.batch_flatten(nn.relu(y))))


def kernels(mod: relay.IRModule) -> list[str]:
    return [g.name_hint for g, f in mod.functions.items() if isinstance(f, LoweredFunction)]


def test_training_operators_are_gone_and_constants_folded() -> None:
    lowered = compiler.lower(network(), target="reference")
    assert len(kernels(lowered.mod)) == 3
    # Another order of sums.
    np.testing.assert_allclose(
        lowered.run([X])[0], compiler.evaluate(network(), [X])[0], rtol=1e-4, atol=1e-6
    )


def test_an_expression_is_lowered_over_its_free_variables() -> None:
    lowered = compiler.lower(op.exp(relay.var("x", (3,))), mod_name="n", target="reference")
    assert kernels(lowered.mod) == ["n_fused_exp"]


def test_the_context_decides_how_much_is_fused() -> None:
    body = op.exp(op.tanh(relay.var("x", (3,))))
    with PassContext(opt_level=0):
        assert len(kernels(compiler.lower(body, target="reference").mod)) == 2
    with PassContext(disabled_pass=("FuseOps",)):
        assert len(kernels(compiler.lower(body, target="reference").mod)) == 1


def test_targets_are_checked_before_anything_is_done() -> None:
    with pytest.raises(CompilerError, match="vulkan"):
        compiler.lower(network(), target="vulkan")
    with pytest.raises(CompilerError, match="no option 'speed'"):
        compiler.lower(network(), target="reference -speed=9")
    with pytest.raises(CompilerError, match="is no option"):
        Target.from_text("reference speed")
    assert str(Target.from_text("reference")) == "reference"
    assert compiler.lower(network(), target=Target("reference")).target == "reference"


@NEEDS_C
def test_evaluate_takes_a_compiled_executor() -> None:
    want = compiler.evaluate(network(), [X])
    got: list[Any] = compiler.evaluate(network(), [X], executor="c")
    np.testing.assert_allclose(got[0], want[0], rtol=1e-4, atol=1e-6)


def test_unknown_executors_and_taps_are_refused() -> None:
    with pytest.raises(EvaluationError, match="gpu"):
        compiler.evaluate(network(), [X], executor="gpu")
    with pytest.raises(EvaluationError, match="reference executor"):
        compiler.evaluate(network(), [X], executor="c", tap=lambda node, value: None)


@pytest.mark.parametrize(
    "body",
    [
        lambda x: op.add(x, x),
        lambda x: op.cast(x, dtype="float32"),
        lambda x: op.cast(op.exp(op.cast(x, dtype="float32")), dtype="float16"),
    ],
    ids=["inside", "read", "read and written"],
)
def test_float16_is_refused_by_lower_where_the_target_has_no_such_type(body: Any) -> None:
    x = relay.var("x", (2, 3), "float16")
    mod = relay.module(body(x))
    with pytest.raises(LoweringError, match="target c has no type float16") as refused:
        compiler.lower(mod, target="c")
    assert "float32" in str(refused.value.fix)
    given = np.array([[1, 2, 3], [4, 5, 6]], "float16")
    (got,) = compiler.lower(mod, target="reference").run([given])
    np.testing.assert_allclose(got, compiler.evaluate(mod, [given])[0], rtol=1e-3)
