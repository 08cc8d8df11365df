"""Attention with masks: what stands for minus infinity does not cost the scores their scale."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.walk import operators_of
from compiler.pipeline import evaluate
from compiler.proof.derive import derive_static
from compiler.quantize import (
    QConfig,
    prerequisite_optimize,
)
from compiler.quantize.preparation.masks import bounded_masks
from tests.compiler.quantize.candidates import Batch, assert_same_integers, calibrated, sqnr_db

op = relay.op
TOKENS, WIDTH = 6, 8
SHAPE = (1, TOKENS, WIDTH)
EARLIER = np.tril(np.ones((TOKENS, TOKENS), bool))


def constant(values: Any) -> Expr:
    made: Expr = relay.const(np.asarray(values, np.float32))
    return made


def added(low: float) -> Callable[[Expr], Expr]:
    def masked(scores: Expr) -> Expr:
        found: Expr = op.add(scores, constant(np.where(EARLIER, 0, low)))
        return found

    return masked


def chosen(scores: Expr) -> Expr:
    found: Expr = op.where(relay.const(EARLIER), scores, constant(-np.inf))
    return found


MASKS: dict[str, Callable[[Expr], Expr]] = {
    "minus infinity is added": added(-np.inf),
    "the lowest float is added": added(float(np.finfo(np.float32).min)),
    "minus ten thousand is added": added(-1e4),
    "scores or minus infinity": chosen,
}


def attention(
    mask: Callable[[Expr], Expr],
    *params: relay.Var,
    guard: Callable[[Expr], Expr] = lambda weights: weights,
) -> IRModule:
    """One head whose scores are masked."""
    rng = np.random.default_rng(0)
    x = relay.var("x", SHAPE)
    q, k, v = (
        op.reshape(
            op.nn.dense(op.reshape(x, newshape=(TOKENS, WIDTH)), constant(w)), newshape=SHAPE
        )
        for w in rng.standard_normal((3, WIDTH, WIDTH)) * 0.5
    )
    weights = guard(op.nn.softmax(mask(op.nn.batch_matmul(q, k)), axis=-1))
    body = op.nn.batch_matmul(weights, op.transpose(v, axes=(0, 2, 1)))
    mod = infer_module(relay.module(relay.Function((x, *params), body)))
    return prerequisite_optimize(mod, None, 3)


def tokens(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32)}


def decibels(mod: IRModule, data: list[Batch], **fields: Any) -> float:
    made = calibrated(mod, QConfig.recommended(**fields), data)
    assert made.partitioned is not None
    assert derive_static(made.partitioned).findings == ()
    return sqnr_db(mod, made.partitioned, data)


@pytest.mark.parametrize("mode", ["max", "percentile", "mse"])
@pytest.mark.parametrize("mask", MASKS)
def test_masked_scores_keep_their_scale(mask: str, mode: str) -> None:
    data = [tokens(seed) for seed in range(8)]
    assert decibels(attention(MASKS[mask]), data, calibrate_mode=mode) > 27


def test_a_mask_that_is_an_input_is_a_number_of_the_same_kind() -> None:
    ones = relay.var("ones", (1, TOKENS), "int64")

    def masked(scores: Expr) -> Expr:
        hidden = op.subtract(constant(1), op.cast(ones, dtype="float32"))
        lowered = op.multiply(op.expand_dims(hidden, axis=1), constant(-3.4e38))
        found: Expr = op.add(scores, lowered)
        return found

    visible = np.array([[1, 1, 1, 1, 0, 0]])
    data = [{**tokens(seed), "ones": visible} for seed in range(8)]
    assert decibels(attention(masked, ones), data, calibrate_mode="max") > 27


def test_sums_without_masks_are_left_alone() -> None:
    mod = attention(lambda scores: op.add(scores, constant(np.where(EARLIER, 0, -100))))
    assert bounded_masks(mod) is mod


def _unless_nan(weights: Expr, _: Expr) -> Expr:
    found: Expr = op.where(op.isnan(weights), constant(0), weights)
    return found


def _unless_all_masked(weights: Expr, lowered: Expr) -> Expr:
    none = op.equal(op.max(lowered, axis=-1, keepdims=True), constant(-np.inf))
    found: Expr = op.where(none, constant(0), weights)
    return found


@pytest.mark.parametrize("guard", [_unless_nan, _unless_all_masked])
def test_a_mask_of_truth_values_is_chosen_on_integers(
    guard: Callable[[Expr, Expr], Expr],
) -> None:
    """As scaled_dot_product_attention is exported, and as ONNX defines Attention."""
    ids = relay.var("ids", (1, 1, TOKENS), "int64")
    seen = op.logical_not(op.equal(ids, relay.const(np.int64(0))))
    lowered = op.where(seen, constant(0), constant(-np.inf))
    mod = attention(
        lambda scores: op.add(scores, lowered), ids, guard=lambda weights: guard(weights, lowered)
    )
    visible = np.array([[[5, 1, 7, 1, 0, 0]]])
    data = [{**tokens(seed), "ids": visible} for seed in range(8)]
    if guard is _unless_all_masked:
        data.append({**tokens(8), "ids": np.zeros_like(visible)})
    assert decibels(mod, data, calibrate_mode="max") > 27


def test_rows_that_are_masked_as_a_whole_are_zero() -> None:
    ids = relay.var("ids", (1, TOKENS, 1), "int64")
    seen = op.logical_not(op.equal(ids, relay.const(np.int64(0))))
    lowered = op.where(seen, constant(0), constant(-np.inf))
    mod = attention(
        lambda scores: op.add(scores, lowered), ids, guard=partial(_unless_nan, _=lowered)
    )
    some = {**tokens(0), "ids": np.array([1, 0, 1, 1, 0, 0]).reshape(1, TOKENS, 1)}
    with np.errstate(invalid="ignore"):
        wanted = evaluate(mod, some)[0]
    assert not wanted[0, 1].any()
    np.testing.assert_allclose(evaluate(bounded_masks(mod), some)[0], wanted, atol=1e-6)


@pytest.mark.parametrize("answer", [True, False])
def test_a_choice_that_is_known_is_that_operand(answer: bool) -> None:
    known = relay.const(np.full((1, TOKENS, TOKENS), answer))
    half = constant(np.full((1, TOKENS, TOKENS), 0.5))
    mod = attention(MASKS["minus infinity is added"], guard=lambda w: op.where(known, half, w))
    bounded = bounded_masks(mod)
    assert "where" not in {op.name for op in operators_of(bounded["main"])}
    some = tokens(0)
    wanted = evaluate(mod, some)[0]
    np.testing.assert_allclose(evaluate(bounded, some)[0], wanted, atol=1e-6)


def test_a_bias_that_is_an_input_keeps_its_scale_beside_a_mask() -> None:
    bias = relay.var("bias", (1, TOKENS, TOKENS))
    mod = attention(lambda scores: op.add(scores, added(-np.inf)(bias)), bias)
    rng = np.random.default_rng(1)
    data = [
        {**tokens(seed), "bias": rng.normal(0, 1, (1, TOKENS, TOKENS)).astype("f4")}
        for seed in range(8)
    ]
    assert decibels(mod, data, calibrate_mode="max") > 27


def _as_bert(mask: Expr) -> Callable[[Expr], Expr]:
    """(1 - mask) * lowest float, as transformers write it."""
    raised = op.expand_dims(op.expand_dims(mask, axis=1), axis=2)
    flags = op.squeeze(op.cast(raised, dtype="float32"), axis=[1])
    low = constant(np.finfo(np.float32).min)
    return lambda scores: op.add(scores, op.multiply(op.subtract(constant(1), flags), low))


def _as_choice(mask: Expr) -> Callable[[Expr], Expr]:
    """masked_fill(mask == 0, -inf)."""
    raised = op.equal(op.expand_dims(mask, axis=1), relay.const(np.int64(0)))
    where = op.broadcast_to(raised, shape=(1, TOKENS, TOKENS))
    return lambda scores: op.where(where, constant(-np.inf), scores)


@pytest.mark.parametrize("spelled", [_as_bert, _as_choice])
def test_a_mask_of_integers_that_is_an_input_leaves_no_float(spelled: Any) -> None:
    mask = relay.var("mask", (1, TOKENS), "int64")
    mod = attention(spelled(mask), mask)

    def sample(seed: int) -> Batch:
        kept = np.arange(TOKENS) < np.random.default_rng(seed).integers(2, TOKENS + 1)
        return {**tokens(seed), "mask": kept[None].astype(np.int64)}

    data = [sample(seed) for seed in range(20)]
    made = calibrated(mod, QConfig.recommended(), data)
    assert made.partitioned is not None
    assert derive_static(made.partitioned).findings == ()
    assert sqnr_db(mod, made.partitioned, data) > 25


def test_a_mean_over_what_a_mask_shows_leaves_no_float() -> None:
    """As sentence encoders pool: truth values become numbers, their count divides the sum."""
    ids = relay.var("ids", (1, TOKENS), "int64")
    seen = op.cast(op.logical_not(op.equal(ids, relay.const(np.int64(0)))), dtype="float32")
    shown = op.expand_dims(seen, axis=2)
    x = relay.var("x", (1, TOKENS, 8))
    count = op.add(op.sum(shown, axis=1), constant(1e-6))
    pooled = op.divide(op.sum(op.multiply(op.tanh(x), shown), axis=1), count)
    mod = infer_module(IRModule.from_expr(relay.Function((x, ids), pooled)))

    def sample(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        words = np.where(np.arange(TOKENS) < rng.integers(1, TOKENS + 1), 7, 0)[None]
        return {"x": rng.standard_normal((1, TOKENS, 8)).astype(np.float32), "ids": words}

    data = [sample(seed) for seed in range(20)]
    made = calibrated(mod, QConfig.recommended(calibrate_mode="max"), data)
    assert_same_integers(made.partitioned, data[:3])
    assert sqnr_db(mod, made.partitioned, data) > 30


def test_a_mask_whose_terms_are_shared_is_followed_in_linear_time() -> None:
    """Sums of the two values before have 10^12 paths to the first one."""
    mask = before = given = relay.var("mask", (TOKENS, TOKENS))
    for _ in range(60):
        mask, before = op.add(mask, before), mask
    guard = partial(_unless_nan, _=mask)
    assert bounded_masks(attention(lambda scores: op.add(scores, mask), given, guard=guard))
