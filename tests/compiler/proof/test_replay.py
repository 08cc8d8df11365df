"""Comparing outputs bit by bit, and the inputs on which executors are compared."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.module import IRModule
from compiler.proof import replay
from compiler.proof.replay import (
    compare_executors,
    differing_elements,
    extreme_inputs,
    random_inputs,
    replay_core,
)
from compiler.runtime.artifact import Sample
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.reference.executor import ReferenceExecutor


def test_elements_differ_by_bits_and_not_by_value() -> None:
    zeros = np.array([0.0, np.nan, 1.0], "float32")
    assert differing_elements([zeros], [zeros.copy()]) == (3, 0)
    assert differing_elements([zeros], [np.array([-0.0, np.nan, 1.0], "float32")]) == (3, 1)
    assert differing_elements([zeros], [zeros.astype("float64")]) == (3, 3)
    assert differing_elements([zeros], []) == (3, 3)
    empty = np.zeros((0, 2), "int8")
    assert differing_elements([empty], [empty]) == (0, 0)


def test_extremes_are_the_ends_of_each_parameter(integral: IRModule) -> None:
    params = integral["quantized_main"].params
    found = list(extreme_inputs(params, [(-127, 127)], np.random.default_rng(0)))
    values = [set(np.unique(one["x"]).tolist()) for one in found]
    assert values == [{-127}, {127}, {0}, {-127, 127}, {-127, 127}]
    for one in random_inputs(params, [(-3, 2)], np.random.default_rng(0)):
        assert one["x"].dtype == np.int8
        assert (one["x"].min(), one["x"].max()) == (-3, 2)


def test_the_reference_and_integer_onnx_agree_on_the_core(
    integral: IRModule, samples: list[Sample]
) -> None:
    rng = np.random.default_rng(0)
    comparisons, findings = replay_core(integral, [(-127, 127)], samples, rng)
    assert findings == ()
    assert [c.differing for c in comparisons] == [0, 0, 0]
    assert all(c.elements == 10 * c.runs for c in comparisons)


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler on this machine")
def test_the_generated_c_is_compared_as_well(integral: IRModule, samples: list[Sample]) -> None:
    rng = np.random.default_rng(0)
    comparisons, findings = replay_core(integral, [(-127, 127)], samples, rng, compiled=True)
    assert findings == ()
    in_c = [c for c in comparisons if "generated C" in c.what]
    assert [(c.runs, c.differing) for c in in_c] == [(4, 0), (5, 0), (2, 0)]


class Off(ReferenceExecutor):
    """One element of the core's result is too large by one."""

    def run(self, inputs):  # type: ignore[no-untyped-def]
        (only,) = super().run(inputs)
        only = only.copy()
        only[0, 3] += 1
        return [only]


def test_a_core_that_another_executor_computes_otherwise_is_a_finding(
    integral: IRModule, samples: list[Sample], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "IntegerExecutor", Off)
    rng = np.random.default_rng(0)
    comparisons, findings = replay_core(integral, [(-127, 127)], samples, rng)
    assert [c.differing for c in comparisons] == [c.runs for c in comparisons]
    assert [(f.check, f.node) for f in findings] == [("executors", c.what) for c in comparisons]


def test_executors_that_disagree_are_a_finding(integral: IRModule) -> None:
    batches = [{"x": np.zeros((1, 3, 8, 8), "int8")}] * 2
    ours = ReferenceExecutor(integral, "quantized_main")
    found = compare_executors("x", ours, Off(integral, "quantized_main"), batches)
    assert (found.runs, found.elements, found.differing) == (2, 20, 2)
    assert found.finding("executors")[0].what == "2 of 20 elements differ in 2 runs"
