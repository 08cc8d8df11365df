"""Ranges hold for every input, are reached where that can be shown, and name what overflows."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range
from compiler.ops.nn.integer_standardize import output_bound
from compiler.ops.rules.integer_calls import requantize
from compiler.pipeline import evaluate
from compiler.proof.ranges import Ranges, analyse
from compiler.ranges import rules
from tests.each import each

op = relay.op


def constant(values: Any, dtype: str = "int32") -> Expr:
    return relay.const(np.asarray(values, dtype))


def module(params: Any, body: Expr) -> IRModule:
    return relay.module(relay.Function(tuple(params), body))


def ranges(mod: IRModule, *inputs: tuple[int, int]) -> Ranges:
    return analyse(mod, "main", inputs or None)


def result(mod: IRModule, *inputs: tuple[int, int]) -> tuple[int, int]:
    found = ranges(mod, *inputs)
    assert found.findings == ()
    return found.values[-1].low, found.values[-1].high


def only_finding(mod: IRModule, *inputs: tuple[int, int]) -> Any:
    (finding,) = ranges(mod, *inputs).findings
    return finding


@given(seed=st.integers(0, 1 << 30), groups=st.sampled_from((1, 2, 4)))
@settings(max_examples=25, deadline=None)
def test_the_bound_of_a_convolution_is_reached_by_the_worst_input(seed: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    weight = rng.integers(-127, 128, (4, 4 // groups, 3, 2)).astype("int8")
    low, high = sorted(rng.integers(-128, 128, 2).tolist())
    x = relay.var("x", (1, 4, 3, 2), "int8")
    call = op.nn.conv2d(x, constant(weight, "int8"), groups=groups, out_dtype="int32")
    mod = module([x], call)
    reached = []
    for channel in range(4):
        worst = np.zeros((1, 4, 3, 2), "int8")
        first = channel // (4 // groups) * (4 // groups)
        worst[0, first : first + 4 // groups] = np.where(weight[channel] > 0, high, low)
        reached.append(int(evaluate(mod, {"x": worst})[0][0, channel, 0, 0]))
    assert result(mod, (low, high))[1] == max(reached)


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=30, deadline=None)
def test_no_value_ever_leaves_its_bounds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (1, 3, 6, 6), "int8")
    mod = module([x], random_network(x, rng))
    found = ranges(mod, (-127, 127))
    assert found.findings == ()
    bounds = [(v.low, v.high) for v in found.values if v.op]
    for values in (
        rng.integers(-127, 128, (1, 3, 6, 6)),
        rng.choice([-127, 127], (1, 3, 6, 6)),
        np.full((1, 3, 6, 6), 127),
        np.full((1, 3, 6, 6), -127),
    ):
        seen: list[tuple[int, int]] = []

        def tap(node: Expr, value: Any, seen: list[tuple[int, int]] = seen) -> None:
            if isinstance(node, relay.Call):
                seen.append((int(value.min()), int(value.max())))

        evaluate(mod, {"x": values.astype("int8")}, tap=tap)
        assert len(seen) == len(bounds)
        for (low, high), (smallest, largest) in zip(bounds, seen, strict=True):
            assert low <= smallest
            assert largest <= high


def random_network(x: Expr, rng: np.random.Generator) -> Expr:
    """Every kind of step that realisation emits, with random numbers."""

    def conv(data: Expr, channels: int, **attrs: Any) -> Expr:
        weight = constant(rng.integers(-127, 128, (channels, 3, 3, 3)), "int8")
        return op.nn.conv2d(data, weight, padding=(1, 1), out_dtype="int32", **attrs)

    def requantized(data: Expr, channels: int) -> Expr:
        m = constant(rng.integers(1 << 30, 1 << 31, channels))
        e = constant(rng.integers(-9, -3, channels))
        wide = op.fixed_point_multiply_per_axis(op.cast(data, dtype="int64"), m, e, axis=1)
        return op.cast(op.clip(wide, a_min=-127, a_max=127), dtype="int8")

    def to_nearest(data: Expr) -> Expr:
        wide = op.multiply(
            op.cast(data, dtype="int64"), constant(rng.integers(1, 1 << 31), "int64")
        )
        half = op.where(
            op.greater_equal(wide, constant(0, "int64")),
            constant(1 << 33, "int64"),
            constant((1 << 33) - 1, "int64"),
        )
        down = op.right_shift(op.add(wide, half), constant(34, "int64"))
        return op.cast(op.clip(op.cast(down, dtype="int32"), a_min=-90, a_max=99.7), dtype="int8")

    total = op.add(conv(x, 3), constant(rng.integers(-9999, 9999, (3, 1, 1))))
    first = requantized(op.nn.relu(total), 3)
    second = to_nearest(conv(first, 3))
    shifted = op.left_shift(op.cast(second, dtype="int32"), constant(rng.integers(0, 5)))
    joined = op.add(shifted, op.multiply(op.cast(first, dtype="int32"), constant(5)))
    pooled = op.nn.avg_pool2d(
        joined, pool_size=(2, 2), strides=(2, 2), padding=(1, 1), count_include_pad=True
    )
    largest = op.nn.max_pool2d(second, pool_size=(2, 2), strides=(2, 2), padding=(1, 1))
    both = op.concatenate(relay.Tuple((pooled, op.cast(largest, dtype="int32"))), axis=1)
    turned = op.reshape(op.transpose(both, axes=(0, 2, 3, 1)), newshape=(1, 16, 6))
    narrow = op.cast(op.right_shift(turned, constant(6)), dtype="int8")
    table = constant(rng.integers(-128, 128, 256), "int8")
    looked = op.take(table, op.add(op.cast(narrow, dtype="int32"), constant(128)))
    product = op.nn.batch_matmul(looked, narrow, out_dtype="int32")
    return op.subtract(op.mean(product, axis=(1,)), op.max(product, axis=(2,)))


def test_an_accumulator_that_may_overflow_is_named_with_its_channel_and_bound() -> None:
    weight = np.zeros((5, 140_000), "int8")
    weight[3] = 127
    x = relay.var("x", (1, 140_000), "int8")
    mod = module([x], op.nn.dense(x, constant(weight, "int8"), out_dtype="int32"))
    finding = only_finding(mod, (-127, 127))
    assert finding.node == "%0 nn.dense"
    assert finding.bound == -127 * 127 * 140_000
    assert finding.what == (
        "the accumulator of channel 3 may reach -2258060000, int32 ends at -2147483648"
    )


def test_the_actual_weights_decide_and_not_their_dtype() -> None:
    x = relay.var("x", (1, 140_000), "int8")
    light = constant(np.ones((1, 140_000)), "int8")
    assert result(module([x], op.nn.dense(x, light, out_dtype="int32"))) == (
        -128 * 140_000,
        127 * 140_000,
    )


def test_partial_sums_count_even_where_the_whole_sum_is_small() -> None:
    weight = constant([[127] * 3 + [-127] * 3], "int8")
    x = relay.var("x", (1, 6), "int8")
    mod = module([x], op.nn.dense(x, weight, out_dtype="int16"))
    assert only_finding(mod, (120, 127)).bound == -3 * 127 * 127
    assert result(mod, (0, 20)) == (-3 * 127 * 20, 3 * 127 * 20)


@pytest.mark.parametrize(
    ("build", "bound"),
    [
        (lambda x: op.cast(x, dtype="int8"), 1000),
        (lambda x: op.add(x, constant(2147483000)), 2147484000),
        (lambda x: op.subtract(constant(-2147483000), x), -2147484000),
        (lambda x: op.multiply(x, constant(3_000_000)), 3_000_000_000),
        (lambda x: op.left_shift(x, constant(22)), 1000 << 22),
        (lambda x: op.sum(op.multiply(x, constant(1_000_000)), axis=(0,)), 4_000_000_000),
        (lambda x: op.fixed_point_multiply(x, multiplier=1 << 30, shift=24), 1000 << 23),
        (
            lambda x: op.fixed_point_multiply(x, multiplier=(1 << 30) + 1, shift=24),
            (1000 << 24) * ((1 << 30) + 1),
        ),
    ],
)
def test_every_way_out_of_a_dtype_is_found(build: Any, bound: int) -> None:
    x = relay.var("x", (4,), "int32")
    findings = ranges(module([x], build(x)), (0, 1000)).findings
    assert any(abs(f.bound - bound) <= 8 for f in findings)
    assert ranges(module([x], build(x)), (0, 1)).findings == ()


def test_the_64_bit_product_of_a_fixed_point_multiplication_is_bounded_too() -> None:
    x = relay.var("x", (4,), "int64")
    call = op.fixed_point_multiply(x, multiplier=(1 << 31) - 1, shift=-20)
    mod = module([x], op.clip(call, a_min=-127, a_max=127))
    finding = ranges(mod, (0, 1 << 33)).findings[0]
    assert finding.bound >= 1 << 63
    assert "int64 ends at" in finding.what
    assert ranges(mod, (0, 1 << 31)).findings == ()


@given(
    x=st.integers(-(1 << 34), 1 << 34),
    factors=st.lists(
        st.tuples(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(-40, 31)),
        min_size=1,
        max_size=3,
    ),
)
@example(x=1 << 32, factors=[((1 << 30) + 1, -32)])
@example(x=(1 << 31) - 1, factors=[(-(1 << 31), -32), (3, 1)])
@settings(deadline=None)
def test_a_fixed_point_product_of_any_size_is_that_of_big_integers(
    x: int, factors: list[tuple[int, int]]
) -> None:
    data = relay.var("x", (len(factors),), "int64")
    m, e = (constant(one) for one in zip(*factors, strict=True))
    mod = module([data], op.fixed_point_multiply_per_axis(data, m, e, axis=0))
    found, inside, ends = ranges(mod, (x, x)), [0], []
    for multiplier, shift in factors:
        if multiplier == 1 << 30:
            at = 1 - shift
            ends.append(x << -at if at <= 0 else x + (1 << (at - 1)) >> at if at < 64 else 0)
        elif shift < -32:
            ends.append(0)
        else:
            right = max(-shift, 0)
            inside += [x << max(shift, 0), (x << max(shift, 0)) * multiplier]
            inside += [inside[-1] + (1 << (30 + right))]
            ends.append(inside[-1] >> (31 + right))
    limits = (inside, "int64"), (ends, "int32")
    fits = all(
        integer_range(ty)[0] <= n <= integer_range(ty)[1] for some, ty in limits for n in some
    )
    assert (found.findings == ()) == fits
    if fits:
        assert (found.values[-1].low, found.values[-1].high) == (min(ends), max(ends))


def test_a_shift_by_more_bits_than_there_are_is_found() -> None:
    x = relay.var("x", (4,), "int32")
    finding = only_finding(module([x], op.right_shift(x, constant(32))))
    assert "shifts by 32 to 32 bits, legal are 0 to 31" in finding.what


def test_what_wraps_may_be_anything_afterwards() -> None:
    x = relay.var("x", (4,), "int32")
    mod = module([x], op.nn.relu(op.cast(x, dtype="int8")))
    assert (ranges(mod).values[-1].low, ranges(mod).values[-1].high) == (0, 127)


def test_an_operator_without_a_rule_leaves_the_module_unproved() -> None:
    x = relay.var("x", (4,), "int32")
    finding = only_finding(module([x], op.power(x, constant(3))))
    assert finding.node == "%0 power"
    assert "no range rule" in finding.what


@pytest.mark.parametrize("given", list(product((-8, -3, -1, 0, 2, 5, 7), repeat=2)), ids=str)
def test_bounds_of_a_disjunction_hold_all_that_it_gives(given: tuple[int, int]) -> None:
    low, high = min(given), max(given)
    x, y = (relay.var(name, (4,), "int8") for name in "xy")
    for other in product((-8, -2, 0, 3, 7), repeat=2):
        least, most = min(other), max(other)
        bounds = result(module([x, y], op.bitwise_or(x, y)), (low, high), (least, most))
        found = {a | b for a in range(low, high + 1) for b in range(least, most + 1)}
        assert bounds[0] <= min(found)
        assert max(found) <= bounds[1]


@given(st.tuples(*[st.integers(-40, 40)] * 4))
@settings(max_examples=40, deadline=None)
def test_bounds_of_a_conjunction_hold_all_that_it_gives(ends: tuple[int, int, int, int]) -> None:
    first, second = (min(ends[:2]), max(ends[:2])), (min(ends[2:]), max(ends[2:]))
    x, y = (relay.var(name, (1,), "int32") for name in "xy")
    low, high = result(module([x, y], op.bitwise_and(x, y)), first, second)
    given_all = [
        a & b for a, b in product(range(first[0], first[1] + 1), range(second[0], second[1] + 1))
    ]
    assert low <= min(given_all)
    assert max(given_all) <= high
    assert low >= -2 * max(1, *map(abs, ends))  # no more bits than the operands have


@given(st.integers(-300, 300), st.integers(0, 40), st.integers(-40, 300))
@settings(max_examples=60, deadline=None)
def test_bounds_of_masked_bits_hold_them_and_no_fixed_bit_varies(
    low: int, size: int, mask: int
) -> None:
    x = relay.var("x", (1,), "int32")
    masked = op.bitwise_and(x, relay.const(np.array(mask, "int32")))
    least, most = result(module([x], masked), (low, low + size))
    found = [number & mask for number in range(low, low + size + 1)]
    assert least <= min(found)
    assert max(found) <= most
    if size == 0:
        assert least == most
    if mask >= 0:
        assert least >= 0
        assert most <= mask


def test_a_factor_of_each_channel_may_shift_some_channels_only() -> None:
    x = relay.var("x", (1, 2), "int32")
    how = {"rounding": "tflm", "compute_dtype": "int32", "out_dtype": "int32"}
    factors = np.array([1 << 30, 1 << 30]), np.array([0, -1])
    mod = module([x], requantize(x, *factors, axis=1, **how))
    low, high = result(mod, (-1000, 1000))
    assert -502 <= low <= -500
    assert 500 <= high <= 502


def test_parameters_without_stated_bounds_may_be_all_of_their_dtype() -> None:
    x = relay.var("x", (4,), "int16")
    assert result(module([x], op.nn.relu(x))) == (0, integer_range("int16")[1])


def test_a_long_chain_needs_no_recursion() -> None:
    x = relay.var("x", (2,), "int32")
    body: Expr = x
    for _ in range(1500):
        body = op.clip(op.add(body, constant(1)), a_min=-9, a_max=9)
    assert result(module([x], body), (-9, 9)) == (9, 9)


@given(
    seed=st.integers(0, 1 << 30),
    ends=st.tuples(st.integers(-128, 127), st.integers(-128, 127)),
    bits=st.tuples(st.integers(0, 3), st.integers(0, 12)),
    count=st.integers(1, 9),
)
@settings(max_examples=60, deadline=None)
def test_tables_softmax_and_standardization_stay_within_bounds(
    seed: int, ends: tuple[int, int], bits: tuple[int, int], count: int
) -> None:
    rng = np.random.default_rng(seed)
    low, high = sorted(ends)
    x = relay.var("x", (40, count), "int8")
    table = constant(rng.integers(-9999, 9999, rng.integers(1, 300)))
    exponentials = constant(rng.integers(0, 1 << 20, 256))
    calls = (
        op.lookup(x, table),
        op.nn.integer_softmax(x, exponentials, out_bits=15),
        op.nn.integer_standardize(x, root_bits=bits[0], out_bits=bits[1]),
    )
    near = rng.integers(low, high, (40, count), endpoint=True)
    near[:20] = low
    near[:20, 0] = min(low + 1, high)
    near[5:10, 0] = high
    for call in each(calls):
        mod = module([x], call)
        bottom, top = result(mod, (low, high))
        found = evaluate(mod, {"x": near.astype("int8")})[0]
        assert bottom <= found.min()
        assert found.max() <= top


@pytest.mark.parametrize("bounds", [(-128, -125), (-3, 4), (127, 127), (-128, 127)])
def test_a_table_is_bounded_by_the_entries_that_are_reached(bounds: tuple[int, int]) -> None:
    low, high = bounds
    table = np.arange(256) ** 2
    x = relay.var("x", (3,), "int8")
    assert result(module([x], op.lookup(x, constant(table))), bounds) == (
        table[low + 128],
        table[high + 128],
    )


def test_a_table_that_is_an_input_is_bounded_by_what_it_holds() -> None:
    x, table = relay.var("x", (3,), "int8"), relay.var("t", (256,), "int32")
    assert result(module([x, table], op.lookup(x, table)), (-3, 4), (-70, 90)) == (-70, 90)


@pytest.mark.parametrize("bounds", [(0, 2), (1, 1), (-9, 0), (4, 99)])
def test_a_taken_element_is_bounded_by_those_that_are_reached(bounds: tuple[int, int]) -> None:
    table = constant([5, 3, 8, -1, 7])
    x = relay.var("x", (3,), "int32")
    reached = [5, 3, 8, -1, 7][max(bounds[0], 0) : min(bounds[1], 4) + 1]
    found = result(module([x], op.take(table, x, axis=0, mode="clip")), bounds)
    assert found == (min(reached), max(reached))


def test_rows_of_a_matrix_that_are_taken_may_be_any() -> None:
    x = relay.var("x", (3,), "int32")
    taken = op.take(constant([[5, 3], [8, -1]]), x, axis=0, mode="clip")
    assert result(module([x], taken), (0, 0)) == (-1, 8)


def joined_and_cut() -> IRModule:
    """Two tensors laid together, and the first of them taken out again."""
    x, y = relay.var("x", (2,), "int32"), relay.var("y", (20,), "int32")
    joined = op.concatenate((x, y), axis=0)
    return module([x, y], op.strided_slice(joined, begin=(0,), end=(2,)))


def test_what_is_moved_keeps_its_own_bounds() -> None:
    assert result(joined_and_cut(), (0, 10), (-5, 99)) == (0, 10)


@pytest.mark.parametrize(("first", "second"), [((0, 10), (-5, 3)), ((-5, 3), (0, 10))])
def test_tensors_too_large_to_be_moved_share_one_bound(
    monkeypatch: pytest.MonkeyPatch, first: tuple[int, int], second: tuple[int, int]
) -> None:
    """One tensor above the limit suffices."""
    monkeypatch.setattr(rules, "MAX_MOVED", 21)
    assert result(joined_and_cut(), first, second) == (-5, 10)


@pytest.mark.parametrize(
    ("a", "b"), [((-3, 2), (-5, 4)), ((2, 3), (4, 5)), ((-3, -2), (-5, -4)), ((2, 3), (-5, -4))]
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_product_of_computed_matrices_is_bounded_by_its_worst_terms(
    a: tuple[int, int], b: tuple[int, int], transposed: bool
) -> None:
    """A sum of 5 products."""
    x = relay.var("x", (1, 5, 3) if transposed else (1, 3, 5), "int8")
    y = relay.var("y", (1, 5, 7), "int8")
    call = op.nn.batch_matmul(x, y, transpose_a=transposed, transpose_b=False, out_dtype="int32")
    ends = [left * right for left in a for right in b]
    found = result(module([x, y], call), a, b)
    assert found == (5 * min(ends), 5 * max(ends))


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("lead", [(), (1,), (2,)])
def test_the_bound_of_a_product_with_constant_matrices_is_reached_by_the_worst_input(
    left: bool, lead: tuple[int, ...]
) -> None:
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (*lead, 6, 4)).astype("int8")
    held = np.ascontiguousarray(np.swapaxes(weight, -1, -2)) if left else weight
    x = relay.var("x", (2, 6, 3) if left else (2, 3, 6), "int8")
    if lead == ():
        x = relay.var("x", (6, 3) if left else (3, 6), "int8")
        both = (constant(held, "int8"), x) if left else (x, constant(held, "int8"))
        call = op.nn.matmul(*both, out_dtype="int32")
    else:
        both = (constant(held, "int8"), x) if left else (x, constant(held, "int8"))
        call = op.nn.batch_matmul(*both, transpose_b=False, out_dtype="int32")
    worst = np.where(weight > 0, 90, -100).astype(np.int64)
    most = (worst * weight).sum(axis=-2).max()
    least = (np.where(weight > 0, -100, 90) * weight.astype(np.int64)).sum(axis=-2).min()
    assert result(module([x], call), (-100, 90)) == (least, most)


def test_the_place_of_an_extremum_is_below_the_number_of_elements() -> None:
    x = relay.var("x", (2, 7), "int8")
    assert result(module([x], op.argmax(x, axis=(1,)))) == (0, 6)
    assert result(module([x], op.argmin(x, axis=(0,)))) == (0, 1)


@pytest.mark.parametrize("reduction", ["sum", "mean", "max"])
@pytest.mark.parametrize("keepdims", [False, True])
def test_a_reduction_keeps_the_bounds_of_each_channel(reduction: str, keepdims: bool) -> None:
    x = relay.var("x", (2, 5), "int32")
    rows = relay.call(reduction, op.multiply(x, constant([[1], [0]])), axis=(1,), keepdims=keepdims)
    other = constant([0, 1] if not keepdims else [[0], [1]])
    assert result(module([x], op.multiply(rows, other)), (-9, 7)) == (0, 0)


def test_truth_values_are_0_or_1() -> None:
    x = relay.var("x", (2,), "bool")
    assert result(module([x], op.cast(x, dtype="int32"))) == (0, 1)


def test_every_parameter_needs_its_bounds() -> None:
    x, y = relay.var("x", (2,), "int32"), relay.var("y", (2,), "int32")
    with pytest.raises(ValueError, match="zip"):
        ranges(module([x, y], op.maximum(x, y)), (0, 1))


def test_a_softmax_states_the_bounds_of_its_sum_and_of_its_result() -> None:
    x = relay.var("x", (1, 3), "int8")
    mod = module([x], op.nn.integer_softmax(x, constant([7, 5]), out_bits=8))
    stated = {one.what: (one.low, one.high) for one in ranges(mod).intermediates}
    assert stated == {"the sum of 3 elements": (0, 21)}
    assert result(mod) == ((2 * 5 * 256 + 21) // (2 * 21), (2 * 7 * 256 + 21) // (2 * 15))


def test_a_sum_of_exponentials_that_leaves_31_bits_is_found() -> None:
    x = relay.var("x", (1, 4000), "int8")
    table = constant([1 << 20, 1 << 10])
    finding = ranges(module([x], op.nn.integer_softmax(x, table))).findings[0]
    assert finding.bound == 4000 << 20
    assert finding.node == "%0 nn.integer_softmax"
    assert "the sum of 4000 elements may reach 4194304000, int32 ends at 2147483647" in finding.what


def test_a_standardization_is_bounded_for_any_data() -> None:
    x = relay.var("x", (1, 2), "int8")
    call = op.nn.integer_standardize(x, root_bits=8, out_bits=10)
    bound = output_bound(2, 10)
    assert result(module([x], call), (-3, 2)) == (-bound, bound)


def test_a_deviation_beyond_exact_roots_is_found() -> None:
    x = relay.var("x", (1, 4000), "int16")
    call = op.nn.integer_standardize(x, root_bits=8)
    assert ranges(module([x], call)).findings[0].node == "%0 nn.integer_standardize"
    assert ranges(module([x], call), (-100, 100)).findings == ()


@pytest.mark.parametrize("shape", [(), (2,)])
def test_squares_and_quotients_of_any_size_are_exact(shape: tuple[int, ...]) -> None:
    x, y = relay.var("x", shape, "int64"), relay.var("y", shape, "int64")
    low = -(1 << 63)
    finding = only_finding(module([x], op.multiply(x, x)), (low, 5))
    assert finding.bound == 1 << 126
    assert result(module([x], op.multiply(x, x)), (-3, 2)) == (0, 9)
    quotient = module([x, y], op.floor_divide(x, y))
    assert result(quotient, (low + 1, 9), (-1, 3)) == (low + 1, (1 << 63) - 1)
    assert result(quotient, (-7, 9), (2, 4)) == (-4, 4)
    assert only_finding(quotient, (low, 9), (-3, 0)).bound == 1 << 63


def test_scalars_have_bounds_too() -> None:
    x = relay.var("x", (), "int32")
    assert result(module([x], op.abs(x)), (-3, 2)) == (0, 3)
    assert result(module([x], op.negative(op.clip(x, a_min=-5, a_max=2))), (-9, 9)) == (-2, 5)


def test_a_choice_between_scalars_has_the_rank_of_its_condition() -> None:
    x = relay.var("x", (1, 2, 3, 3), "int8")
    chosen = op.where(op.greater(x, constant(0, "int8")), constant(7, "int8"), constant(-2, "int8"))
    weight = constant(np.ones((1, 2, 1, 1)), "int8")
    assert result(module([x], op.nn.conv2d(chosen, weight, out_dtype="int32"))) == (-4, 14)


@pytest.mark.parametrize(
    ("size", "attrs", "only_padding"),
    [
        ((4, 4), {"pool_size": (2, 2), "padding": (1, 1, 1, 1)}, False),
        ((4, 4), {"pool_size": (2, 2), "padding": (2, 0, 0, 0)}, True),
        # The taps of a dilated window may step over all of the data.
        ((1, 4), {"pool_size": (2, 2), "padding": (1, 1, 2, 1), "dilation": (3, 1)}, True),
        ((3, 4), {"pool_size": (2, 2), "padding": (1, 1, 1, 1), "dilation": (4, 1)}, True),
        ((3, 4), {"pool_size": (2, 2), "padding": (1, 1, 1, 1), "dilation": (2, 1)}, False),
        ((3, 3), {"pool_size": (2, 2), "strides": (2, 2), "ceil_mode": True}, False),
    ],
)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_window_of_padding_only_gives_the_smallest_value(
    size: tuple[int, int], attrs: dict[str, Any], only_padding: bool, layout: str
) -> None:
    shape = (1, 1, *size) if layout == "NCHW" else (1, *size, 1)
    x = relay.var("x", shape, "int8")
    mod = module([x], op.nn.max_pool2d(x, layout=layout, **attrs))
    assert result(mod, (3, 5)) == (-128 if only_padding else 3, 5)
    found = evaluate(mod, {"x": np.full(shape, 4, "int8")})[0]
    assert (found.min() == -128) == only_padding


def test_unsigned_numbers_beyond_int64_are_moved_and_averaged_as_they_are() -> None:
    x = relay.var("x", (2, 2), "uint64")
    top = (1 << 64) - 1
    y = constant([[1, 2]], "uint64")
    assert result(module([x], op.concatenate(relay.Tuple((x, y)), axis=0))) == (0, top)
    finding = only_finding(module([x], op.mean(x, axis=(0,))), (0, top // 2))
    assert "no range rule is known" in finding.what


def test_an_operand_that_the_accumulator_does_not_hold_is_found() -> None:
    x = relay.var("x", (1, 2), "int64")
    weight = constant([[0, 0]], "int8")
    mod = module([x], op.nn.dense(x, weight, out_dtype="int32"))
    assert "an operand may reach" in only_finding(mod, (0, 1 << 40)).what
    assert result(mod, (0, 1 << 20)) == (0, 0)


def test_a_shift_of_a_product_beyond_64_bits_is_found_without_computing_it() -> None:
    x = relay.var("x", (2,), "int32")
    one = op.fixed_point_multiply(x, multiplier=(1 << 30) + 5, shift=10**9)
    exact = op.fixed_point_multiply(x, multiplier=1 << 30, shift=10**9)
    many = op.fixed_point_multiply_per_axis(x, constant([1 << 30, 7]), constant([1, 90]), axis=0)
    for call, most in each(((one, 64), (exact, 32), (many, 64))):
        first = ranges(module([x], call), (0, 1)).findings[0]
        assert f"to {most} bits, legal are 0 to {most - 1}" in first.what


def test_a_product_that_leaves_64_bits_before_half_is_added_is_found() -> None:
    x = relay.var("x", (1,), "int64")
    call = op.fixed_point_multiply_per_axis(x, constant([-(1 << 31)]), constant([0]), axis=0)
    mod = module([x], op.clip(call, a_min=0, a_max=1))
    found = ranges(mod, ((1 << 32) + 1, (1 << 32) + 1)).findings
    assert any("its result may reach -" in f.what for f in found)


def test_a_table_that_is_computed_may_give_any_of_its_entries() -> None:
    x = relay.var("x", (4,), "int8")
    t = relay.var("t", (300,), "int32")
    mod = module([x, t], op.lookup(x, op.clip(t, a_min=-5, a_max=9)))
    assert result(mod, (-128, -127), (-100, 100)) == (-5, 9)


def test_of_a_constant_table_only_the_entries_in_reach_count() -> None:
    x = relay.var("x", (4,), "int8")
    mod = module([x], op.lookup(x, constant(np.arange(256) * 10)))
    assert result(mod, (-128, -126)) == (0, 20)
    short = module([x], op.lookup(x, constant([4, 6, 5])))
    assert result(short, (-127, 127)) == (5, 6)


@pytest.mark.parametrize("dtype", ["int8", "int64", "uint64"])
def test_bounds_of_sums_of_weights_are_those_of_big_integers(dtype: str) -> None:
    """Every weight and every bound near an end of its dtype."""
    info = np.iinfo(dtype)
    rng = np.random.default_rng(1)
    for _ in range(20):
        near = [info.max, info.min, info.max // 2, info.min // 2, info.max // 3 + 1, 0]
        weight = np.array([near[i] for i in rng.integers(len(near), size=8)], dtype).reshape(2, 4)
        x = relay.var("x", (1, 4), dtype)
        low, high = sorted(int(near[i]) for i in rng.integers(len(near), size=2))
        mod = module([x], op.nn.dense(x, relay.const(weight)))
        found = ranges(mod, (low, high)).intermediates[0]
        tops = [sum(max(int(w) * low, int(w) * high, 0) for w in row) for row in weight]
        bottoms = [sum(min(int(w) * low, int(w) * high, 0) for w in row) for row in weight]
        assert found.low <= min(bottoms)
        assert found.high >= max(tops)


@pytest.mark.parametrize("name", ["negative", "abs"])
@pytest.mark.parametrize("shape", [(), (3,)])
def test_the_smallest_number_of_64_bits_saturates_and_is_bounded(
    name: str, shape: tuple[int, ...]
) -> None:
    lowest, highest = integer_range("int64")
    x = relay.var("x", shape, "int64")
    mod = module([x], getattr(relay.op, name)(x))
    low = -highest if name == "negative" else 0
    assert result(mod, (lowest, highest)) == (low, highest)
    assert result(mod, (lowest, lowest)) == (highest, highest)


def test_a_constant_that_is_read_twice_has_one_row() -> None:
    x, shift = relay.var("x", (3,), "int8"), constant([1, 2, 3])
    mod = module([x], op.add(op.add(op.cast(x, dtype="int32"), shift), shift))
    found = ranges(mod)
    assert [row.name for row in found.values] == ["%x", "constant 0", "%0", "%1", "%2"]
    assert found.values[-1].reads == ("%1", "constant 0")
