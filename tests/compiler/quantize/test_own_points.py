"""Single quantize points in QConfig.layers: names, ranges, bits, and one point for one reader."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from compiler import parse
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.printer import text
from compiler.qtypes.errors import ConfigValueError
from compiler.quantize import (
    Calibration,
    Candidate,
    QConfig,
    mark,
    measured_points,
    point_names,
    prerequisite_optimize,
    quantize_points,
)
from compiler.quantize.scales.bind_scales import bound_grid
from tests.compiler.quantize.candidates import assert_same_integers, calibrated

NETWORK = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3, 6, 6), float32]) {
  %0 = nn.conv2d(%x, meta[relay.Constant][0], padding=[1, 1, 1, 1]);
  %1 = nn.conv2d(%0, meta[relay.Constant][0], padding=[1, 1, 1, 1]);
  %2 = add(%1, sigmoid(%0));
  nn.conv2d(%2, meta[relay.Constant][0], padding=[1, 1, 1, 1])
}
"""
SHARED = "@conv2d_0"


def network() -> IRModule:
    rng = np.random.default_rng(0)
    source = NETWORK.replace("meta[relay.Constant][0]", "%w")
    source = source.replace("float32])", "float32], %w: Tensor[(3, 3, 3, 3), float32])", 1)
    weight = {"w": rng.normal(0, 0.3, (3, 3, 3, 3)).astype(np.float32)}
    return prerequisite_optimize(infer_module(parse(source)), weight, 3)


def data(count: int = 3) -> list[dict[str, Any]]:
    rng = np.random.default_rng(1)
    return [{"x": rng.normal(0, 1, (2, 3, 6, 6)).astype(np.float32)} for _ in range(count)]


def built(**fields: Any) -> Candidate:
    return calibrated(network(), QConfig.recommended(**fields), data())


def grids(candidate: Candidate) -> dict[str, tuple[float, float, float] | None]:
    """Scale and limits of each point of a built module."""
    names = point_names(candidate.simulated)
    return {names[point]: bound_grid(point) for point in measured_points(candidate.simulated)}


def test_every_point_has_one_name_in_every_configuration() -> None:
    annotated, _ = mark(network(), QConfig.recommended())
    names = point_names(annotated)
    assert list(names) == quantize_points(annotated)
    assert len(set(names.values())) == len(names)
    assert {"@x", SHARED, "@conv2d_0:1"} <= set(names.values())
    wide = QConfig.recommended(nbit_weight=4, layers={"<tables>": {"nbit_input": 12}})
    assert list(point_names(mark(network(), wide)[0]).values()) == list(names.values())


def test_a_point_has_the_range_that_is_chosen_for_it_alone() -> None:
    usual = grids(built())
    found = grids(built(layers={SHARED: {"range": [-3.0, 2.0]}}))
    scale, low, high = found.pop(SHARED) or (0.0, 0.0, 0.0)
    assert (-low * scale, high * scale) == pytest.approx((3, 3), rel=0.01)
    assert found == {name: grid for name, grid in usual.items() if name != SHARED}


@pytest.mark.parametrize("rounding", ["nearest", "corrected"])
def test_a_point_has_the_bits_that_are_chosen_for_it_alone(rounding: str) -> None:
    config = QConfig.recommended(bias_mode="accumulator", weight_rounding=rounding)
    calibration = Calibration(network(), data())
    usual = grids(calibration.candidate(config))
    layers = {SHARED: {"nbit_input": 12, "range": [-3.0, 3.0]}}
    candidate = calibration.candidate(config.with_overrides(layers=layers))
    found = grids(candidate)
    assert found.pop(SHARED) == (np.float32(3 / 2048), -2047.0, 2047.0)
    assert found == {name: grid for name, grid in usual.items() if name != SHARED}
    assert_same_integers(candidate.partitioned, data())


def test_a_reader_has_a_point_of_its_own() -> None:
    usual = built()
    assert set(grids(usual)) == set(grids(built(layers={SHARED: {"nbit_input": 8}})))
    own = f"{SHARED}>unary_formula_2"
    candidate = built(layers={own: {"range": [-1.0, 1.0]}})
    names = [point.attrs.name for point in measured_points(candidate.simulated)]
    assert sorted(names)[-1] == own
    found = {p.attrs.name: bound_grid(p) for p in measured_points(candidate.simulated)}
    assert found[own] == (np.float32(1 / 128), -127.0, 127.0)
    assert grids(candidate)[own] == found[own]
    assert grids(usual)[SHARED] == grids(candidate)[SHARED], "the other reader's has the old name"
    assert_same_integers(candidate.partitioned, data())


def test_a_table_of_more_bits_covers_what_its_point_does() -> None:
    """With the room of wide points, but not all that a sigmoid varies in."""
    candidate = built(layers={"<tables>": {"nbit_input": 12}})
    found = {p.attrs.name: bound_grid(p) for p in measured_points(candidate.simulated)}
    names = point_names(candidate.simulated)
    shared = next(bound_grid(p) for p, name in names.items() if name == SHARED)
    own = found[f"{SHARED}>unary_formula_2"]
    assert own is not None
    assert shared is not None
    reach, usual = own[0] * own[2], shared[0] * shared[2]
    assert own[2] == 2047
    assert usual < reach < 2.1 * usual


def test_the_file_of_a_configuration_makes_the_same_module() -> None:
    layers = {SHARED: {"range": [-2.7182818, 3.1415926], "nbit_input": 9}}
    config = QConfig.recommended(layers=layers)
    again = QConfig.stored(json.loads(json.dumps(config.to_dict())))
    assert again == config
    one, other = (calibrated(network(), each, data()).module for each in (config, again))
    assert text(one, external_data={}) == text(other, external_data={})


def test_a_point_that_is_not_there_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ConfigValueError, match=r"no quantize point '@conv2d_9'(.|\n)*@conv2d_0"):
        built(layers={"@conv2d_9": {"nbit_input": 12}})


@pytest.mark.parametrize(
    ("layer", "choice", "told"),
    [
        (SHARED, {"nbit_weight": 4}, "no choice 'nbit_weight'"),
        (SHARED, {"float": True}, "no choice 'float'"),
        (SHARED, {"range": [1.0, 2.0]}, "0 among them"),
        (SHARED, {"range": [0.0, 0.0]}, "0 among them"),
        (SHARED, {"range": [0.0, float("inf")]}, "0 among them"),
        (SHARED, {"range": "wide"}, "0 among them"),
        ("conv2d_0", {"range": [-1.0, 1.0]}, "no choice 'range'"),
        ("@conv2d_0:1", {"nbit_input": 12}, "no operator reads as an input"),
    ],
)
def test_what_a_point_cannot_have_is_refused(layer: str, choice: Any, told: str) -> None:
    with pytest.raises(ConfigValueError, match=told):
        built(layers={layer: choice})
