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


def naive_conv2d(
    data: Array,
    weight: Array,
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Array:
    """The formula, one output element at a time, in Python integers or float64."""
    n, _, h, w = data.shape
    o, per_group, kh, kw = weight.shape
    top, left, bottom, right = padding
    oh = (h + top + bottom - (kh - 1) * dilation[0] - 1) // strides[0] + 1
    ow = (w + left + right - (kw - 1) * dilation[1] - 1) // strides[1] + 1
    out = np.zeros((n, o, oh, ow), object)
    for b, c, y, x in np.ndindex(n, o, oh, ow):
        first = c // (o // groups) * per_group
        for i, r, s in np.ndindex(per_group, kh, kw):
            row = y * strides[0] + r * dilation[0] - top
            column = x * strides[1] + s * dilation[1] - left
            if 0 <= row < h and 0 <= column < w:
                out[b, c, y, x] += (
                    data[b, first + i, row, column].item() * weight[c, i, r, s].item()
                )
    return out


def run(data: Array, weight: Array, **attrs: Any) -> Array:
    x = relay.var("x", data.shape, str(data.dtype))
    w = relay.var("w", weight.shape, str(weight.dtype))
    mod = relay.module(relay.Function((x, w), relay.op.nn.conv2d(x, w, **attrs)))
    return compiler.evaluate(mod, [data, weight])[0]


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    per_group = draw(st.integers(1, 3))
    outputs = groups * draw(st.integers(1, 2))
    kernel = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    dilation = (draw(st.integers(1, 2)), draw(st.integers(1, 2)))
    spatial = tuple((k - 1) * d + 1 + draw(st.integers(0, 4)) for k, d in zip(kernel, dilation))
    return {
        "data": (draw(st.integers(1, 2)), groups * per_group, *spatial),
        "weight": (outputs, per_group, *kernel),
        "strides": (draw(st.integers(1, 3)), draw(st.integers(1, 3))),
        "padding": tuple(draw(st.integers(0, 2)) for _ in range(4)),
        "dilation": dilation,
        "groups": groups,
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


def wrapped(values: Array, bits: int) -> Array:
    half = 1 << (bits - 1)
    return np.vectorize(lambda v: (v + half) % (1 << bits) - half, otypes=[object])(values)


@settings(max_examples=60, deadline=None)
@given(problems(), st.sampled_from(["int8", "int16", "int32"]))
def test_integer_convolution_equals_the_formula_in_python_integers(
    problem: dict[str, Any], dtype: str
) -> None:
    rng = np.random.default_rng(problem["seed"])
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, problem["data"], dtype=dtype, endpoint=True)
    weight = rng.integers(info.min, info.max, problem["weight"], dtype=dtype, endpoint=True)
    geometry = {k: problem[k] for k in ("strides", "padding", "dilation", "groups")}
    got = run(data, weight, **geometry, out_dtype="int32")
    assert got.dtype == np.int32
    want = wrapped(naive_conv2d(data, weight, **geometry), 32)
    np.testing.assert_array_equal(got.astype(object), want)


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(["float32", "float64", "float16"]))
def test_float_convolution_is_close_to_the_formula(problem: dict[str, Any], dtype: str) -> None:
    rng = np.random.default_rng(problem["seed"])
    data = rng.standard_normal(problem["data"]).astype(dtype)
    weight = rng.standard_normal(problem["weight"]).astype(dtype)
    geometry = {k: problem[k] for k in ("strides", "padding", "dilation", "groups")}
    got = run(data, weight, **geometry)
    want = naive_conv2d(data, weight, **geometry).astype(np.float64)
    # At most 27 products of size about 1: a few units in the last place of the dtype.
    tolerance = {"float16": 1e-2, "float32": 1e-5, "float64": 1e-12}[dtype]
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=tolerance, atol=tolerance * 4)


@pytest.mark.parametrize("magnitude", [100, 1 << 20, 1 << 30])
def test_every_carrier_of_integer_sums_gives_the_same_bits(magnitude: int) -> None:
    # The three sizes need float32, float64 and int64 to hold the partial sums.
    rng = np.random.default_rng(magnitude)
    data = rng.integers(-magnitude, magnitude, (1, 16, 5, 5), dtype=np.int32)
    weight = rng.integers(-magnitude, magnitude, (4, 16, 3, 3), dtype=np.int32)
    geometry: dict[str, Any] = {
        "strides": (1, 1),
        "padding": (1, 1, 1, 1),
        "dilation": (1, 1),
        "groups": 1,
    }
    got = run(data, weight, **geometry, out_dtype="int32")
    np.testing.assert_array_equal(
        got.astype(object), wrapped(naive_conv2d(data, weight, **geometry), 32)
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(
    ("shape", "kernel", "strides", "dilation"),
    [
        ((2, 2, 3, 19), (3, 15), (1, 1), (1, 1)),
        ((1, 2, 9, 33), (2, 16), (2, 1), (3, 1)),
        ((1, 2, 2, 33), (1, 15), (1, 2), (1, 1)),
        ((1, 2, 2, 33), (1, 15), (1, 1), (1, 2)),
        ((2, 3, 4, 71), (3, 2), (1, 1), (1, 1)),
        ((2, 3, 4, 9), (3, 2), (2, 1), (1, 2)),
    ],
)
def test_depthwise_convolutions_of_wide_kernels_and_rows_equal_the_formula(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: tuple[int, int],
    dtype: str,
) -> None:
    rng = np.random.default_rng(7)
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    weight = rng.integers(-128, 128, (2 * shape[1], 1, *kernel), dtype=np.int8)
    geometry: dict[str, Any] = {
        "strides": strides,
        "padding": (0, 1, 1, 2),
        "dilation": dilation,
        "groups": shape[1],
    }
    got = run(data, weight, **geometry, out_dtype="int32")
    np.testing.assert_array_equal(got.astype(object), naive_conv2d(data, weight, **geometry))


def test_sums_just_below_and_above_the_exact_range_of_float32_are_exact() -> None:
    for terms in (1040, 1041, 4000):
        data = np.full((1, terms, 1, 1), 127, np.int8)
        weight = np.full((1, terms, 1, 1), 127, np.int8)
        weight[0, 0] = 126
        got = run(data, weight, out_dtype="int32")
        assert got.item() == 127 * 127 * terms - 127


def test_a_narrow_out_dtype_wraps() -> None:
    data = np.full((1, 1, 1, 1), 100, np.int8)
    weight = np.full((1, 1, 1, 1), 3, np.int8)
    assert run(data, weight, out_dtype="int8").item() == 300 - 256
    assert run(data, weight).item() == 300 - 256


@pytest.mark.parametrize(("data_layout", "kernel_layout"), [("NHWC", "HWIO"), ("NHWC", "OHWI")])
def test_other_layouts_hold_the_same_numbers(data_layout: str, kernel_layout: str) -> None:
    rng = np.random.default_rng(1)
    data = rng.integers(-9, 9, (2, 3, 6, 5), dtype=np.int8)
    weight = rng.integers(-9, 9, (4, 3, 3, 2), dtype=np.int8)
    want = run(data, weight, padding=1, out_dtype="int32")
    got = run(
        data.transpose(["NCHW".index(c) for c in data_layout]),
        weight.transpose(["OIHW".index(c) for c in kernel_layout]),
        padding=1,
        data_layout=data_layout,
        kernel_layout=kernel_layout,
        out_dtype="int32",
    )
    np.testing.assert_array_equal(got.transpose([data_layout.index(c) for c in "NCHW"]), want)


def infer(shape: tuple[int, ...], **attrs: Any) -> tuple[Any, Any]:
    x, w = relay.var("x", shape), relay.var("w")
    main = relay.module(relay.Function((x, w), relay.op.nn.conv2d(x, w, **attrs)))["main"]
    return main.params[1].checked_type.shape, main.body.checked_type.shape


def test_the_weight_follows_from_channels_and_kernel_size() -> None:
    kernel = {"kernel_size": (3, 3)}
    shape = (1, 3, 32, 32)
    assert infer(shape, strides=(2, 2), padding=1, channels=16, **kernel) == (
        (16, 3, 3, 3),
        (1, 16, 16, 16),
    )
    assert infer(shape, strides=(2, 2), padding=1, groups=3, channels=6, **kernel) == (
        (6, 1, 3, 3),
        (1, 6, 16, 16),
    )
    assert infer(shape, padding=(1, 2), channels=16, **kernel) == ((16, 3, 3, 3), (1, 16, 32, 34))


@pytest.mark.parametrize(
    ("data", "weight", "attrs", "words"),
    [
        ((1, 3, 8, 8), (4, 2, 3, 3), {}, ["3 channels", "2"]),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"groups": 2}, ["groups=2"]),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"channels": 5}, ["channels", "5", "4"]),
        ((1, 3, 2, 2), (4, 3, 3, 3), {}, ["window of 3", "2"]),
        ((3, 8, 8), (4, 3, 3, 3), {}, ["rank 4"]),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"data_layout": "NCHW4c"}, ["data_layout", "NCHW4c"]),
        ((1, 3, 8, 8), (4, 3, 3, 3), {"out_dtype": "int32"}, ["int32"]),
    ],
)
def test_shapes_that_do_not_fit_are_type_errors(
    data: tuple[int, ...], weight: tuple[int, ...], attrs: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        relay.module(relay.op.nn.conv2d(relay.var("x", data), relay.var("w", weight), **attrs))
    assert all(word in str(caught.value) for word in ["nn.conv2d", *words])
