from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError


def run(name: str, data: NDArray[Any], **attrs: Any) -> NDArray[Any]:
    x = relay.var("x", data.shape, str(data.dtype))
    mod = relay.module(relay.Function((x,), relay.call(name, x, **attrs)))
    return compiler.evaluate(mod, [data])[0]


def row(values: list[float], dtype: str = "float32") -> NDArray[Any]:
    return np.array(values, dtype).reshape(1, 1, 1, -1)


def test_nearest_copies_integers() -> None:
    data = np.arange(4, dtype=np.int8).reshape(1, 1, 2, 2)
    got = run("nn.upsampling", data, scale_h=2, scale_w=2)
    assert got[0, 0].tolist() == [[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]]


@pytest.mark.parametrize(
    ("mode", "want"),
    [
        ("half_pixel", [0, 1, 3, 4]),
        ("asymmetric", [0, 2, 4, 4]),
        ("align_corners", [0, 4 / 3, 8 / 3, 4]),
        ("pytorch_half_pixel", [0, 1, 3, 4]),
    ],
)
def test_linear_resizing_in_each_coordinate_mode(mode: str, want: list[float]) -> None:
    got = run("image.resize2d", row([0, 4]), size=(1, 4), coordinate_transformation_mode=mode)
    # Two float32 products.
    np.testing.assert_allclose(got.reshape(-1), want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("rounding", "want"),
    [("floor", [0, 0, 1]), ("ceil", [0, 1, 1]), ("round", [0, 1, 1]), ("", [0, 0, 1])],
)
def test_nearest_rounds_as_told(rounding: str, want: list[int]) -> None:
    got = run(
        "image.resize2d",
        row([0, 1]),
        size=(1, 3),
        method="nearest_neighbor",
        coordinate_transformation_mode="align_corners",
        rounding_method=rounding,
    )
    assert got.reshape(-1).tolist() == want


def test_cubic_keeps_a_straight_line_straight_inside() -> None:
    data = row([0, 1, 2, 3, 4, 5, 6, 7])
    got = run("image.resize2d", data, size=(1, 16), method="cubic").reshape(-1)
    np.testing.assert_allclose(np.diff(got[4:12]), 0.5, rtol=1e-5)


def test_integers_are_not_interpolated() -> None:
    with pytest.raises(TypeInferenceError, match="float"):
        run("image.resize2d", row([0, 1], "int8"), size=(1, 4))


def test_unknown_modes_list_the_legal_ones() -> None:
    with pytest.raises(TypeInferenceError, match="half_pixel"):
        run(
            "image.resize2d",
            row([0, 1]),
            size=(1, 4),
            coordinate_transformation_mode="half_pixels",
        )
