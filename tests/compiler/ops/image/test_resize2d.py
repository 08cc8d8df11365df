from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.ir.module import IRModule
from compiler.ops.image.resampling import COORDINATES
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.ort.session import OrtExecutor


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
    [("floor", [0, 0, 1]), ("ceil", [0, 1, 1]), ("round", [0, 1, 1]), ("", [0, 1, 1])],
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


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_without_a_rounding_is_relays(coordinates: str, layout: str) -> None:
    """Relay v0.10 rounds with aligned corners, half up, and takes the floor in all other modes."""
    turn = TURNS["round_prefer_ceil" if coordinates == "align_corners" else "floor"]
    for size, out in SIZES:
        want = np.clip([turn(x) for x in exact(size, out, coordinates)], 0, size - 1)
        data = np.arange(size, dtype=np.int32)
        got = run(
            "image.resize2d",
            data.reshape((1, 1, 1, size) if layout == "NCHW" else (1, 1, size, 1)),
            size=(1, out),
            layout=layout,
            method="nearest_neighbor",
            coordinate_transformation_mode=coordinates,
        )
        assert got.reshape(-1).tolist() == want.tolist(), (size, out)


def exact(size: int, out: int, coordinates: str) -> list[Fraction]:
    """Where the elements of the result lie, as ONNX says it."""
    if coordinates == "align_corners":
        return [Fraction(at * (size - 1), max(out - 1, 1)) for at in range(out)]
    if coordinates == "asymmetric":
        return [Fraction(at * size, out) for at in range(out)]
    if coordinates == "pytorch_half_pixel" and out == 1:
        return [Fraction(0)]
    return [Fraction((2 * at + 1) * size, 2 * out) - HALF for at in range(out)]


HALF = Fraction(1, 2)
TURNS: dict[str, Callable[[Fraction], int]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round_prefer_floor": lambda x: math.ceil(x - HALF),
    "round_prefer_ceil": lambda x: math.floor(x + HALF),
}
SIZES = [(2, 98), (7, 25), (8, 98), (9, 33), (16, 23), (36, 28), (37, 29), (5, 1), (1, 4), (24, 14)]
"""Of these, floats of 64 bits miss a whole or a half position in one of the modes."""


def resized(size: int, out: int, coordinates: str, rounding: str) -> tuple[IRModule, NDArray[Any]]:
    x = relay.var("x", (1, 1, 1, size), "int32")
    how = {"coordinate_transformation_mode": coordinates, "rounding_method": rounding}
    call = relay.op.image.resize2d(x, size=(1, out), method="nearest_neighbor", **how)
    return relay.module(relay.Function((x,), call)), np.arange(size, dtype=np.int32)


@pytest.mark.parametrize("rounding", TURNS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_nearest_elements_are_those_of_exact_positions_in_every_form(
    coordinates: str, rounding: str
) -> None:
    for size, out in SIZES:
        at = exact(size, out, coordinates)
        want = np.clip([TURNS[rounding](x) for x in at], 0, size - 1)
        mod, data = resized(size, out, coordinates, rounding)
        given = [data.reshape(1, 1, 1, size)]
        (exported,) = IntegerExecutor(mod).run(given)
        assert exported.reshape(-1).tolist() == want.tolist(), (size, out)
        assert compiler.evaluate(mod, given)[0].reshape(-1).tolist() == want.tolist(), (size, out)


@pytest.mark.parametrize("rounding", TURNS)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_onnxruntime_takes_the_same_elements_where_nothing_turns(
    coordinates: str, rounding: str
) -> None:
    """In between, its coordinates of float32 are good enough."""
    for size, out in [*SIZES, (5, 12), (12, 5), (6, 7)]:
        (mod, data), sizes = resized(size, out, coordinates, rounding), [1, 1, 1, out]
        node = helper.make_node(
            "Resize",
            ["x", "", "", "sizes"],
            ["y"],
            mode="nearest",
            coordinate_transformation_mode=coordinates,
            nearest_mode=rounding,
        )
        infos = [
            helper.make_tensor_value_info(name, TensorProto.INT32, [1, 1, 1, n])
            for name, n in (("x", size), ("y", out))
        ]
        held = [helper.make_tensor("sizes", TensorProto.INT64, [4], sizes)]
        graph = helper.make_graph([node], "g", infos[:1], infos[1:], held)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        data = data.reshape(1, 1, 1, size)
        (theirs,) = OrtExecutor(model.SerializeToString()).run([data])
        shift = HALF if "round" in rounding else 0
        turns = np.array([(x + shift).denominator == 1 for x in exact(size, out, coordinates)])
        (ours,) = compiler.evaluate(mod, [data])
        differs = (ours != theirs).reshape(-1)
        assert not (differs & ~turns).any(), (size, out)


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
