from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler
from compiler import relay


def scatter(data: NDArray[Any], weight: NDArray[Any], p: dict[str, Any]) -> NDArray[Any]:
    """Every input element adds its weighted kernel to a canvas, which is then cropped."""
    n, c, h, w = data.shape
    _, per_group, kh, kw = weight.shape
    groups = p["groups"]
    (sh, sw), (dh, dw) = p["strides"], p["dilation"]
    top, left, bottom, right = p["padding"]
    canvas = np.zeros(
        (
            n,
            per_group * groups,
            (h - 1) * sh + (kh - 1) * dh + 1 + p["output_padding"][0],
            (w - 1) * sw + (kw - 1) * dw + 1 + p["output_padding"][1],
        ),
        np.int64,
    )
    for b, i, y, x in np.ndindex(data.shape):
        group = i // (c // groups)
        for o, r, s in np.ndindex(per_group, kh, kw):
            canvas[b, group * per_group + o, y * sh + r * dh, x * sw + s * dw] += int(
                data[b, i, y, x]
            ) * int(weight[i, o, r, s])
    return canvas[:, :, top : canvas.shape[2] - bottom, left : canvas.shape[3] - right]


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    groups = draw(st.sampled_from([1, 2]))
    strides = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    return {
        "data": (
            1,
            groups * draw(st.integers(1, 2)),
            draw(st.integers(2, 4)),
            draw(st.integers(2, 4)),
        ),
        "units": draw(st.integers(1, 2)),
        "kernel": kernel,
        "attrs": {
            "strides": strides,
            "padding": tuple(draw(st.integers(0, kernel[k % 2] - 1)) for k in range(4)),
            "dilation": (draw(st.integers(1, 2)), draw(st.integers(1, 2))),
            "groups": groups,
            "output_padding": (
                draw(st.integers(0, strides[0] - 1)),
                draw(st.integers(0, strides[1] - 1)),
            ),
        },
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@settings(max_examples=60, deadline=None)
@given(problems())
def test_transposed_convolution_equals_scattering(problem: dict[str, Any]) -> None:
    rng = np.random.default_rng(problem["seed"])
    data = rng.integers(-128, 127, problem["data"], dtype=np.int8)
    shape = (problem["data"][1], problem["units"], *problem["kernel"])
    weight = rng.integers(-128, 127, shape, dtype=np.int8)
    x, w = relay.var("x", data.shape, "int8"), relay.var("w", shape, "int8")
    call = relay.op.nn.conv2d_transpose(x, w, **problem["attrs"], out_dtype="int32")
    mod = relay.module(relay.Function((x, w), call))
    want = scatter(data, weight, problem["attrs"])
    assert mod["main"].body.checked_type.shape == want.shape
    np.testing.assert_array_equal(compiler.evaluate(mod, [data, weight])[0], want)
