"""Random graphs over every operator, fused and lowered: loops compute what each operator gave."""

from __future__ import annotations

import random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compiler
from compiler.testing.graphs import random_graph, usable_ops

OPS = usable_ops()


@settings(
    max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(st.randoms(use_true_random=False), st.integers(1, 16))
def test_fused_and_lowered_graphs_keep_their_values(rng: random.Random, size: int) -> None:
    graph = random_graph(rng, size, OPS)
    lowered = compiler.lower(graph.mod, target="reference")
    for got, want in zip(lowered.run(graph.inputs), graph.expected, strict=True):
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        if want.dtype.kind != "f":
            np.testing.assert_array_equal(got, want)
            continue
        # Sums in another order, and float16 rounded at every operator that was simplified.
        tolerance = max(1e-3, 4 * float(np.finfo(want.dtype).eps))
        floor = tolerance * float(np.abs(want).max(initial=0.0)) + 1e-6
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=floor)
