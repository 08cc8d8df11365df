"""Columns of a table in units of their own: each keeps its steps, and the float model its bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import relay, text
from compiler.ir.analysis import free_vars
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.proof.derive import derive_static
from compiler.qtypes.layer_choices import OTHERS, WIDE_BITS
from compiler.quantize import Calibration, QConfig, prerequisite_optimize
from compiler.quantize.preparation.even_inputs import even_inputs
from compiler.runtime.exact_executor import executor_named
from compiler.targets.reference.executor import ReferenceExecutor
from tests.each import each

op = relay.op
RNG = np.random.default_rng(0)
UNITS = np.array([1e-3, 0.1, 1, 2, 40, 3000, 1e5, 7], np.float32)
ROWS = (RNG.normal(0.5, 1, (64, 8)) * UNITS).astype(np.float32)
WEIGHT = (RNG.uniform(0.5, 1, (4, 8)) * RNG.choice([-1, 1], (4, 8)) / UNITS).astype(np.float32)


def prepared(body: Expr) -> IRModule:
    mod: IRModule = relay.module(relay.Function(free_vars(body), body))
    return prerequisite_optimize(mod, None, 3, simplify=True)


def layer(data: Expr, weight: NDArray[np.float32] = WEIGHT) -> Expr:
    made: Expr = op.nn.dense(data, relay.const(weight))
    return made


def raw() -> Expr:
    return layer(relay.var("x", (1, 8)))


def standardized() -> Expr:
    """As a scaler of scikit-learn stands in front of a regression: even weights behind it."""
    centred = op.subtract(relay.var("x", (1, 8)), relay.const(UNITS / 2))
    scaled = op.multiply(centred, relay.const((1 / UNITS).astype(np.float32)))
    return op.nn.relu(layer(scaled, WEIGHT * UNITS))


def joined() -> Expr:
    columns = [relay.var(f"x{place}", (1, 1)) for place in range(8)]
    return layer(op.concatenate(tuple(columns), axis=1))


def joined_and_standardized() -> Expr:
    """As skl2onnx writes a scaler of columns that are inputs of their own."""
    columns = [relay.var(f"x{place}", (1, 1)) for place in range(8)]
    centred = op.subtract(op.concatenate(tuple(columns), axis=1), relay.const(UNITS / 2))
    scaled = op.multiply(centred, relay.const((1 / UNITS).astype(np.float32)))
    return op.nn.relu(layer(scaled, WEIGHT * UNITS))


def standardize(data: Expr, columns: slice | int) -> Expr:
    centred = op.subtract(data, relay.const(UNITS[columns] / 2))
    return op.multiply(centred, relay.const((1 / UNITS[columns]).astype(np.float32)))


def sliced() -> Expr:
    """Two ranges of columns are chosen before one is standardized; the layer evens the other."""
    x = relay.var("x", (1, 8))
    left = op.strided_slice(x, begin=(0, 0), end=(1, 5), strides=(1, 1))
    right = op.take(x, relay.const(np.arange(5, 8)), axis=1)
    weight = WEIGHT * np.where(np.arange(8) < 5, UNITS, 1)
    data = op.concatenate((standardize(left, slice(5)), right), axis=1)
    return op.nn.relu(layer(data, weight.astype(np.float32)))


def split() -> Expr:
    parts = op.split(relay.var("x", (1, 8)), indices_or_sections=(3,), axis=1)
    columns = (slice(3), slice(3, 8))
    even = [standardize(parts[index], part) for index, part in enumerate(columns)]
    return op.nn.relu(layer(op.concatenate(tuple(even), axis=1), WEIGHT * UNITS))


def stacked() -> Expr:
    """As PyTorch writes ``torch.stack([(x[:, i] - m[i]) / s[i] for i in range(8)], 1)``."""
    x = relay.var("x", (1, 8))
    chosen = [op.take(x, relay.const(np.int64(column)), axis=1) for column in range(8)]
    even = [standardize(data, column) for column, data in enumerate(chosen)]
    columns = [op.expand_dims(data, axis=1) for data in even]
    return op.nn.relu(layer(op.concatenate(tuple(columns), axis=1), WEIGHT * UNITS))


def batches(mod: IRModule) -> list[dict[str, Any]]:
    names = [param.name_hint for param in mod["main"].params]
    if len(names) == 1:
        return [{"x": row[None]} for row in ROWS]
    return [{f"x{place}": row[place].reshape(1, 1) for place in range(8)} for row in ROWS]


def sqnr(wanted: list[NDArray[Any]], found: list[NDArray[Any]]) -> float:
    """In dB."""
    right, noise = np.stack(wanted), np.stack(found) - np.stack(wanted)
    return float(10 * np.log10(np.sum(right**2) / np.sum(noise**2)))


@pytest.mark.parametrize("body", [raw, standardized, joined, joined_and_standardized])
def test_every_column_counts_and_every_form_agrees(body: Any) -> None:
    mod = prepared(body())
    data = batches(mod)
    calibration = Calibration(mod, data)
    qconfig, decisions = calibration.choose()
    assert any("columns of a table" in one.why for one in decisions)
    bits = {bits for name, bits in qconfig.layers.input_bits.items() if name != OTHERS}
    assert bits == {WIDE_BITS}
    module = calibration.candidate(qconfig).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
    exact, floats = ReferenceExecutor(module), ReferenceExecutor(mod)
    wanted = [floats.run(batch)[0] for batch in data]
    found = [exact.run(batch)[0] for batch in data]
    assert sqnr(wanted, found) > 40
    for name in ("engine", "integer"):
        (same,) = executor_named(name, module).run(data[0])
        np.testing.assert_array_equal(same, found[0])


@pytest.mark.parametrize("body", [sliced, split, stacked])
def test_columns_that_are_chosen_first_keep_their_units(body: Any) -> None:
    mod = prepared(body())
    data = batches(mod)
    calibration = Calibration(mod, data)
    module = calibration.candidate(calibration.choose()[0]).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
    wanted, found = (
        [ReferenceExecutor(form).run(batch)[0] for batch in data] for form in (mod, module)
    )
    assert sqnr(wanted, found) > 35
    for name in ("engine", "integer"):
        (same,) = executor_named(name, module).run(data[0])
        np.testing.assert_array_equal(same, found[0])


def test_a_selection_of_rows_or_of_a_signal_stays() -> None:
    rows = op.take(relay.var("x", (4, 8)), relay.const(np.array([1, 0, 2, 3])), axis=0)
    signal = op.take(relay.var("x", (1, 300)), relay.const(np.arange(8)), axis=1)
    for selected in (rows, signal):
        mod = prepared(layer(standardize(selected, slice(8)), WEIGHT * UNITS))
        assert text(mod).index("take") < text(mod).index("subtract")


def test_the_float_model_keeps_its_bits() -> None:
    mod = relay.module(relay.Function(free_vars(body := raw()), body))
    new = even_inputs(prerequisite_optimize(mod, None, 3))
    for row in each(ROWS[:8]):
        (wanted,), (found,) = (ReferenceExecutor(one).run({"x": row[None]}) for one in (mod, new))
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize(
    "body",
    [
        lambda: layer(relay.var("x", (1, 8)), WEIGHT * UNITS),
        lambda: layer(relay.var("x", (1, 304)), np.tile(WEIGHT, 38)),
        lambda: layer(op.nn.relu(relay.var("x", (1, 8)))),
        lambda: layer(relay.var("x", (1, 8)), np.zeros((4, 8), np.float32)),
    ],
    ids=["even", "a signal", "computed", "of zeros"],
)
def test_what_is_no_uneven_table_stays_as_it_is(body: Any) -> None:
    mod = relay.module(relay.Function(free_vars(made := body()), made))
    mod = prerequisite_optimize(mod, None, 3)
    assert even_inputs(mod) is mod


def test_a_column_that_nothing_reads_does_not_widen_the_range() -> None:
    weight = WEIGHT.copy()
    weight[:, 6] = 0
    mod = prepared(layer(relay.var("x", (1, 8)), weight))
    qconfig = QConfig.recommended(calibrate_mode="max")
    module = Calibration(mod, batches(mod)).candidate(qconfig).partitioned
    assert module is not None
    wanted, found = (
        [ReferenceExecutor(one).run({"x": row[None]})[0] for row in ROWS] for one in (mod, module)
    )
    assert sqnr(wanted, found) > 30


@pytest.mark.parametrize(
    "fields", [{"requantization": "tflite"}, {"keep_output_wide": False, "layers": {}}]
)
@pytest.mark.parametrize("body", [raw, joined])
def test_files_for_devices_quantize_an_input_by_one_scale(fields: Any, body: Any) -> None:
    mod = prepared(body())
    qconfig = QConfig.recommended(**fields)
    module = Calibration(mod, batches(mod)).candidate(qconfig).partitioned
    assert module is not None
    prefix = text(module["quantize_inputs"])
    assert "meta[relay.Constant]" not in prefix


def test_files_for_devices_take_factors_of_their_own_model() -> None:
    """A factor that the model has, behind a reshape, and one number for all columns."""
    data = op.reshape(op.multiply(relay.var("x", (1, 8)), relay.const(UNITS)), newshape=(1, 2, 4))
    one = op.multiply(relay.var("y", (1, 8)), relay.const(np.full(1, 3, np.float32)))
    summed = op.add(
        op.nn.relu(op.reshape(data, newshape=(1, 8))), layer(one, np.tile(WEIGHT, (2, 1)))
    )
    mod = prepared(summed)
    batches = [{"x": row[None], "y": row[None]} for row in ROWS]
    module = Calibration(mod, batches).candidate(QConfig.recommended(requantization="tflite"))
    assert module.partitioned is not None


def test_a_sum_of_two_accumulators_has_room() -> None:
    """Squares beside a product with almost nothing, whose scale is the smaller one."""
    rows = (np.abs(ROWS / UNITS) * 4000).astype(np.float32)
    x = relay.var("x", (1, 8))
    squares = op.sum(op.multiply(x, x), axis=[1], keepdims=True)
    little = op.add(layer(x, -2 * rows[:4]), op.multiply(squares, relay.const(np.float32(1e-30))))
    mod = prepared(op.add(relay.const((rows[:4] ** 2).sum(axis=1)[None]), op.add(squares, little)))
    calibration = Calibration(mod, [{"x": row[None]} for row in rows])
    module = calibration.candidate(calibration.choose()[0]).partitioned
    assert module is not None
    assert derive_static(module).findings == ()
