"""The audit: what it measures of a built module, what it doubts, and what it mends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from compiler.errors import CalibrationError
from compiler.frontend.from_onnx.load import load
from compiler.insight import layer_sqnr
from compiler.insight.audit import Repaired, flagged, measure, repaired, worst_point
from compiler.ir.text.printer import text
from compiler.ops.annotation import simulated_quantize
from compiler.pipeline import evaluate
from compiler.qtypes.layer_choices import OTHERS, TABLES
from compiler.quantize import (
    Calibration,
    Candidate,
    QConfig,
    measured_points,
    point_names,
    prerequisite_optimize,
)
from compiler.quantize.choice import SMOOTH_ALPHA
from tests.benchmarks.unseen_networks import Network
from tests.compiler import networks as models
from tests.compiler.quantize.planting import FAULTS, planted

POINT = 1
"""The point of the middle of the network: every fault of it can be seen in the outputs."""


def batches(count: int, seed: int = 5) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(count)]


def calibration() -> Calibration:
    return Calibration(prerequisite_optimize(*models.mobile_net(), 3), batches(16))


def config(**fields: Any) -> QConfig:
    chosen = {"calibrate_mode": "mse", "weight_scale": "mse", **fields}
    return QConfig.recommended(**chosen)


def doubts(found: Repaired) -> dict[str, tuple[str, ...]]:
    assert found.audit is not None
    return flagged(found.audit)


def db(candidate: Candidate) -> float:
    """SQNR of the integers on samples that nobody has seen."""
    assert candidate.integer is not None
    signal = noise = 0.0
    mod = prerequisite_optimize(*models.mobile_net(), 3)
    for batch in batches(8, seed=6):
        (wanted,), (found,) = evaluate(mod, batch), evaluate(candidate.integer, batch)
        signal += float(np.square(wanted).sum())
        noise += float(np.square(wanted - found).sum())
    return float(10 * np.log10(signal / noise))


@pytest.mark.parametrize("rounding", ["nearest", "corrected"])
def test_points_have_the_figures_of_the_whole_measurement(rounding: str) -> None:
    data, settings = calibration(), config(weight_rounding=rounding)
    found = measure(data.candidate(settings), batches(4))
    scales, channels = data.scales_for(settings), data.channels_for(settings)
    mod = prerequisite_optimize(*models.mobile_net(), 3)
    layers, outputs = layer_sqnr(mod, settings, scales, batches(4), channels=channels)
    assert found.simulated.output_db == pytest.approx(outputs.output_db, abs=1e-6)
    assert found.integer is not None
    assert found.integer.output_db == pytest.approx(outputs.output_db, abs=1.0)
    assert {layer.alone_db for layer in layers} - {None} <= {p.sums.local.db for p in found.points}


def test_a_sound_network_is_left_as_it_is() -> None:
    data, settings = calibration(), config(weight_rounding="nearest")
    candidate = data.candidate(settings)
    found = repaired(data, settings, candidate, batches(8))
    assert doubts(found) == {}
    assert (found.qconfig, found.candidate, found.repairs) == (settings, candidate, ())
    assert found.audit is not None
    assert worst_point(found.audit) in found.audit.points


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_named_and_mended(fault: str) -> None:
    data, settings = calibration(), config()
    sound = data.candidate(settings)
    name = point_names(sound.annotated)[measured_points(sound.annotated)[POINT]]
    with planted(fault, POINT, other=0):
        broken = data.candidate(settings)
        found = repaired(data, settings, broken, batches(16))
        named = QConfig.stored(json.loads(json.dumps(found.qconfig.to_dict())))
        again = data.candidate(named)
    assert doubts(found)[name]
    assert found.repairs[0].point == name
    assert set(found.qconfig.layers) == {one.point for one in found.repairs}
    assert db(broken) < db(sound) - 1
    assert db(found.candidate) > db(sound) - 1
    assert text(again.module, external_data={}) == text(found.candidate.module, external_data={})
    assert json.loads(json.dumps(found.to_dict()))["repairs"] == list(map(str, found.repairs))


def test_a_fault_is_mended_that_one_sample_alone_shows() -> None:
    data = batches(16)
    for batch in data[1:]:
        batch["x"] *= np.float32(0.25)
    whole = Calibration(prerequisite_optimize(*models.mobile_net(), 3), data)
    settings = config(weight_rounding="nearest")
    with planted("halved", POINT, other=0):
        found = repaired(whole, settings, whole.candidate(settings), data)
    assert found.repairs[0].point == next(iter(doubts(found)))
    assert (found.after_db or 0) > (found.before_db or 0) + 3


def test_a_range_that_cuts_a_few_values_is_doubted() -> None:
    whole, cut = calibration(), config(layers={"@x": {"range": [-2.8, 2.8]}})
    found = measure(whole.candidate(cut), batches(8))
    (row,) = (point for point in found.points if point.name == "@x")
    assert 0 < row.sums.saturated < 0.01
    assert flagged(found) == {"@x": ("noisy",)}


def test_a_wide_point_is_doubted_whose_range_takes_more_than_the_room_for_outliers() -> None:
    data = calibration()
    roomy, wasted = (
        config(layers={"@x": {"nbit_input": 12, "range": [-end, end]}}) for end in (14, 60)
    )
    assert flagged(measure(data.candidate(roomy), batches(8))) == {}
    assert flagged(measure(data.candidate(wasted), batches(8))) == {"@x": ("noisy",)}


def test_two_points_in_a_row_that_hide_each_other_are_both_repaired() -> None:
    graph, rng = Network(2), np.random.default_rng(2)
    x = graph.input(1, 8, 16)
    t = graph("Tanh", x)
    y = graph("Mul", x, graph.dense(t, 16, 16, "Sigmoid"))
    for _ in range(2):
        keys = graph("Transpose", graph.dense(t, 16, 16), perm=[0, 2, 1])
        scores = graph("MatMul", graph.dense(t, 16, 16), keys)
        y = graph("MatMul", graph("Softmax", scores, axis=-1), y)
    y = graph.dense(graph("Tanh", graph("Mul", y, graph.weight(2.0))), 16, 8)
    tails = np.sinh(2.2 * rng.standard_normal((16, 1, 8, 16))).astype(np.float32)
    data = [{"x": one} for one in tails]
    mod = prerequisite_optimize(*load(graph.model(y).SerializeToString()), 3)
    calibration, settings = Calibration(mod, data), config()
    found = repaired(calibration, settings, calibration.candidate(settings), data)
    assert {"@MatMul12_0", "@Mul4_0", "@x"} <= {one.point for one in found.repairs}
    assert (found.after_db or 0) > (found.before_db or 0) + 12


def test_the_argument_of_the_last_exponential_has_more_bits_where_outputs_gain() -> None:
    graph, rng = Network(4), np.random.default_rng(4)
    y = graph.dense(graph.input(1, 12, 8), 8, 12)
    for axis in (2, 1, 2, 1):  # normalized in both directions, as scores of a matching are
        y = graph("Sub", y, graph("ReduceLogSumExp", y, axes=[axis]))
    data = [{"x": rng.normal(0, 1, (1, 12, 8)).astype(np.float32)} for _ in range(16)]
    mod = prerequisite_optimize(*load(graph.model(graph("Exp", y)).SerializeToString()), 3)
    settings = config(layers={OTHERS: {"nbit_input": 15}}, activation_scheme="asymmetric")
    calibration = Calibration(mod, data)
    found = repaired(calibration, settings, calibration.candidate(settings), data)
    assert not doubts(found), "its own noise shows nothing"
    (repair,) = found.repairs
    assert repair.flags == ("amplified",)
    assert repair.choice["nbit_input"] == 12
    assert (found.after_db or 0) > (found.before_db or 0) + 2.5


def test_a_sine_of_many_turns_has_the_bits_that_its_argument_needs() -> None:
    graph, rng = Network(4), np.random.default_rng(4)
    phase = graph("CumSum", graph.input(1, 64), graph.weight(1, np.int64))
    y = graph("Sin", graph("Mul", phase, graph.weight(2 * np.pi)))
    data = [{"x": rng.uniform(0, 1, (1, 64)).astype(np.float32)} for _ in range(16)]
    mod = prerequisite_optimize(*load(graph.model(y).SerializeToString()), 3)
    bits = {TABLES: {"nbit_input": 12}, OTHERS: {"nbit_input": 15}}
    calibration, settings = Calibration(mod, data), config(layers=bits)
    found = repaired(calibration, settings, calibration.candidate(settings), data)
    assert found.repairs[0].choice["nbit_input"] == 15
    assert max(found.repairs[0].choice["range"]) < 50, "bits go into steps, not into room"
    assert (found.after_db or 0) > (found.before_db or 0) + 20


def test_a_layer_whose_error_a_running_sum_adds_up_has_more_bits() -> None:
    graph, rng = Network(5), np.random.default_rng(5)
    step = graph.dense(graph.input(1, 8, 8), 8, 1, "Sigmoid")
    many = graph("Expand", step, graph.weight([1, 8, 16], np.int64))
    along = graph("Reshape", many, graph.weight([1, 128], np.int64))
    phase = graph("CumSum", along, graph.weight(1, np.int64))
    y = graph("Sin", graph("Mul", phase, graph.weight(0.5)))
    data = [{"x": rng.normal(0, 1, (1, 8, 8)).astype(np.float32)} for _ in range(16)]
    mod = prerequisite_optimize(*load(graph.model(y).SerializeToString()), 3)
    bits = {TABLES: {"nbit_input": 12}, OTHERS: {"nbit_input": 15}}
    calibration, settings = Calibration(mod, data), config(layers=bits)
    found = repaired(calibration, settings, calibration.candidate(settings), data)
    assert ("amplified",) in [one.flags for one in found.repairs]
    assert (found.after_db or 0) > (found.before_db or 0) + 3


def test_smoothing_is_tried_where_the_outputs_are_far_from_float() -> None:
    graph, rng = Network(0), np.random.default_rng(0)
    x = graph.dense(graph.input(1, 16, 8), 8, 32, "Relu")
    spread = np.exp(rng.uniform(0, np.log(1e4), 32))
    inner, outer = rng.normal(0, 0.2, (2, 32, 32))
    y = graph("Relu", graph("MatMul", x, graph.weight(inner * spread)))
    y = graph.dense(graph("MatMul", y, graph.weight(outer / spread[:, None])), 32, 8)
    data = [{"x": rng.normal(0, 1, (1, 16, 8)).astype(np.float32)} for _ in range(16)]
    mod = prerequisite_optimize(*load(graph.model(y).SerializeToString()), 3)
    calibration, settings = Calibration(mod, data), config(weight_rounding="nearest")
    candidate = calibration.candidate(settings)
    found = repaired(calibration, settings, candidate, data)
    assert (settings.smooth_alpha, found.qconfig.smooth_alpha) == (None, SMOOTH_ALPHA)
    assert found.repairs[0].point == "smooth_alpha"
    assert (found.after_db or 0) > (found.before_db or 0) + 10
    kept = repaired(calibration, settings, candidate, data, fixed=["smooth_alpha"])
    assert kept.qconfig.smooth_alpha is None


def test_the_point_is_named_where_integers_are_not_what_is_simulated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requantize = simulated_quantize.requantize

    def cut(data: Any, scale: Any, low: float, high: float, *rest: Any) -> Any:
        return requantize(data, scale, low // 64, high // 64, *rest)

    monkeypatch.setattr(simulated_quantize, "requantize", cut)
    candidate = calibration().candidate(config())
    found = measure(candidate, batches(4))
    names = point_names(candidate.annotated)
    first, second = (names[point] for point in measured_points(candidate.annotated)[:2])
    doubts = flagged(found)
    assert "integers" in doubts[second]
    assert first not in doubts
    worst = worst_point(found)
    assert worst is not None
    assert worst.name == second


def test_the_layer_is_named_whose_sums_need_more_than_16_bits_of_its_input(tmp_path: Path) -> None:
    """Powers of a sound span seven decades, and gates tell the small ones apart: the states of the
    loops and the layers behind them only bring along what is lost there."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for name, given, size, gain in (("first", "x", 6, 20.0), ("second", "a", 8, 1.0)):
        shapes = {"w": (1, 32, size), "r": (1, 32, 8)}
        for word, shape in shapes.items():
            values = rng.normal(0.0, gain if word == "w" else 0.3, shape).astype(np.float32)
            weights.append(from_array(values, f"{name}_{word}"))
        out = "s" if name == "first" else "y"
        read = [given, f"{name}_w", f"{name}_r"]
        nodes.append(helper.make_node("LSTM", read, [out], name, hidden_size=8))
    nodes.insert(1, helper.make_node("Squeeze", ["s", "axes"], ["a"]))
    weights.append(from_array(np.asarray([1]), "axes"))
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [20, 1, 6]), ("y", [20, 1, 1, 8]))
    ]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    powers = [10.0 ** rng.uniform(-4, 3, (20, 1, 6)).astype(np.float32) for _ in range(6)]
    data = [{"x": batch} for batch in powers]
    onnx.save(proto, tmp_path / "m.onnx")
    made = Calibration(prerequisite_optimize(*load(tmp_path / "m.onnx"), 3), data)
    wide = config(nbit_input=16, dtype_input="int16")
    worst = worst_point(measure(made.candidate(wide), data[:4]))
    assert worst is not None
    assert worst.name.startswith("@first")


def test_bits_stay_as_they_are_where_these_were_chosen() -> None:
    data, settings = calibration(), config()
    with planted("4 bits", POINT, other=0):
        found = repaired(
            data, settings, data.candidate(settings), batches(16), fixed=["nbit_input"]
        )
    assert all("nbit_input" not in one.choice for one in found.repairs)


def test_one_sample_mends_nothing_and_none_is_an_error() -> None:
    data, settings = calibration(), config()
    with planted("constant", POINT, other=0):
        candidate = data.candidate(settings)
        found = repaired(data, settings, candidate, batches(1))
    assert doubts(found)
    assert found.candidate is candidate
    with pytest.raises(CalibrationError, match="no sample"):
        measure(candidate, [])
