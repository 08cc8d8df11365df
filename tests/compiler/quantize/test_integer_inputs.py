"""Arithmetic on whole numbers that are inputs: bounded, proved, and of the same value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import relay
from compiler.errors import NotFullyIntegralError
from compiler.ir.dataflow import dataflow
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.walk import mentions
from compiler.proof.derive import derive_static
from compiler.quantize import QConfig, diagnose, prerequisite_optimize
from compiler.quantize.preparation.integer_inputs import bounded_inputs, overflowing, whole_counts
from compiler.ranges.analysis import ranges_of
from compiler.runtime.exact_executor import executor_named
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.candidates import calibrated, sqnr_db

op = relay.op
WORDS, WIDTH = 64, 8


def whole(number: int, dtype: str) -> Expr:
    made: Expr = relay.const(np.array(number, dtype))
    return made


PLACES: dict[str, Callable[[Expr, str], Expr]] = {
    "moved on": lambda ids, dtype: op.add(ids, whole(2, dtype)),
    "hashed": lambda ids, dtype: op.floor_mod(ids, whole(7, dtype)),
    "hashed by bits": lambda ids, dtype: op.floor_mod(ids, whole(16, dtype)),
    "divided": lambda ids, dtype: op.divide(ids, whole(3, dtype)),
    "divided towards minus infinity": lambda ids, dtype: op.floor_divide(ids, whole(3, dtype)),
    "multiplied by itself": lambda ids, dtype: op.floor_mod(op.multiply(ids, ids), whole(5, dtype)),
    "multiplied by what was picked": lambda ids, dtype: op.floor_mod(
        op.multiply(ids, op.take(ids, whole(2, "int64"), axis=1, mode="wrap")), whole(5, dtype)
    ),
    "subtracted from what was picked": lambda ids, dtype: op.abs(
        op.subtract(ids, op.take(ids, relay.const(np.arange(4, -1, -1)), axis=1))
    ),
    "added behind a concatenation": lambda ids, dtype: op.strided_slice(
        op.add(op.concatenate((ids, ids), axis=1), whole(1, dtype)), begin=(0, 3), end=(1, 8)
    ),
    "moved behind a reshape": lambda ids, dtype: op.add(
        op.reshape(op.reshape(ids, newshape=(5, 1)), newshape=(1, 5)), whole(2, dtype)
    ),
}


def network(place: Callable[[Expr, str], Expr], dtype: str) -> IRModule:
    rng = np.random.default_rng(0)
    table, weight, head = (
        relay.const(rng.normal(0, 0.5, shape).astype(np.float32))
        for shape in ((WORDS, WIDTH), (WIDTH, WIDTH), (4, WIDTH))
    )
    ids = relay.var("ids", (1, 5), dtype)
    rows = op.reshape(op.take(table, place(ids, dtype), axis=0), newshape=(5, WIDTH))
    body = op.nn.dense(op.nn.relu(op.nn.dense(rows, weight)), head)
    return prerequisite_optimize(infer_module(relay.module(relay.Function((ids,), body))), None, 3)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("name", PLACES)
def test_it_is_proved_and_every_form_agrees(name: str, dtype: str) -> None:
    mod = network(PLACES[name], dtype)
    rng = np.random.default_rng(1)
    data = [{"ids": rng.integers(0, WORDS - 2, (1, 5)).astype(dtype)} for _ in range(8)]
    module = calibrated(mod, QConfig.recommended(), data).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
    assert sqnr_db(mod, module, data) > 30
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    extremes = {"ids": np.array([[low, -1, 0, 1, high]], dtype)}
    forms = [executor_named(name, module) for name in ("engine", "integer", "c")]
    for batch in (*data, extremes):
        (wanted,) = ReferenceExecutor(module).run(batch)
        for form in forms:
            np.testing.assert_array_equal(form.run(batch)[0], wanted)


def test_what_is_only_looked_up_and_compared_needs_no_bounds() -> None:
    mod = network(lambda ids, dtype: ids, "int64")
    assert bounded_inputs(mod) is mod
    bounded = bounded_inputs(network(PLACES["moved on"], "int64"))
    assert mentions(bounded["main"], ("clip",))


def test_a_large_id_times_a_small_mask_keeps_its_value() -> None:
    ids, mask = (relay.var(name, (1, 5), "int32") for name in ("ids", "mask"))
    body = op.multiply(ids, mask)
    mod = infer_module(relay.module(relay.Function((ids, mask), body)))
    given = np.array([[250_000, -70_000, 2**30, 1, 0]], np.int32)
    for factor in (0, 1, 2, -1):
        data = {"ids": given, "mask": np.full((1, 5), factor, np.int32)}
        (found,) = ReferenceExecutor(bounded_inputs(mod)).run(data)
        wanted = np.clip(given.astype(np.int64) * factor, 2**20 - 2**31, 2**31 - 2**20)
        np.testing.assert_array_equal(found, wanted)


def _codes(x: Expr) -> Expr:
    """The code book of a quantizer: a row of it for the largest score."""
    book = relay.const(np.random.default_rng(2).normal(size=(4, WIDTH)).astype(np.float32))
    one, zero = (relay.const(np.int64(n)) for n in (1, 0))
    rows = op.one_hot(op.argmax(x, axis=[1]), one, zero, depth=WIDTH)
    found: Expr = op.nn.dense(op.cast(rows, dtype="float32"), book)
    return found


def _buckets(x: Expr) -> Expr:
    """How many borders lie below each value."""
    borders = relay.const(np.linspace(-1, 1, 5).astype(np.float32).reshape(5, 1, 1))
    below = op.cast(op.greater(op.expand_dims(x, axis=0), borders), dtype="int64")
    found: Expr = op.cast(op.sum(below, axis=[0]), dtype="float32")
    return found


def _repaired(x: Expr) -> Expr:
    """As torch.nan_to_num is exported."""
    made = op.where(op.isnan(x), relay.const(np.float32(0)), x)
    above = op.logical_and(op.isinf(made), op.greater(made, relay.const(np.float32(0))))
    found: Expr = op.where(above, relay.const(np.float32(3e38)), made)
    return found


def _neighbours(x: Expr) -> Expr:
    """Values and places of the three largest, and what other places hold."""
    pair = op.topk(x, k=3, axis=1, ret_type="both", dtype="int64")
    values, places = (relay.TupleGetItem(pair, k) for k in (0, 1))
    found: Expr = op.concatenate(
        (
            values,
            op.cast(places, dtype="float32"),
            op.gather(op.reverse(x, axis=1), places, axis=1),
        ),
        axis=1,
    )
    return op.strided_slice(found, begin=(0, 0), end=(3, WIDTH))


@pytest.mark.parametrize("counted", [_codes, _buckets, _repaired, _neighbours])
def test_what_is_found_or_counted_stays_whole_in_every_form(
    counted: Callable[[Expr], Expr],
) -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (3, WIDTH))
    weights = [rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2)]
    found = counted(op.nn.dense(x, relay.const(weights[0])))
    head = weights[1][:, : 4 if counted is _codes else WIDTH]
    body = op.nn.dense(found, relay.const(head))
    mod = prerequisite_optimize(relay.module(relay.Function((x,), body)), None, 3)
    data = [{"x": rng.normal(size=(3, WIDTH)).astype(np.float32)} for _ in range(8)]
    module = calibrated(mod, QConfig.recommended(), data).partitioned
    assert module is not None  # on integers only
    assert derive_static(module).findings == ()
    forms = [executor_named(name, module) for name in ("engine", "integer", "c")]
    for batch in data:
        (wanted,) = ReferenceExecutor(module).run(batch)
        for form in forms:
            np.testing.assert_array_equal(form.run(batch)[0], wanted)


@pytest.mark.parametrize(
    ("found", "last"),
    [
        (lambda x: op.argmax(x, axis=[1]), 2),
        (lambda x: op.argmin(x, axis=1, exclude=True), 7),
        (lambda x: op.topk(x, k=2, axis=-1, ret_type="indices"), 3),
    ],
)
def test_places_are_bounded_by_what_is_counted(found: Callable[[Expr], Expr], last: int) -> None:
    x = relay.var("x", (2, 3, 4))
    flow = dataflow(infer_module(relay.module(relay.Function((x,), found(x)))))
    (places,) = flow.outputs
    bounds = ranges_of(flow).of(places)
    assert bounds.lowest == 0
    assert bounds.highest >= last
    assert bounds.highest < x.type_annotation.num_elements


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_whole_numbers_that_are_cast_from_floats_are_bounded_too(dtype: str) -> None:
    mod = network(lambda x, _: op.add(op.cast(x, dtype=dtype), whole(8, dtype)), "float32")
    data = [{"ids": np.random.default_rng(1).uniform(0, 50, (1, 5)).astype("f")} for _ in range(8)]
    module = calibrated(mod, QConfig.recommended(), data).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
    assert sqnr_db(mod, module, data) > 30
    extremes = {"ids": np.array([[-np.inf, -(2.0**63), np.nan, 2.0**63, np.inf]], np.float32)}
    forms = [executor_named(name, module) for name in ("engine", "integer", "c")]
    for batch in (*data, extremes):
        (wanted,) = ReferenceExecutor(module).run(batch)
        for form in forms:
            np.testing.assert_array_equal(form.run(batch)[0], wanted)


def test_a_difference_of_parts_of_one_input_fits_behind_a_cast() -> None:
    box = relay.var("box", (1, 5, 4), "int64")
    whole_box = op.cast(box, dtype="int32")
    high, low = (op.take(whole_box, whole(k, "int64"), axis=2) for k in (3, 1))
    mod = infer_module(relay.module(relay.Function((box,), op.subtract(high, low))))
    assert overflowing(mod)
    assert not overflowing(bounded_inputs(mod))
    given = np.random.default_rng(0).integers(0, 1000, (1, 5, 4))
    (found,) = ReferenceExecutor(bounded_inputs(mod)).run({"box": given})
    np.testing.assert_array_equal(found, given[..., 3] - given[..., 1])


def hashed(ids: Expr, dtype: str) -> Expr:
    """Low bits of a product that is meant to wrap."""
    return op.bitwise_and(op.multiply(ids, whole(6364136223846793005, dtype)), whole(31, dtype))


def test_numbers_that_wrap_are_named_and_nothing_is_built_of_them() -> None:
    mod = network(hashed, "int64")
    diagnosis = diagnose(mod, QConfig.recommended())
    assert not diagnosis.fully_integral
    assert [one.op for one in diagnosis.operators if one.status == "float"] == ["multiply"]
    assert "whole numbers may leave their dtype: multiply" in diagnosis.obstacles[0]
    data = [{"ids": np.arange(5, dtype=np.int64)[None]}]
    with pytest.raises(NotFullyIntegralError, match="may leave their dtype"):
        calibrated(mod, QConfig.recommended(), data)


def test_a_product_of_two_int64_tensors_is_no_quantized_model() -> None:
    i, j, x = (
        relay.var("i", (1, 6, 1), "int64"),
        relay.var("j", (1, 1, 8), "int64"),
        relay.var("x", (6, 8)),
    )
    mask = op.cast(op.nn.batch_matmul(i, j, transpose_b=False), dtype="float32")
    weight = relay.const(np.random.default_rng(0).normal(size=(8, 8)).astype("f"))
    body = op.multiply(op.nn.dense(x, weight), op.reshape(mask, newshape=(6, 8)))
    mod = prerequisite_optimize(
        infer_module(relay.module(relay.Function((i, j, x), body))), None, 3
    )
    diagnosis = diagnose(mod, QConfig.recommended())
    assert "operands have 64 bits" in diagnosis.obstacles[-1]


def counting(form: str) -> Callable[[Expr], Expr]:
    """The number of values of a row that a sparse softmax keeps, made in floats."""
    numbers = relay.const(np.arange(1, WIDTH + 1, dtype=np.float32))

    def counted(kept: Expr) -> Expr:
        real = op.cast(kept, dtype="float32")
        if form == "the largest number":
            return op.max(op.multiply(real, numbers), axis=(1,), keepdims=True)
        if form == "a chosen number":
            return op.max(op.where(kept, numbers, real), axis=(1,), keepdims=True)
        if form == "a difference":
            absent = op.subtract(whole(1, "float32"), real)
            total = op.reshape(op.sum(absent, axis=(1,), keepdims=True), newshape=(1, 1))
            return op.subtract(whole(WIDTH, "float32"), total)
        return op.sum(real, axis=(1,), keepdims=True)

    return counted


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("form", ["a sum", "the largest number", "a chosen number", "a difference"])
def test_a_count_of_floats_is_an_integer_where_it_is_an_index(form: str, dtype: str) -> None:
    """Sparsemax inside a network: the support counts k, and reads the running sum at k - 1."""
    rng = np.random.default_rng(0)
    weight, head = (
        relay.const(rng.normal(0, 0.5, shape).astype(np.float32))
        for shape in ((WIDTH, WIDTH), (4, WIDTH))
    )
    x = relay.var("x", shape=(1, WIDTH), dtype="float32")
    scores = op.nn.dense(x, weight, units=WIDTH)
    pair = op.topk(scores, k=WIDTH, axis=1, ret_type="both", dtype="int64")
    ordered = relay.TupleGetItem(pair, 0)
    sums = op.cumsum(ordered, axis=1)
    numbers = relay.const(np.arange(1, WIDTH + 1, dtype=np.float32))
    kept = op.greater(op.add(op.multiply(ordered, numbers), whole(1, "float32")), sums)
    count = counting(form)(kept)
    place = op.subtract(op.cast(count, dtype=dtype), whole(1, dtype))
    taken = op.gather(sums, place, axis=1)
    threshold = op.divide(op.subtract(taken, whole(1, "float32")), count)
    body = op.nn.dense(op.nn.relu(op.subtract(scores, threshold)), head, units=4)
    made = infer_module(relay.module(relay.Function((x,), body)))
    mod = prerequisite_optimize(made, None, 3)
    assert diagnose(mod, QConfig.recommended()).fully_integral
    data = [{"x": rng.normal(size=(1, WIDTH)).astype(np.float32)} for _ in range(32)]
    module = calibrated(mod, QConfig.recommended(), data).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
    assert sqnr_db(mod, module, data) > 25


def test_a_count_that_floats_would_round_stays_a_float() -> None:
    """2^13 counts of up to 2^13 do not fit the 24 bits that float32 counts in."""
    x = relay.var("x", shape=(1, 1 << 13), dtype="float32")
    real = op.cast(op.greater(x, whole(0, "float32")), dtype="float32")
    for factor, counted in ((1 << 10, True), (1 << 13, False)):
        total = op.sum(op.multiply(real, whole(factor, "float32")), axis=(1,), keepdims=True)
        body = op.cast(total, dtype="int64")
        mod = infer_module(relay.module(relay.Function((x,), body)))
        assert (whole_counts(mod) is not mod) == counted
