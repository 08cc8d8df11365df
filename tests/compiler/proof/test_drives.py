"""Numbers that single steps are tested on: ends, and what is interesting behind other steps."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.ir.dataflow import Dataflow, Value, dataflow
from compiler.proof.drives import BETWEEN, HIGHEST, LOWEST, MIXED, Drives
from compiler.ranges.analysis import value_bounds
from tests.compiler.inner_values import Array, whole_module
from tests.each import each

LIMITS = {"int8": (-128, 127), "uint32": (0, 2**32 - 1), "int64": (1 - 2**63, 2**63 - 1)}


def drives(core: str, given: Array, **constants: Array) -> tuple[Drives, Dataflow]:
    flow = dataflow(whole_module(core, {"q": given}, constants), "quantized_main")
    return Drives(flow, value_bounds(flow), np.random.default_rng(0)), flow


def drawn(made: Drives, value: Value, rounds: int = 20) -> list[int]:
    """All numbers of some mixed rounds."""
    return np.concatenate([made.draw(value, MIXED).reshape(-1) for _ in range(rounds)]).tolist()


@pytest.mark.parametrize("dtype", LIMITS)
def test_the_ends_are_those_of_the_bounds(dtype: str) -> None:
    """The lowest of 64 bits has no negation in any form, so it is left out."""
    made, flow = drives("  nn.relu(%q)", np.zeros(3, dtype))
    (value,) = flow.inputs
    low, high = LIMITS[dtype]
    assert made.draw(value, LOWEST).tolist() == [low] * 3
    assert made.draw(value, HIGHEST).tolist() == [high] * 3
    assert len(set(made.draw(value, BETWEEN).tolist())) > 1
    assert {low, low + 1, high - 1, high} <= set(drawn(made, value))


@pytest.mark.parametrize(
    ("before", "met"),
    [
        ("nn.bias_add(%q, SHIFTS, axis=-1)", [4321 - 10, 4321 - 200, 4321 - 3000]),
        ("add(%q, SHIFTS)", [4321 - 10, 4321 - 200, 4321 - 3000]),
        ("subtract(%q, SHIFTS)", [4321 + 10, 4321 + 200, 4321 + 3000]),
        ("subtract(SHIFTS, %q)", [10 - 4321, 200 - 4321, 3000 - 4321]),
        ("multiply(%q, SHIFTS)", [432, 21, 1]),
        ("clip(%q, a_min=-9999f, a_max=9999f)", [4321, 4321, 4321]),
        ("right_shift(%q, 3i64)", [4321 * 8] * 3),
        ("left_shift(clip(%q, a_min=-9999f, a_max=9999f), 3i64)", [540] * 3),
        ("multiply(%q, %q)", [65, 65, 65]),
        ("fixed_point_multiply(%q, multiplier=1073741824, shift=-1)", [4 * 4321] * 3),
    ],
)
def test_a_compared_number_is_met_in_front_of_other_steps(before: str, met: list[int]) -> None:
    """Every channel has a number of its own that makes it."""
    made, flow = drives(
        f'  cast(equal({before}, RARE), dtype="int32")',
        np.zeros((2, 3), "int64"),
        SHIFTS=np.array([10, 200, 3000]),
        RARE=np.array(4321),
    )
    (value,) = flow.inputs
    rounds = np.concatenate([made.draw(value, MIXED) for _ in range(60)])
    for channel, number in each(enumerate(met)):
        assert number in rounds[:, channel]


def test_ties_of_a_rescaling_are_met_for_every_channel() -> None:
    core = "  fixed_point_multiply_per_axis(%q, FACTORS, SHIFTS, axis=-1)"
    factors, shifts = np.array([1 << 30, 3 << 29], "int32"), np.array([-1, -4], "int32")
    made, flow = drives(core, np.zeros((4, 2), "int32"), FACTORS=factors, SHIFTS=shifts)
    rounds = np.concatenate([made.draw(flow.inputs[0], MIXED) for _ in range(60)])
    for channel, factor in each(enumerate(factors * 0.5 ** (31.0 - shifts))):
        near = np.abs(rounds[:, channel] * factor) < 4  # small results and their ties
        assert np.any(np.abs(rounds[near, channel] * factor % 1 - 0.5) <= factor)
