"""What every Executor promises: a suite, and each executor held to it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import relay
from compiler.errors import EvaluationError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate, lower
from compiler.runtime.executor import Executor
from compiler.targets.c.executor import CExecutor
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler import networks as models
from tests.needs import NEEDS_C

NETWORKS: list[Callable[[], models.Model]] = [
    models.mlp,
    models.conv_chain,
    models.conv_bn,
    models.residual_net,
    models.mobile_net,
    models.branches,
    models.attention,
]


def inputs_of(mod: IRModule, params: models.Params, seed: int = 0) -> dict[str, NDArray[Any]]:
    """The weights and a normal ``x`` for a tiny network."""
    shape = mod["main"].func_type.arg_types[0].concrete_shape
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return {**params, "x": x}


class ExecutorTestCase(ABC):
    """What every Executor promises, on float networks and on their inputs."""

    @abstractmethod
    def executor_of(self, mod: IRModule) -> Executor:
        """The executor under test, for @main of a typed float module."""

    @pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n.__name__)
    def test_networks_agree_with_the_reference(self, network: Callable[[], models.Model]) -> None:
        """Within float32 rounding of sums in another order."""
        mod, params = network()
        inputs = inputs_of(mod, params)
        want = evaluate(mod, inputs)
        got = self.executor_of(mod).run(inputs)
        assert [a.shape for a in got] == [a.shape for a in want]
        for mine, reference in zip(got, want):
            assert mine.dtype == reference.dtype
            # Sums of at most 200 float32 products of size about 1.
            np.testing.assert_allclose(mine, reference, rtol=1e-4, atol=1e-5)

    def test_inputs_are_named_in_the_order_of_the_parameters(self) -> None:
        """The first parameter is x, the weights follow."""
        mod, params = models.mlp()
        assert tuple(self.executor_of(mod).input_names) == ("x", *params)

    def test_a_second_run_gives_the_same_bits_and_leaves_inputs_alone(self) -> None:
        """No state is kept between runs."""
        mod, params = models.residual_net()
        inputs = inputs_of(mod, params)
        before = {name: array.copy() for name, array in inputs.items()}
        executor = self.executor_of(mod)
        first = executor.run(inputs)
        second = executor.run(inputs)
        np.testing.assert_array_equal(first[0], second[0])
        for name, array in before.items():
            np.testing.assert_array_equal(inputs[name], array)

    def test_tuples_of_results_come_out_from_left_to_right(self) -> None:
        """One array per tensor of the result."""
        x = relay.var("x", (3,))
        pair = relay.Tuple((relay.op.negative(x), relay.op.multiply(x, 2.0)))
        executor = self.executor_of(relay.module(relay.Function((x,), pair)))
        got = executor.run({"x": np.array([1, 2, 3], np.float32)})
        assert [a.tolist() for a in got] == [[-1, -2, -3], [2, 4, 6]]

    def test_results_that_are_reshaped_have_the_shape_of_their_type(self) -> None:
        """One value under two shapes, also where both are results, or an input under another."""
        x = relay.var("x", (2, 3))
        kept = relay.op.negative(x)
        results = (
            relay.op.reshape(kept, newshape=(3, 2)),
            kept,
            relay.op.reshape(x, newshape=(6,)),
            relay.op.reshape(relay.op.multiply(x, 2.0), newshape=(1, 6, 1)),
        )
        executor = self.executor_of(relay.module(relay.Function((x,), relay.Tuple(results))))
        given = np.arange(6, dtype=np.float32).reshape(2, 3)
        got = executor.run({"x": given})
        assert [a.shape for a in got] == [(3, 2), (2, 3), (6,), (1, 6, 1)]
        wanted = (-given, -given, given, 2 * given)
        assert [a.ravel().tolist() for a in got] == [a.ravel().tolist() for a in wanted]

    def test_parameters_of_one_name_are_told_apart_by_their_places_only(self) -> None:
        """A name hint is no identity; by name, two of them are an error that says so."""
        x, y = relay.var("x", (2,)), relay.var("x", (2,))
        body = relay.op.subtract(relay.op.multiply(x, 2.0), y)
        executor = self.executor_of(relay.module(relay.Function((x, y), body)))
        first, second = np.array([1, 2], np.float32), np.array([10, 20], np.float32)
        assert [a.tolist() for a in executor.run([first, second])] == [[-8, -16]]
        with pytest.raises(EvaluationError, match=r"2 parameters are named 'x'|'x_1' is missing"):
            executor.run({"x": first})
        with pytest.raises(EvaluationError, match="1 inputs for 2 parameters"):
            executor.run([first])

    @pytest.mark.parametrize(
        "change",
        [
            lambda inputs: inputs.pop("x"),
            lambda inputs: inputs.update(y=np.zeros(1, np.float32)),
            lambda inputs: inputs.update(x=np.zeros((1, 9), np.float32)),
            lambda inputs: inputs.update(x=np.zeros((1, 8), np.float64)),
        ],
        ids=["missing", "unknown", "shape", "dtype"],
    )
    def test_inputs_that_do_not_fit_are_refused(
        self, change: Callable[[dict[str, Any]], object]
    ) -> None:
        """With an EvaluationError, before anything is computed."""
        mod, params = models.mlp()
        inputs = inputs_of(mod, params)
        executor = self.executor_of(mod)
        change(inputs)
        with pytest.raises(EvaluationError):
            executor.run(inputs)


class TestReferenceExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return ReferenceExecutor(mod)


class TestOrtExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return OrtExecutor(to_onnx(mod))


@NEEDS_C
class TestCExecutor(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return CExecutor(mod)


class TestLoweredOnNumpy(ExecutorTestCase):
    def executor_of(self, mod: IRModule) -> Executor:
        return lower(mod, target="reference")
