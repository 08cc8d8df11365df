"""The search space: conditions, canonical hashes, enumeration, unseen neighbours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.qtypes.layer_choices import SUMS, TABLES
from compiler.qtypes.qconfig import QConfig
from qsearch.errors import SearchError
from qsearch.search.calibration import variants_of
from qsearch.search.sampler import first_points
from qsearch.search.space import (
    UNWEIGHTED,
    Parameter,
    Params,
    Space,
    config_hash,
    default_space,
    input_parameter,
    to_qconfig,
)

NEAREST = {"weight_rounding": ("corrected",)}
START = QConfig.recommended(weight_rounding="corrected")
POINTS = list(default_space().points())


def among(hashes: set[str]) -> Callable[[Params], bool]:
    """Whether the configuration of a point is one of these."""
    return lambda point: config_hash(to_qconfig(point, START).to_dict()) in hashes


def hash_of(params: dict[str, object]) -> str:
    return config_hash(QConfig.recommended(**params).to_dict())


@pytest.mark.parametrize(("weighted", "count"), [(True, 1_188), (False, 198)])
def test_the_points_of_the_default_space_are_different_configurations(
    weighted: bool, count: int
) -> None:
    points = list(default_space({} if weighted else UNWEIGHTED).points())
    hashes = {config_hash(to_qconfig(point, START).to_dict()) for point in points}
    assert len(points) == len(hashes) == count
    assert all(point["partition_conversions"] == "fully_integral" for point in points)


def test_allow_float_searches_all_three_partition_conversions() -> None:
    space = default_space({"partition_conversions": ("fully_integral", "enabled", "disabled")})
    values = {p["partition_conversions"] for p in space.points()}
    assert values == {"fully_integral", "enabled", "disabled"}


def test_the_recommended_configuration_is_a_point_of_the_space() -> None:
    params = default_space().params_of(START)
    assert to_qconfig(params, START) == START
    assert params in list(default_space().points())


def test_a_configuration_outside_the_space_is_refused_by_name() -> None:
    with pytest.raises(SearchError, match=r"percentile=0\.5"):
        default_space().params_of(QConfig.recommended(percentile=0.5))


def test_values_without_effect_do_not_change_the_hash() -> None:
    assert hash_of({"calibrate_mode": "max", "percentile": 0.9}) == hash_of(
        {"calibrate_mode": "max"}
    )
    assert hash_of({"global_scale": 4.0}) == hash_of({})
    assert hash_of({"calibrate_chunk_by": 3}) == hash_of({})
    assert hash_of({"skip_conv_layers": None}) == hash_of({"skip_conv_layers": []})


def test_values_with_effect_change_the_hash() -> None:
    base = {"calibrate_mode": "global_scale", "global_scale": 8.0}
    assert hash_of(base) != hash_of({**base, "global_scale": 4.0})
    assert hash_of({"percentile": 0.999}) != hash_of({})
    assert hash_of({"skip_conv_layers": [0]}) != hash_of({})


def test_a_parameter_without_effect_is_left_out_of_a_point() -> None:
    space = default_space()
    params = space.effective({"calibrate_mode": "max", "percentile": 0.999, "global_scale": 4.0})
    assert "percentile" not in params
    assert "global_scale" not in params


def test_a_space_survives_its_plain_form() -> None:
    space = default_space({"partition_conversions": ("fully_integral", "enabled", "disabled")})
    assert Space.from_dict(space.to_dict()) == space


def test_a_condition_on_a_later_parameter_is_refused() -> None:
    with pytest.raises(SearchError, match="not well formed"):
        Space((Parameter("percentile", (0.9,), (("calibrate_mode", ("percentile",)),)),))


def test_the_recommended_point_comes_first_and_good_guesses_next() -> None:
    points = first_points(default_space(), START)
    assert points[0] == default_space().params_of(START)
    assert len({str(point) for point in points}) == len(points) > 2
    assert {point["activation_scheme"] for point in points[1:]} == {"asymmetric"}
    roundings = {point["weight_rounding"] for point in points[1:]}
    assert roundings == {"sequential"}
    large = first_points(default_space({"weight_rounding": ("corrected",)}), START)
    assert [point["weight_rounding"] for point in large] == ["corrected"] * 3
    for point in points:
        assert point in list(default_space().points())
    assert first_points(default_space(UNWEIGHTED), START) == [
        default_space(UNWEIGHTED).params_of(START)
    ]


def test_a_model_with_sums_begins_with_sums_of_16_bits() -> None:
    space, bits = default_space(inputs=[{SUMS: 16}]), input_parameter(SUMS)
    points = first_points(space, START)
    assert [point[bits] for point in points] == [8, 16, 16, 16]
    assert {str(space.effective(point)) for point in points} == {str(point) for point in points}
    large = default_space(NEAREST, inputs=[{SUMS: 16}])
    assert [point[bits] for point in first_points(large, START)] == [8, 16, 16]


def test_a_model_with_tables_begins_with_tables_of_12_bits() -> None:
    space, bits = default_space(inputs=[{TABLES: 12}]), input_parameter(TABLES)
    assert [point[bits] for point in first_points(space, START)] == [8, 12, 12, 12]
    large = default_space(NEAREST, inputs=[{TABLES: 12}])
    assert [point[bits] for point in first_points(large, START)] == [8, 12, 12]
    assert len(variants_of(space)) == len(variants_of(default_space()))


def test_size_stops_counting_at_its_limit() -> None:
    assert default_space().size(20_000) == 1_188
    assert default_space().size(10) == 10


@given(st.integers(0, 2**32 - 1), st.integers(0, 65))
def test_an_unseen_neighbour_is_new_and_the_same_for_the_same_seed(seed: int, index: int) -> None:
    space = default_space()
    point = POINTS[index]
    seen = {config_hash(to_qconfig(point, START).to_dict())}
    found = space.unseen_near(point, among(seen), seed)
    assert found is not None
    assert config_hash(to_qconfig(found, START).to_dict()) not in seen
    assert found == space.effective(found)
    assert found == space.unseen_near(point, among(seen), seed)


def test_the_last_unseen_point_is_found_and_then_none() -> None:
    space = default_space()
    hashes = [config_hash(to_qconfig(p, START).to_dict()) for p in POINTS]
    start = POINTS[0]
    last = space.unseen_near(start, among({*hashes[:40], *hashes[41:]}), 7)
    assert last == POINTS[40]
    assert space.unseen_near(start, among(set(hashes)), 7) is None


def test_changed_points_differ_in_one_value_and_what_it_makes_active() -> None:
    space = default_space()
    here = space.params_of(START)
    points = space.changed(here, np.random.default_rng(1))
    assert len(points) == len({str(point) for point in points}) > 12
    for point in points:
        assert point == space.effective(point)
        differing = {n for n in {*here, *point} if here.get(n) != point.get(n)}
        depends = {p.name for p in space.parameters if {name for name, _ in p.when} & differing}
        assert len(differing - depends) == 1


def test_of_a_parameter_with_many_choices_some_changes_are_drawn() -> None:
    space = Space((Parameter("percentile", tuple(0.9 + place / 1e4 for place in range(1000))),))
    points = space.changed({"percentile": 0.9}, np.random.default_rng(1))
    assert 1 < len(points) < 50
    assert points == space.changed({"percentile": 0.9}, np.random.default_rng(1))
    assert points != space.changed({"percentile": 0.9}, np.random.default_rng(2))


def test_costly_choices_are_points_that_no_search_around_others_proposes() -> None:
    space = default_space(costly=True)
    here = space.params_of(START.with_overrides(weight_rounding="sequential"))
    assert Space.from_dict(space.to_dict()) == space
    assert here in list(space.points())
    assert space.is_costly(here)
    near = [*space.changed(here, np.random.default_rng(1)), space.without_costly(here)]
    near += [space.unseen_near(here, lambda _: False, seed) or {} for seed in range(20)]
    assert {point["weight_rounding"] for point in near} == {"corrected"}
    assert space.with_costly(near[-1]) == [{**near[-1], "weight_rounding": "sequential"}]
    assert space.with_costly(here) == []
    points = [point for point in space.points() if not space.is_costly(point)]
    assert space.unseen_near(here, lambda point: point in points, 1) is None
    assert not any(map(space.is_costly, first_points(space, START)))


def test_bits_that_layers_read_are_one_choice() -> None:
    space = default_space(inputs=[{"conv_1": 16, "conv.2": 14}])
    start = START.with_overrides(layers={"gemm_0": {"nbit_input": 16}})
    here = space.params_of(start)
    assert len(list(space.points())) == 2 * len(POINTS)
    wide = {**here, "layers.conv_1.nbit_input": 16, "layers.conv.2.nbit_input": 14}
    assert wide in space.changed(here, np.random.default_rng(0))
    assert here in space.changed(wide, np.random.default_rng(0))
    qconfig = to_qconfig(wide, start)
    assert qconfig.layers.input_bits == {"conv_1": 16, "conv.2": 14, "gemm_0": 16}
    assert space.params_of(qconfig) == wide
    assert to_qconfig(here, start) == start
    assert Space.from_dict(space.to_dict()) == space
    first, *guesses = first_points(space, start)
    assert first == here
    assert all(point["layers.conv.2.nbit_input"] == 14 for point in guesses)


def test_a_start_configuration_keeps_its_other_fields() -> None:
    start = replace(START, round_for_shift=False)
    assert not to_qconfig({"calibrate_mode": "max"}, start).round_for_shift


def test_variants_are_those_that_points_have_together() -> None:
    assert variants_of(default_space()) == [
        {"smooth_alpha": None},
        {"smooth_alpha": 0.5},
        {"smooth_alpha": 0.75},
    ]
    assert variants_of(default_space(UNWEIGHTED)) == []
    sums = variants_of(default_space(inputs=[{SUMS: 16}]))
    assert len(sums) == 6
    assert [one["layers"] for one in sums] == [{}, {SUMS: {"nbit_input": 16}}] * 3
