from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compiler.targets.c import memory_plan
from compiler.targets.c.memory_plan import Lifetime, lower_bound, plan_memory

LIFETIMES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(0, 30), st.integers(0, 10)).map(
        lambda t: Lifetime(t[0], t[1], t[1] + t[2])
    ),
    max_size=40,
)


@given(LIFETIMES, st.sampled_from([1, 16, 64]), st.sampled_from([0, 1 << 20]))
def test_values_that_live_together_never_share_a_byte(
    lifetimes: list[Lifetime], alignment: int, most_work: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_plan, "_MOST_WORK", most_work)
        plan = plan_memory(lifetimes, alignment)
    assert len(plan.offsets) == len(lifetimes)
    placed = list(zip(plan.offsets, lifetimes))
    for number, (offset, value) in enumerate(placed):
        assert offset % alignment == 0
        assert offset + value.size <= plan.arena_bytes
        for other_offset, other in placed[:number]:
            together = value.first <= other.last and other.first <= value.last
            apart = offset + value.size <= other_offset or other_offset + other.size <= offset
            assert not together or apart or not value.size or not other.size


@given(LIFETIMES)
def test_the_lower_bound_is_the_fullest_step(lifetimes: list[Lifetime]) -> None:
    fullest = max(
        (sum(v.size for v in lifetimes if v.first <= step <= v.last) for step in range(45)),
        default=0,
    )
    plan = plan_memory(lifetimes)
    assert lower_bound(lifetimes) == plan.lower_bound_bytes == fullest <= plan.arena_bytes


def test_a_chain_needs_two_neighbours_only() -> None:
    chain = [Lifetime(1024 * (1 + n % 3), n, n + 1) for n in range(50)]
    plan = plan_memory(chain)
    assert plan.arena_bytes == plan.lower_bound_bytes == 1024 * 5


def test_a_value_over_the_whole_program_keeps_its_place() -> None:
    lifetimes = [Lifetime(640, 0, 9), *(Lifetime(320, n, n + 1) for n in range(9))]
    plan = plan_memory(lifetimes)
    assert plan.arena_bytes == 1280


def test_no_values_need_no_arena() -> None:
    plan = plan_memory([])
    assert (plan.offsets, plan.arena_bytes, plan.lower_bound_bytes) == ((), 0, 0)


def test_thousands_of_values_that_live_together_are_placed() -> None:
    together = [Lifetime(64, n // 100, 400) for n in range(20000)]
    alone = [Lifetime(64, 401 + n, 402 + n) for n in range(20000)]
    plan = plan_memory([*together, *alone])
    assert plan.arena_bytes == plan.lower_bound_bytes == 64 * 20000
