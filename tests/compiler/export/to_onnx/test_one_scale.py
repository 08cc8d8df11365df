"""A graph whose tensors have one scale each computes what it computed before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import qsearch
from compiler import relay
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.export.to_onnx.qdq.one_scale import with_one_scale
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


@pytest.mark.parametrize("network", [sums, joined_slices, border, words, pooled])
def test_the_numbers_stay(network: Callable[[Any], Any]) -> None:
    x = relay.var("x", (1, 4, 8, 8))
    mod = relay.module(relay.Function([x], network(x)))
    data = RNG.normal(0, 1, (8, 4, 8, 8)).astype("float32")
    module = qsearch.quantize(to_onnx(mod), {"x": data}, qconfig={"layers": {}})
    (exact,) = module.run([data])
    for runtime in ("onnxruntime", "ryzenai", "qnn"):
        model = to_qdq_onnx(
            module.module, runtime, opset=17 if runtime == "onnxruntime" else None
        ).model
        before, after = (OrtExecutor(one, optimize=False) for one in (model, with_one_scale(model)))
        for one in data:
            (wanted,), (found,) = before.run([one[None]]), after.run([one[None]])
            # A level of 8 bits may turn where a tie is no longer one.
            assert np.abs(found - wanted).max() <= 0.04 * np.abs(wanted).max()
        near = np.concatenate([after.run([one[None]])[0] for one in data])
        assert np.abs(near - exact).max() <= 0.2 * np.abs(exact).max()
