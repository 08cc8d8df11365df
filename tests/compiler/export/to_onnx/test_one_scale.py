"""A file for an NPU holds one scale for each tensor: the one that its value carries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qsearch
from compiler import relay
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.targets.npu.profiles import PROFILES
from compiler.targets.npu.rules import broken
from compiler.targets.ort.session import OrtExecutor

RNG = np.random.default_rng(0)


def conv(x: Any, out: int, channels: int, size: int = 3) -> Any:
    weight = RNG.normal(0, 0.4, (out, channels, size, size)).astype("float32")
    return relay.op.nn.conv2d(x, relay.const(weight), padding=(size // 2, size // 2))


def sums(x: Any) -> Any:
    deep = relay.op.nn.relu(conv(x, 4, 4))
    return conv(relay.op.add(relay.op.add(x, conv(deep, 4, 4)), deep), 4, 4)


def joined_slices(x: Any) -> Any:
    """Parts of one tensor that meet again in other scales."""
    wide = conv(x, 6, 4)
    low, high = (
        relay.op.strided_slice(wide, begin=[0, at, 0, 0], end=[1, at + 3, 8, 8]) for at in (0, 3)
    )
    small = relay.op.multiply(high, relay.const(np.float32(0.02)))
    return conv(relay.op.concatenate(relay.Tuple([low, small]), axis=1), 4, 6)


def border(x: Any) -> Any:
    wide = ((0, 0), (0, 0), (1, 1), (1, 1))
    padded = relay.op.nn.pad(conv(x, 4, 4), relay.const(np.float32(0.5)), pad_width=wide)
    return conv(padded, 4, 4, 1)


def words(x: Any) -> Any:
    """What has no QDQ form stands in integer words between 8 bit tensors."""
    slope = relay.const(np.linspace(0.1, 0.9, 4).astype("float32"))
    return conv(relay.op.nn.prelu(conv(x, 4, 4), slope), 4, 4)


def pooled(x: Any) -> Any:
    pool = relay.op.nn.max_pool2d(conv(x, 4, 4), pool_size=(2, 2), strides=(2, 2))
    return relay.op.nn.global_avg_pool2d(conv(pool, 4, 4))


@pytest.mark.parametrize("npu", PROFILES)
@pytest.mark.parametrize("network", [sums, joined_slices, border, words, pooled])
def test_tensors_of_a_file_for_an_npu_have_one_scale_and_near_numbers(
    network: Callable[[Any], Any], npu: str
) -> None:
    x = relay.var("x", (1, 4, 8, 8))
    mod = relay.module(relay.Function([x], network(x)))
    data = RNG.normal(0, 1, (8, 4, 8, 8)).astype("float32")
    module = qsearch.quantize(to_onnx(mod), {"x": data}, qconfig={"layers": {}})
    (exact,) = module.run([data])
    model = to_qdq_onnx(module.module, npu).model
    assert "one scale" not in {one.rule for one in broken(model, PROFILES[npu])}
    session = OrtExecutor(model, optimize=False)
    near = np.concatenate([session.run([one[None]])[0] for one in data])
    assert np.abs(near - exact).max() <= 0.2 * np.abs(exact).max()
