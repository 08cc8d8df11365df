"""A small fully integral module, made by the quantization flow itself."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.quantize import QConfig, build_candidate, prerequisite_optimize
from compiler.runtime.artifact import Sample


@pytest.fixture(scope="session")
def float_network() -> IRModule:
    """Two convolutions, a residual addition, pooling and a classifier."""
    rng = np.random.default_rng(5)
    op = relay.op

    def weight(*shape: int) -> relay.Constant:
        return relay.const(rng.normal(0, 0.3, shape).astype("float32"))

    x = relay.var("x", (1, 3, 8, 8))
    first = op.nn.relu(op.nn.conv2d(x, weight(4, 3, 3, 3), padding=(1, 1)))
    second = op.nn.conv2d(first, weight(4, 4, 3, 3), padding=(1, 1))
    joined = op.nn.relu(op.add(op.add(second, weight(4, 1, 1)), first))
    pooled = op.nn.batch_flatten(op.nn.global_avg_pool2d(joined))
    body = op.add(op.nn.dense(pooled, weight(10, 4)), weight(10))
    return prerequisite_optimize(relay.module(relay.Function((x,), body)), {}, opt_level=3)


@pytest.fixture(scope="session", params=["UPWARD", "TONEAREST"])
def integral(request: pytest.FixtureRequest, float_network: IRModule) -> IRModule:
    """The network on integers, partitioned, with both roundings."""
    config = QConfig.recommended(
        calibrate_mode="global_scale", global_scale=3.0, rounding=request.param
    )
    made = build_candidate(float_network, config, None).partitioned
    assert made is not None
    return made


@pytest.fixture(scope="session")
def samples(integral: IRModule) -> list[Sample]:
    """Two inputs with their outputs."""
    rng = np.random.default_rng(6)
    inputs = [{"x": rng.normal(0, 1, (1, 3, 8, 8)).astype("float32")} for _ in range(2)]
    return [(one, evaluate(integral, one)) for one in inputs]
