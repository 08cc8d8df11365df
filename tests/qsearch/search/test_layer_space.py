"""Bits of layers: budgets are kept, flips move one layer, raw choices for other samplers."""

from __future__ import annotations

from itertools import islice

import pytest

from compiler.qtypes.qconfig import QConfig
from qsearch.search.layer_space import BUDGET, NO_FLIP, LayerPlan, LayerSpace
from qsearch.search.space import layer_parameter, to_qconfig, value_in

LAYERS = LayerSpace({"conv_0": 100, "conv_1": 1000, "gemm_0": 400}, (4, 6, 8))
DAMAGE = {
    "conv_0": {4: 9.0, 6: 1.0, 8: 0.0},
    "conv_1": {4: 0.4, 6: 0.1, 8: 0.0},
    "gemm_0": {4: 2.0, 6: 0.2, 8: 0.0},
}
PLAN = LayerPlan(LAYERS, DAMAGE)


def bytes_of(bits: dict[str, int]) -> float:
    return sum(LAYERS.sizes[name][chosen] for name, chosen in bits.items())


@pytest.mark.parametrize("fraction", [1 / 32, 0.25, 0.5, 0.75, 1.0])
def test_bits_stay_within_the_budget(fraction: float) -> None:
    point = {BUDGET: fraction, "first_flip": NO_FLIP, "second_flip": NO_FLIP}
    assert bytes_of(PLAN.bits_of(point)) <= 750 + fraction * 750


def test_a_limit_of_bytes_is_what_the_largest_budget_means() -> None:
    plan = LayerPlan(LAYERS, DAMAGE, most=1000.0)
    assert 950 <= bytes_of(plan.bits_of({BUDGET: 1.0})) <= 1000
    assert plan.largest()[0][BUDGET] == 1.0


def test_under_a_limit_that_binds_the_others_pay_for_a_layer_that_is_moved() -> None:
    plan = LayerPlan(LAYERS, DAMAGE, most=1250.0)
    plain = plan.bits_of({BUDGET: 1.0})
    assert plain == {"conv_0": 8, "conv_1": 6, "gemm_0": 8}
    up = plan.bits_of({BUDGET: 1.0, "first_flip": "conv_1+"})
    assert up["conv_1"] == 8
    assert bytes_of(up) <= 1250
    first = plan.largest()
    assert [point["first_flip"] for point in first[:7]] == [*plan.space.parameters[1].choices]
    assert max(bytes_of(plan.bits_of(point)) for point in first) <= 1250
    # What leaves no room for the others is not moved.
    tight = LayerPlan(LAYERS, DAMAGE, most=750.0)
    assert set(tight.bits_of({BUDGET: 1.0, "first_flip": "conv_1+"}).values()) == {4}


def test_only_a_limit_that_binds_gives_all_trials_other_bits() -> None:
    start = QConfig.recommended()
    assert LayerPlan(LAYERS, DAMAGE, most=1500.0).within(start) == start
    bound = LayerPlan(LAYERS, DAMAGE, most=1250.0)
    assert bound.within(start).layers == {"conv_1": {"nbit_weight": 6}}


def test_a_flip_moves_one_layer_by_one_choice_and_stays_in_range() -> None:
    plain = PLAN.bits_of({BUDGET: 0.5})
    up = PLAN.bits_of({BUDGET: 0.5, "first_flip": "conv_1+"})
    assert {name for name in plain if plain[name] != up[name]} == {"conv_1"}
    assert PLAN.bits_of({BUDGET: 1.0, "first_flip": "conv_0+"})["conv_0"] == 8


def test_budgets_halve_the_gap_below_the_smallest_that_keeps_the_limits() -> None:
    kept: dict[float, bool | None] = {}
    for _ in range(5):
        fraction = float(next(PLAN.halved(kept))[BUDGET] or 0)
        kept[fraction] = fraction >= 0.3
    fails, fits = (sorted(f for f, ok in kept.items() if ok is which) for which in (False, True))
    assert fails[-1] < 0.3 <= fits[0]
    assert fits[0] - fails[-1] < 0.1
    # Once nothing is between, the smallest loses a choice of one layer.
    edge = {0.25: False, 0.25 + 1 / 64: True}
    assert not list(PLAN.halved(edge))
    points = list(PLAN.fewer(0.25 + 1 / 64))
    assert {point[BUDGET] for point in points} == {0.25 + 1 / 64}
    assert {str(point["first_flip"])[-1] for point in points} == {"-"}


def test_budgets_of_one_batch_differ_and_spread_over_the_range() -> None:
    fractions = [float(point[BUDGET] or 0) for point in islice(PLAN.halved({}), 4)]
    assert len(set(fractions)) == 4
    assert min(fractions) < 0.25
    assert max(fractions) > 0.6


def test_where_bytes_are_no_objective_the_largest_budgets_come_first() -> None:
    assert [p[BUDGET] for p in PLAN.largest()[:2]] == [1.0, 1.0 - 1 / 64]


def test_a_layer_in_float_is_a_choice_of_32_bits() -> None:
    layers = LayerSpace({"conv_0": 100, "gemm_0": 400}, (4, 8, 32))
    assert layers.sizes["conv_0"] == {4: 50.0, 8: 100.0, 32: 400.0}
    damage = {"conv_0": {4: 9.0, 8: 8.0, 32: 0.0}, "gemm_0": {4: 0.2, 8: 0.1, 32: 0.0}}
    plan = LayerPlan(layers, damage, most=800.0)
    start = QConfig.recommended(partition_conversions="enabled")
    params = plan.params_of({BUDGET: 1.0})
    qconfig = to_qconfig(params, start)
    assert qconfig.layers == {"conv_0": {"float": True}}
    assert [value_in(qconfig.to_dict(), name) for name in params] == ["float", 8]
    # Another point takes the layer out of float again.
    assert to_qconfig({layer_parameter("conv_0"): 4}, qconfig).layers == {
        "conv_0": {"nbit_weight": 4}
    }
    assert layers.raw()[0].choices == ("float", 8, 4)


def test_raw_parameters_make_the_same_configuration_as_the_field() -> None:
    start = QConfig.recommended()
    params = {layer_parameter("conv_0"): 4, layer_parameter("gemm_0"): 8}
    assert to_qconfig(params, start).layers == {"conv_0": {"nbit_weight": 4}}
    raw = LAYERS.raw()
    assert [p.name for p in raw] == [layer_parameter(name) for name in LAYERS.elements]
    assert raw[0].choices == (8, 6, 4)
