"""What generated C does, counted in its text: exact where loops have no borders."""

from __future__ import annotations

from typing import Any

import pytest

from compiler import lower, parse
from compiler.ir.module import IRModule
from compiler.targets.c.cores import CORES
from compiler.targets.c.package import Footprint, c_package, footprint
from compiler.targets.c.work import KINDS, work_of

HEAD = '#[version = "0.0.5"]\n'


def _lowered(text: str) -> IRModule:
    return lower(parse(HEAD + text), target="c").mod


def _made(text: str) -> Footprint:
    return footprint(_lowered(text))


def _counts(counts: dict[str, float], *kinds: str) -> list[float]:
    return [counts[kind] for kind in kinds]


def test_a_pointwise_kernel_is_counted_value_by_value() -> None:
    work = _made("def @main(%x: Tensor[(16, 8), int8]) { nn.relu(%x) }").work
    once = {kind: n for kind, n in work.times.items() if n}
    assert once == {"call": 1, "loop": 1, "turn": 128, "load": 128, "store": 128, "function": 128}
    assert _counts(work.places, "loop", "load", "store", "function") == [1, 1, 1, 1]


@pytest.mark.parametrize("rows", [8, 49, 512])
def test_dot_products_are_as_many_as_rows_and_columns_ask_for(rows: int) -> None:
    work = _made(
        f"def @main(%x: Tensor[({rows}, 64), int8], %w: Tensor[(128, 64), int8]) "
        '{ nn.dense(%x, %w, units=128, out_dtype="int32") }'
    ).work
    # Two rows and four columns a step; the last of an odd number of rows is computed twice.
    least, most = rows * 128 * 64 / 8, (rows + 8) * 128 * 64 / 8
    assert least <= work.times["dots"] <= most
    assert work.places["dots"] == 1


def test_taps_are_counted_one_by_one() -> None:
    work = _made(
        "def @main(%x: Tensor[(1, 12, 12, 16), int8], %w: Tensor[(3, 3, 16, 1), int8]) "
        "{ nn.conv2d(%x, %w, padding=[0, 0, 0, 0], groups=16, channels=16, kernel_size=[3, 3], "
        'data_layout="NHWC", kernel_layout="HWOI", out_dtype="int32") }'
    ).work
    assert work.times["tap"] == 9 * 10 * 10 * 16
    assert work.places["tap"] == 9


def test_a_kernel_that_is_called_twice_does_twice_the_work_in_the_same_code() -> None:
    one = _made("def @main(%x: Tensor[(64), int16]) { nn.relu(%x) }").work
    two = _made(
        "def @main(%x: Tensor[(64), int16], %y: Tensor[(64), int16]) { (nn.relu(%x), nn.relu(%y)) }"
    ).work
    assert two.times["turn"] == 2 * one.times["turn"]
    assert two.places["turn"] == one.places["turn"]


def test_a_footprint_is_that_of_the_package() -> None:
    mod = _lowered('def @main(%x: Tensor[(4, 64), int8]) { nn.softmax(cast(%x, dtype="float32")) }')
    package, made = c_package(mod, "m"), footprint(mod)
    assert (made.arena_bytes, made.constant_bytes) == (package.arena_bytes, package.constant_bytes)


def test_every_core_knows_the_kinds_and_no_others() -> None:
    assert len(CORES) >= 6
    for core in CORES.values():
        for weights in (core.instructions, core.code_bytes):
            assert set(weights) <= set(KINDS)
            assert weights["dots"] > 0
            assert min(weights.values()) >= 0


@pytest.mark.parametrize("core", CORES.values(), ids=lambda core: core.name)
def test_wider_numbers_and_more_of_them_take_more(core: Any) -> None:
    def taken(count: int, dtype: str) -> tuple[float, float]:
        work = _made(
            f"def @main(%x: Tensor[({count}), {dtype}], %y: Tensor[({count}), {dtype}]) "
            "{ floor_divide(%x, %y) }"
        ).work
        return core.instructions_of(work), core.code_bytes_of(work)

    few, many, wide = taken(100, "int32"), taken(1000, "int32"), taken(100, "int64")
    assert 9 < many[0] / few[0] < 10.5
    assert many[1] == few[1]
    assert wide[0] > 2 * few[0]


def test_a_loop_whose_limits_are_names_runs_as_often_as_they_say() -> None:
    text = """static void f(const int8_t *p0, int8_t *o0)
{
    for (int32_t first = 0; first < 49; first += 25) {
        const int32_t behind = min_i32(49, first + 25);
        for (int32_t j = first; j < behind; ++j) {
            o0[j] = p0[j];
        }
    }
}
"""
    assert _counts(work_of(text).times, "loop", "turn", "store") == [3, 2 + 49, 49]
