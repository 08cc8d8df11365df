"""max_pool2d, avg_pool2d, their global and adaptive forms, against a loop over windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError

Array = NDArray[Any]


def run(name: str, data: Array, **attrs: Any) -> Array:
    x = relay.var("x", data.shape, str(data.dtype))
    mod = relay.module(relay.Function((x,), relay.call(name, x, **attrs)))
    return compiler.evaluate(mod, [data])[0]


@st.composite
def pools(draw: st.DrawFn) -> dict[str, Any]:
    pool = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    sizes = tuple((k - 1) * d + 1 + draw(st.integers(0, 5)) for k, d in zip(pool, dilation))
    return {
        "shape": (1, 2, *sizes),
        "pool_size": pool,
        "strides": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "dilation": dilation,
        "padding": tuple(draw(st.integers(0, pool[k % 2] - 1)) for k in range(4)),
        "ceil_mode": draw(st.booleans()),
    }


def axis_windows(p: dict[str, Any], axis: int) -> list[list[int]]:
    """Positions every window along an axis reads; those outside the data included."""
    size, before = p["shape"][axis + 2], p["padding"][axis]
    after, stride = p["padding"][axis + 2], p["strides"][axis]
    reach = [t * p["dilation"][axis] for t in range(p["pool_size"][axis])]
    windows, start = [], -before
    while True:
        complete = start + reach[-1] < size + after
        # ceil_mode keeps an incomplete window unless it starts in the padding behind the data,
        # and unless the one before it already ended the padded input.
        reached = start - stride + reach[-1] >= size + after - 1 and start > -before
        if not complete and (not p["ceil_mode"] or start >= size or reached):
            return windows
        windows.append([start + r for r in reach])
        start += stride


def naive_pool(data: Array, p: dict[str, Any], reduce: Any) -> Array:
    rows, columns = axis_windows(p, 0), axis_windows(p, 1)
    out = np.zeros((*data.shape[:2], len(rows), len(columns)), object)
    h, w = data.shape[2:]
    for n, c, y, x in np.ndindex(out.shape):
        inside = [
            data[n, c, r, s].item()
            for r in rows[y]
            for s in columns[x]
            if 0 <= r < h and 0 <= s < w
        ]
        padded = sum(
            -p["padding"][0] <= r < h + p["padding"][2]
            and -p["padding"][1] <= s < w + p["padding"][3]
            for r in rows[y]
            for s in columns[x]
        )
        out[n, c, y, x] = reduce(inside, padded)
    return out


def truncated_mean(total: int, count: int) -> int:
    quotient = abs(total) // max(count, 1)
    return quotient if total >= 0 else -quotient


@settings(max_examples=60, deadline=None)
@given(pools(), st.integers(0, 2**32 - 1))
def test_integer_max_pool_ignores_padding(p: dict[str, Any], seed: int) -> None:
    data = np.random.default_rng(seed).integers(-128, 127, p["shape"], dtype=np.int8, endpoint=True)
    attrs = {k: v for k, v in p.items() if k != "shape"}
    want = naive_pool(data, p, lambda inside, _: max(inside, default=-128))
    np.testing.assert_array_equal(run("nn.max_pool2d", data, **attrs).astype(object), want)


@settings(max_examples=60, deadline=None)
@given(pools(), st.booleans(), st.integers(0, 2**32 - 1))
def test_integer_avg_pool_truncates_the_exact_mean(
    p: dict[str, Any], include: bool, seed: int
) -> None:
    data = np.random.default_rng(seed).integers(-128, 127, p["shape"], dtype=np.int8, endpoint=True)
    attrs = {k: v for k, v in p.items() if k != "shape"}
    want = naive_pool(
        data,
        p,
        lambda inside, padded: truncated_mean(sum(inside), padded if include else len(inside)),
    )
    got = run("nn.avg_pool2d", data, **attrs, count_include_pad=include)
    np.testing.assert_array_equal(got.astype(object), want)


@settings(max_examples=30, deadline=None)
@given(pools(), st.integers(0, 2**32 - 1))
def test_float_avg_pool_is_close_to_the_mean(p: dict[str, Any], seed: int) -> None:
    data = np.random.default_rng(seed).standard_normal(p["shape"]).astype(np.float32)
    attrs = {k: v for k, v in p.items() if k != "shape"}
    want = naive_pool(data, p, lambda inside, _: sum(inside) / max(len(inside), 1))
    # Nine float32 summands at most.
    np.testing.assert_allclose(
        run("nn.avg_pool2d", data, **attrs), want.astype(np.float64), rtol=1e-5, atol=1e-6
    )


def test_ceil_mode_drops_a_window_that_starts_beyond_the_data() -> None:
    # Height 5, padding 1, stride 2, window 2: a fourth window would start at 5, behind the data.
    data = np.arange(25, dtype=np.int8).reshape(1, 1, 5, 5)
    attrs: dict[str, Any] = {"pool_size": 2, "strides": 2, "padding": 1, "ceil_mode": True}
    assert run("nn.max_pool2d", data, **attrs).shape == (1, 1, 3, 3)


def test_global_pools_reduce_the_whole_image() -> None:
    data = np.array([[[[-3, -4], [0, 0]], [[1, 2], [3, 5]]]], np.int8)
    assert run("nn.global_avg_pool2d", data).tolist() == [[[[-1]], [[2]]]]
    assert run("nn.global_max_pool2d", data).tolist() == [[[[0]], [[5]]]]
    assert run("nn.adaptive_avg_pool2d", data, output_size=1).tolist() == [[[[-1]], [[2]]]]


def test_sums_of_a_global_pool_may_exceed_the_dtype() -> None:
    data = np.full((1, 1, 64, 64), 2**30, np.int32)
    assert run("nn.global_avg_pool2d", data).item() == 2**30


def test_adaptive_windows_overlap_when_sizes_do_not_divide() -> None:
    data = np.arange(5, dtype=np.float32).reshape(1, 1, 1, 5)
    got = run("nn.adaptive_avg_pool2d", data, output_size=(1, 3))
    assert got.tolist() == [[[[0.5, 2.0, 3.5]]]]


def test_nhwc_pools_like_nchw() -> None:
    data = np.random.default_rng(0).integers(-9, 9, (1, 2, 6, 6), dtype=np.int8)
    attrs: dict[str, Any] = {"pool_size": 3, "strides": 2, "padding": 1}
    for name in ("nn.max_pool2d", "nn.avg_pool2d"):
        want = run(name, data, **attrs)
        got = run(name, data.transpose(0, 2, 3, 1), **attrs, layout="NHWC")
        np.testing.assert_array_equal(got.transpose(0, 3, 1, 2), want)


def test_a_window_larger_than_the_data_is_a_type_error() -> None:
    with pytest.raises(TypeInferenceError, match="window of 4"):
        relay.module(relay.op.nn.max_pool2d(relay.var("x", (1, 1, 3, 3)), pool_size=4))


def test_adaptive_pools_of_empty_images_are_empty_and_never_means_of_nothing() -> None:
    empty = np.zeros((1, 2, 0, 4), "float32")
    x = relay.var("x", empty.shape)
    mod = relay.module(relay.Function((x,), relay.op.nn.adaptive_avg_pool2d(x)))
    (lowered,) = compiler.lower(mod, target="reference").run([empty])
    assert lowered.shape == run("nn.adaptive_avg_pool2d", empty).shape == empty.shape
    with pytest.raises(TypeInferenceError, match="a mean of no elements"):
        run("nn.adaptive_avg_pool2d", empty, output_size=(2, 2))
