"""How integers get from scale to scale: by products or shifts, with ties up, away or to even."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import relay
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Expr, Function, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.ops.qnn.requantize import inlined_module, rescaled
from compiler.ops.rules.dom_scale import chosen_scale
from compiler.ops.rules.requantize import TIES, multiplier_and_shift, requantized
from compiler.ops.tensor.fixed_point_multiply import POWER_OF_TWO
from compiler.proof.derive import derive_static
from compiler.quantize import (
    Candidate,
    QConfig,
    prerequisite_optimize,
)
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.ops.rules.scaled_values import scaled_values
from tests.compiler.quantize.candidates import calibrated
from tests.each import each

ROUNDINGS = ("UPWARD", "TONEAREST", "TONEAREST_EVEN")
PRODUCTS = ("fixed_point_multiply", "fixed_point_multiply_per_axis")


def const(rng: np.random.Generator, *shape: int) -> Any:
    return relay.const(rng.normal(0, 0.4, shape).astype(np.float32))


def network(rng: np.random.Generator, c: int = 3, d: int = 4) -> IRModule:
    """Scales per channel, a residual sum, pooling, a table, concatenation and a dense layer."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (2, c, 7, 7))
    a = nn.relu(op.add(nn.conv2d(x, const(rng, d, c, 3, 3)), const(rng, d, 1, 1)))
    b = nn.conv2d(a, const(rng, d, d, 3, 3), padding=(1, 1, 1, 1))
    e = op.sigmoid(op.add(a, b))
    f = op.concatenate(relay.Tuple((e, b)), axis=1)
    pooled = nn.batch_flatten(nn.global_avg_pool2d(f))
    result = op.add(nn.dense(pooled, const(rng, 5, 2 * d)), const(rng, 5))
    return prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)


def batches(rng: np.random.Generator, c: int = 3) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, (2, c, 7, 7)).astype(np.float32)} for _ in range(3)]


def candidate_of(mod: IRModule, config: QConfig, data: list[dict[str, Any]]) -> Candidate:
    return calibrated(mod, config, data, executor=ReferenceExecutor)


def operators(mod: IRModule) -> Counter[str]:
    calls = [n for f in mod.functions for n in post_order(mod[f].body) if isinstance(n, Call)]
    return Counter(getattr(call.op, "name", "") for call in calls)


def module(data: Expr, body: Expr) -> IRModule:
    return infer_module(IRModule.from_expr(Function((data,), body)))


ints = st.lists(st.integers(-(2**20), 2**20), min_size=1, max_size=12)


@settings(max_examples=80, deadline=None)
@given(ints, st.lists(st.integers(0, 24), min_size=1, max_size=4))
@example([-3, -2, -1, 0, 1, 2, 3, 5, 6, 7], [0, 1, 2])
def test_halves_go_to_the_even_neighbour_in_every_form(values: list[int], bits: list[int]) -> None:
    shifts = np.asarray(bits, np.int64)
    rows = np.repeat(np.asarray(values, np.int64)[:, None], len(bits), axis=1)
    exact = rows / 2.0**shifts  # double holds it
    wanted = np.rint(exact).astype(np.int64)
    powers = np.full_like(shifts, POWER_OF_TWO)
    np.testing.assert_array_equal(rescaled(rows, powers, 1 - shifts, "even"), wanted)
    x = relay.var("x", rows.shape, "int32")
    mod = module(x, requantized(x, powers, 1 - shifts, 0, 2, "even", "int32"))
    given = {"x": rows.astype(np.int32)}
    for run in (ReferenceExecutor(mod), OrtExecutor(to_integer_onnx(mod))):
        np.testing.assert_array_equal(run.run(given)[0], wanted)


@settings(max_examples=60, deadline=None)
@given(ints, st.lists(st.floats(2.0**-20, 1.875, width=32), min_size=1, max_size=4), st.booleans())
@example([-3, -2, -1, 0, 1, 2, 3, 5, 6, 7], [0.5, 0.25, 0.75, 1.5], True)
def test_products_round_alike_in_every_form(
    values: list[int], factors: list[float], per_channel: bool
) -> None:
    factor = np.asarray(factors if per_channel else factors[0], np.float32)
    rows = np.repeat(np.asarray(values, np.int64)[:, None], len(factors), axis=1)
    x = relay.var("x", rows.shape, "int32")
    for rounding in ROUNDINGS:
        trailing = 0 if per_channel else None
        wide, factors = relay.op.cast(x, dtype="int64"), multiplier_and_shift(factor)
        product = requantized(wide, *factors, trailing, 2, TIES[rounding], "int64")
        body = relay.op.cast(product, dtype="int32")
        mod = module(x, body)
        wanted = scaled_values(rows, factor, rounding)
        given = {"x": rows.astype(np.int32)}
        for form in (ReferenceExecutor(mod), OrtExecutor(to_integer_onnx(mod))):
            np.testing.assert_array_equal(form.run(given)[0], wanted, err_msg=rounding)
        if rounding == "TONEAREST_EVEN":
            exact = rows * factor.astype(np.float64)
            ties = np.abs(exact - np.floor(exact)) == 0.5
            assert (wanted[ties] % 2 == 0).all()


forms = st.fixed_dictionaries(
    {
        "rounding": st.sampled_from(ROUNDINGS),
        "requantization": st.sampled_from(
            ["fixed_point", "float_product", "power_of_two", "tflite"]
        ),
        "round_for_shift": st.booleans(),
        "activation_scheme": st.sampled_from(["symmetric", "unsigned", "asymmetric"]),
        "weight_granularity": st.sampled_from(["tensor", "channel"]),
        "nbit_weight": st.sampled_from([4, 8]),
    }
)


@settings(max_examples=14, deadline=None)
@given(st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 4), st.integers(1, 5)), forms)
def test_all_forms_of_the_module_agree_bit_for_bit(
    seed: int, sizes: tuple[int, int], changes: dict[str, Any]
) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng, *sizes), batches(rng, sizes[0])
    config = QConfig.recommended(calibrate_mode="max", **changes)
    final = candidate_of(mod, config, data).partitioned
    assert final is not None
    assert derive_static(final).holds
    reference = ReferenceExecutor(final)
    form = OrtExecutor(to_integer_onnx(final))
    for batch in data:
        np.testing.assert_array_equal(form.run(batch)[0], reference.run(batch)[0])
    if config.requantization == "power_of_two":
        counted = operators(inlined_module(final))
        assert not any(counted[name] for name in PRODUCTS)
        assert counted["right_shift"]


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("scheme", ["symmetric", "unsigned", "asymmetric"])
def test_float_products_change_multipliers_by_parts_in_a_million(
    scheme: str, rounding: str
) -> None:
    rng = np.random.default_rng(4)
    mod, data = network(rng, 4, 6), batches(rng, 4)
    exact = QConfig.recommended(
        calibrate_mode="max",
        activation_scheme=scheme,
        rounding=rounding,
        requantization="fixed_point",
    )
    products = exact.with_overrides(requantization="float_product")
    before, after = (candidate_of(mod, config, data) for config in (exact, products))
    assert before.integer is not None
    assert after.integer is not None
    assert operators(before.integer) == operators(after.integer)
    for batch in data:
        old, new = (ReferenceExecutor(i).run(batch)[0] for i in (before.integer, after.integer))
        assert np.mean(old != new) < 0.01


@pytest.mark.parametrize("scheme", ["symmetric", "unsigned", "asymmetric"])
def test_scales_are_the_next_powers_of_two_upward(scheme: str) -> None:
    rng = np.random.default_rng(1)
    mod, data = network(rng), batches(rng)
    plain = QConfig.recommended(calibrate_mode="max", activation_scheme=scheme)
    shifts = plain.with_overrides(requantization="power_of_two")
    pairs = zip(
        candidate_of(mod, plain, data).report.points,
        candidate_of(mod, shifts, data).report.points,
        strict=True,
    )
    for before, after in each(pairs):
        old, new = (np.asarray(p.dom_scale, np.float64) for p in (before, after))
        assert (np.log2(new) == np.rint(np.log2(new))).all()
        if before.kind == "weight" and old.size > 5:
            continue  # a bias: the product of two of these
        assert (new >= old * 0.999).all() or scheme == "asymmetric"
        assert (new < 4.1 * old).all()


@given(st.floats(2.0**-100, 2.0**100, width=32))
def test_a_chosen_scale_is_a_power_of_two_at_most_twice_as_large(value: float) -> None:
    config = QConfig(requantization="power_of_two")
    scale = float(chosen_scale(value, config))
    assert np.frexp(scale)[0] == 0.5
    assert value <= scale < 2 * value
    assert float(chosen_scale(value, QConfig())) == np.float32(value)


@given(st.floats(2.0**-60, 2.0**60, width=32), st.floats(2.0**-60, 2.0**60, width=32))
def test_float32_holds_the_product_of_two_scales_chosen_for_tflite(a: float, b: float) -> None:
    config = QConfig(requantization="tflite")
    chosen = [float(chosen_scale(value, config)) for value in (a, b)]
    assert all(old <= new <= old * (1 + 2.0**-11) for old, new in zip((a, b), chosen))
    assert float(np.float32(chosen[0]) * np.float32(chosen[1])) == chosen[0] * chosen[1]


@pytest.mark.parametrize("scheme", ["symmetric", "unsigned", "asymmetric"])
def test_tflite_rounds_every_requantization_twice_and_gives_8_bits(scheme: str) -> None:
    rng = np.random.default_rng(3)
    mod, data = network(rng), batches(rng)
    config = QConfig.recommended(
        calibrate_mode="max", activation_scheme=scheme, requantization="tflite"
    )
    final = candidate_of(mod, config, data).partitioned
    assert final is not None
    counted = operators(final)
    assert counted["qnn.requantize"]
    assert 'rounding="tflm"' in text(final)
    assert not any(counted[name] for name in PRODUCTS)
    assert "int32" not in str(final["dequantize_outputs"].params[0].checked_type)


@pytest.mark.parametrize(
    "change",
    [
        {"requantization": "power_of_two"},
        {"requantization": "power_of_two", "activation_scheme": "asymmetric", "nbit_input": 6},
        {"calibrate_mode": "global_scale", "global_scale": 4.0, "weight_scale": "power2"},
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_simulation_truncates_where_shifts_do(seed: int, change: dict[str, Any]) -> None:
    rng = np.random.default_rng(seed)
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (2, 3, 7, 7))
    a = nn.relu(op.add(nn.conv2d(x, const(rng, 4, 3, 3, 3)), const(rng, 4, 1, 1)))
    b = op.add(a, nn.conv2d(a, const(rng, 4, 4, 3, 3), padding=(1, 1, 1, 1)))
    result = nn.dense(nn.batch_flatten(b), const(rng, 5, 100))
    mod = prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)
    data = batches(rng)
    found = {}
    for rounds in (True, False):
        config = QConfig.recommended(round_for_shift=rounds, **change)
        made = candidate_of(mod, config, data)
        assert made.integer is not None
        assert operators(inlined_module(made.integer))["right_shift"] > 0
        pairs = [
            [ReferenceExecutor(m).run(batch)[0] for m in (made.integer, made.simulated)]
            for batch in data
        ]
        for integers, simulated in pairs:
            spread = np.abs(simulated).max()
            if not rounds:  # a floor has no ties, so float arithmetic finds the same integers
                np.testing.assert_allclose(integers, simulated, atol=1e-5 * spread, rtol=0)
        found[rounds] = pairs[0][1], made.cost
    assert np.abs(found[True][0] - found[False][0]).max() > 0
    assert found[True][1] == found[False][1]


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
def test_results_for_tflm_reach_beyond_what_calibration_has_seen(scheme: str) -> None:
    rng = np.random.default_rng(3)
    mod, data = network(rng), batches(rng)
    asked = {"requantization": "tflite", "activation_scheme": scheme}
    final = candidate_of(mod, QConfig.recommended(**asked), data).partitioned
    assert final is not None
    given = ReferenceExecutor(final, "dequantize_outputs")
    low, high = (given.run([np.full((2, 5), end, np.int8)])[0].flat[0] for end in (-128, 127))
    seen = [ReferenceExecutor(mod).run(inputs)[0] for inputs in data]
    lowest, highest = min(map(np.min, seen)), max(map(np.max, seen))
    assert low <= 1.1 * min(lowest, 0)
    assert high >= 1.1 * max(highest, 0)


def sqnr_of(mod: IRModule, seed: int = 2, **changes: Any) -> float:
    """dB of the integer module against the float one, on what no range was taken from."""
    rng = np.random.default_rng(seed)
    shape = mod["main"].params[0].tensor_type.concrete_shape
    data = [{"x": rng.normal(0, 1, shape).astype(np.float32)} for _ in range(6)]
    asked = {"requantization": "tflite", "calibrate_mode": "max", **changes}
    found = candidate_of(mod, QConfig.recommended(**asked), data[:4]).module
    signal, noise = 0.0, 0.0
    for inputs in data[4:]:
        wanted, got = (ReferenceExecutor(one).run(inputs)[0] for one in (mod, found))
        signal, noise = signal + (wanted**2).sum(), noise + ((wanted - got) ** 2).sum()
    return float(10 * np.log10(signal / noise))


@pytest.mark.parametrize("scheme", ["symmetric", "asymmetric"])
@pytest.mark.parametrize("size", [1.0, 1e-3])
def test_a_stream_of_16_bits_is_not_limited_by_a_branch(size: float, scheme: str) -> None:
    """A gated branch has a scale of its own, a thousand times as fine."""
    rng, op, nn = np.random.default_rng(3), relay.op, relay.op.nn
    x = relay.var("x", (1, 9, 16))
    ones = relay.const(np.ones(16, np.float32))

    def normed(value: Any) -> Any:
        return nn.layer_norm(value, ones, relay.const(np.zeros(16, np.float32)))

    stream = nn.dense(x, const(rng, 16, 16))
    seen = normed(stream)
    gate = op.sigmoid(nn.dense(seen, const(rng, 16, 16)))
    branch = nn.dense(seen, relay.const(rng.normal(0, size, (16, 16)).astype(np.float32)))
    stream = op.add(stream, op.multiply(gate, branch))
    result = nn.dense(normed(stream), const(rng, 4, 16))
    mod = prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)
    assert sqnr_of(mod, activation_scheme=scheme) > 27


def test_a_mask_of_large_numbers_costs_no_bits_of_what_is_added_with_it() -> None:
    """A constant of scores is rounded to 2^-8 of their steps, whatever the mask in it."""
    rng, op, nn = np.random.default_rng(4), relay.op, relay.op.nn
    x = relay.var("x", (1, 8, 16))
    query, key, value = (nn.dense(x, const(rng, 16, 16)) for _ in range(3))
    mask = np.where(np.tri(8, dtype=bool), rng.normal(0, 1, (8, 8)), -1e9)[None]
    scores = nn.batch_matmul(query, key, transpose_b=True)
    scores = op.add(op.multiply(scores, relay.const(0.25)), relay.const(mask.astype("float32")))
    mixed = nn.batch_matmul(nn.softmax(scores, axis=-1), value, transpose_b=False)
    result = nn.dense(mixed, const(rng, 4, 16))
    mod = prerequisite_optimize(relay.module(relay.Function([x], result)), None, 3)
    assert sqnr_of(mod) > 27


@pytest.mark.parametrize("changes", [{}, {"activation_scheme": "asymmetric"}])
def test_requantized_values_inputs_and_tables_carry_their_scale(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(5)
    mod, data = network(rng), batches(rng)
    made = candidate_of(mod, QConfig.recommended(calibrate_mode="max", **changes), data)
    assert made.partitioned is not None
    whole = parse(text(made.partitioned, show_types=False))
    core = whole["quantized_main"]
    calls = [n for n in post_order(core) if isinstance(n, Call)]
    named = ("qnn.requantize", "lookup")
    known = [c.quant for c in calls if is_op_call(c, *named) and not _is_sum(c)]
    assert len(known) > 3
    assert all(known)
    assert core.params[0].quant is not None
    plain = candidate_of(mod, QConfig(calibrate_mode="max"), data).integer
    assert plain is not None
    assert " : quant(" not in text(plain)  # as Relay prints it


def _is_sum(call: Call) -> bool:
    """True for an operand of a sum, which is wide."""
    return "int32" in str(call.attrs) and getattr(call.attrs, "out_dtype", "int8") == "int32"
