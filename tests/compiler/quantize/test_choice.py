"""choose: a configuration from statistics, with a figure for each decision."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Var, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import behind, nodes_of
from compiler.pipeline import evaluate
from compiler.qtypes.layer_choices import OTHERS, POINT_BITS, SCORES, SUMS, TABLES
from compiler.quantize import (
    Calibration,
    QConfig,
    choose,
    layer_names,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize.bits.point_bits import input_bits, point_readers
from compiler.quantize.bits.predicted_error import predicted_sqnr_db
from compiler.quantize.bits.wide_inputs import wide_inputs
from compiler.quantize.candidate import mark
from tests.benchmarks.unseen_networks import Network
from tests.compiler.frontend.from_onnx.test_load import imported
from tests.compiler.frontend.from_onnx.test_recurrent import weights, whole
from tests.compiler.quantize.candidates import assert_same_integers, const, sqnr_db


def two_layers(rng: np.random.Generator, spread: float, batch: int = 1) -> IRModule:
    """Two convolutions; one channel between them is ``spread`` times the others."""
    first = rng.normal(size=(8, 3, 1, 1)).astype(np.float32)
    second = rng.normal(size=(4, 8, 1, 1)).astype(np.float32)
    first[0] *= spread
    second[:, 0] /= spread
    x = relay.var("x", (batch, 3, 8, 8))
    hidden = relay.op.nn.relu(relay.op.nn.conv2d(x, relay.const(first)))
    return relay.module(relay.op.nn.conv2d(hidden, relay.const(second)))


def batches(rng: np.random.Generator) -> list[dict[str, np.ndarray]]:
    return [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(8)]


@pytest.mark.parametrize(
    ("samples", "gain", "alpha"),
    [(32, 0.1, 0.75), (32, -0.1, None), (31, 1.9, None), (31, 2.1, 0.75), (1, 99.0, None)],
)
def test_what_is_predicted_to_gain_is_smoothed_and_over_few_samples_what_gains_much(
    samples: int, gain: float, alpha: float | None
) -> None:
    rng = np.random.default_rng(0)
    module = two_layers(rng, 1.0)
    data = [{"x": rng.normal(size=(1, 3, 8, 8)).astype(np.float32)} for _ in range(samples)]
    statistics = Calibration(module, data).channels(QConfig.recommended(smooth_alpha=0.75))
    qconfig, decisions = choose(module, statistics, gain=lambda _: gain)
    assert qconfig.smooth_alpha == alpha
    (why,) = (d.why for d in decisions if d.field == "smooth_alpha")
    assert (f"{gain:.1f} dB" in why) == ("one sample" not in why) == (samples > 1)


def test_a_wide_network_is_rounded_sequentially() -> None:
    rng = np.random.default_rng(2)
    x, weight = relay.var("x", (1, 4096)), rng.normal(size=(8, 4096)).astype(np.float32)
    module = relay.module(relay.op.nn.dense(x, relay.const(weight)))
    data = [{"x": rng.normal(size=(1, 4096)).astype(np.float32)} for _ in range(4)]
    qconfig, _ = Calibration(module, data).choose()
    assert qconfig.weight_rounding == "sequential"


@pytest.mark.parametrize(("seconds", "rounding"), [(119, "sequential"), (300, "corrected")])
def test_rounding_that_takes_minutes_is_named_with_its_gain_and_its_option(
    monkeypatch: pytest.MonkeyPatch, seconds: float, rounding: str
) -> None:
    monkeypatch.setattr("compiler.quantize.choice.sequential_seconds", lambda _: seconds)
    rng = np.random.default_rng(2)
    qconfig, decisions = Calibration(two_layers(rng, 1.0), batches(rng)).choose()
    (why,) = (d.why for d in decisions if d.field == "weight_rounding")
    assert qconfig.weight_rounding == rounding
    named = "300 CPU seconds" in why and "auto,weight_rounding=sequential" in why and " dB " in why
    assert named == (rounding == "corrected")


@pytest.mark.parametrize(("spread", "alpha"), [(1.0, None), (100.0, 0.75)])
def test_uneven_channels_are_smoothed_even_over_few_samples_and_even_ones_are_not(
    spread: float, alpha: float | None
) -> None:
    rng = np.random.default_rng(1)
    calibration = Calibration(two_layers(rng, spread), batches(rng))
    qconfig, decisions = calibration.choose()
    assert qconfig.smooth_alpha == alpha
    assert {d.field for d in decisions} == {
        *("calibrate_mode", "activation_scheme", "weight_scale"),
        *("smooth_alpha", "weight_rounding"),
    }
    assert all(getattr(qconfig, d.field) == d.value for d in decisions)


def heads(rng: np.random.Generator, size: int, classes: int = 5, gate: bool = False) -> IRModule:
    """Convolutions, a pool over the image, and two dense layers in a row."""
    op, nn = relay.op, relay.op.nn
    x = relay.var("x", (1, 3, size, size))
    value = nn.relu(nn.conv2d(x, const(rng, 16, 3, 3, 3), padding=(1, 1, 1, 1)))
    if gate:
        inner = nn.conv2d(nn.global_avg_pool2d(value), const(rng, 16, 16, 1, 1))
        value = op.multiply(value, op.sigmoid(inner))
    value = nn.relu(nn.conv2d(value, const(rng, 16, 16, 3, 3), padding=(1, 1, 1, 1)))
    pooled = nn.batch_flatten(nn.global_avg_pool2d(value))
    hidden = nn.relu(nn.dense(pooled, const(rng, 16, 16)))
    return prerequisite_optimize(relay.module(nn.dense(hidden, const(rng, classes, 16))), None, 3)


@pytest.mark.parametrize(
    ("size", "options", "names"),
    [
        (16, {}, ["dense_2", "dense_3"]),
        # What gates an image is no last layer.
        (16, {"gate": True}, ["dense_3", "dense_4"]),
        # Many weights are little work in a network that is large.
        (96, {"classes": 5000}, ["dense_2", "dense_3"]),
        # Two dense layers are as much work as the convolutions; one multiplies too much.
        (2, {}, []),
        (16, {"classes": 5000}, []),
    ],
    ids=str,
)
def test_small_wide_inputs_read_more_bits(
    size: int, options: dict[str, Any], names: list[str]
) -> None:
    rng = np.random.default_rng(0)
    module = heads(rng, size, **options)
    found = wide_inputs(module).layers
    layers = {name: bits for name, bits in found.items() if name not in POINT_BITS}
    assert layers == {name: {"nbit_input": 16} for name in names}
    data = [{"x": rng.normal(size=(1, 3, size, size)).astype(np.float32)} for _ in range(4)]
    calibration = Calibration(module, data)
    qconfig, decisions = calibration.choose()
    assert qconfig.layers == found
    assert any(d.field == "layers" for d in decisions) == bool(found)
    assert_same_integers(calibration.candidate(qconfig).module, data)


@pytest.mark.parametrize(("size", "tiny"), [(8, True), (16, False)])
def test_all_layers_of_a_tiny_network_may_read_more_bits(size: int, tiny: bool) -> None:
    rng = np.random.default_rng(0)
    found = wide_inputs(heads(rng, size))
    # The first convolution reads the images.
    assert found.tiny.keys() == ({"conv2d_1"} if tiny else set())
    assert not found.tiny.keys() & found.layers.keys()


def mobile(rng: np.random.Generator, groups: int = 8, shared: str = "sum") -> IRModule:
    """A stem, a depthwise layer whose data a sum reads too, and layers of more work."""
    op, nn = relay.op, relay.op.nn

    def conv(data: Any, channels: int, taps: int, size: int, groups: int = 1) -> Any:
        weight = const(rng, channels, taps, size, size)
        same = [size // 2] * 4
        return nn.conv2d(data, weight, padding=same, groups=groups, channels=channels)

    x = relay.var("x", (1, 4, 16, 16))
    stem = op.clip(conv(conv(x, 4, 1, 3, 4), 8, 4, 3), 0.0, 6.0)
    other = {"sum": stem, "table": op.sigmoid(stem), "layer": conv(stem, 8, 8, 1)}[shared]
    deep = op.clip(conv(stem, 8, 8 // groups, 3, groups), 0.0, 6.0)
    value = op.add(conv(deep, 8, 8, 1), other)
    for _ in range(4):
        value = nn.relu(conv(value, 32, 32 if value.checked_type_or_none else 8, 3))
        value = conv(value, 8, 32, 3)
    return prerequisite_optimize(relay.module(value), None, 3)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, ["conv2d_2"]),
        # Sums of many products; what a table reads; what a layer beside it reads.
        ({"groups": 1}, []),
        ({"shared": "table"}, []),
        ({"shared": "layer"}, []),
    ],
    ids=str,
)
def test_the_first_depthwise_layers_read_more_bits(
    options: dict[str, Any], names: list[str]
) -> None:
    rng = np.random.default_rng(0)
    module = mobile(rng, **options)
    found = wide_inputs(module)
    layers = {name: bits for name, bits in found.layers.items() if name not in POINT_BITS}
    assert layers == {name: {"nbit_input": 16} for name in names}
    assert [w.split(" are ")[0] for w in found.why if " are " in w] == [
        f"sums of {n}" for n in names
    ]
    data = [{"x": rng.normal(size=(1, 4, 16, 16)).astype(np.float32)} for _ in range(4)]
    calibration = Calibration(module, data)
    qconfig, _ = calibration.choose()
    assert qconfig.layers == found.layers
    candidate = calibration.candidate(qconfig.with_overrides(weight_rounding="corrected"))
    assert_same_integers(candidate.module, data)
    # The clip in front of it is one integer, so its end is exact.
    assert ("high=8192" in str(candidate.module)) == bool(names)
    assert "minimum" not in str(candidate.module)


@pytest.mark.parametrize(
    ("shared", "channels", "cheap", "affordable"),
    [(False, 16, 1, 0), (False, 4, 0, 1), (True, 16, 0, 0), (False, 2, 0, 0)],
)
def test_tables_are_cheap_where_layers_multiply_more_than_they_compute(
    shared: bool, channels: int, cheap: bool, affordable: bool
) -> None:
    op, nn = relay.op, relay.op.nn
    rng = np.random.default_rng(0)
    value: Any = relay.var("x", (1, channels, 8, 8))
    for _ in range(2):
        value = nn.conv2d(value, const(rng, channels, channels, 3, 3))
        swish = op.multiply(value, op.sigmoid(value))
        other = nn.conv2d(value, const(rng, channels, channels, 1, 1))
        value = op.add(swish, other) if shared else swish
    module = prerequisite_optimize(relay.module(value), None, 3)
    found = wide_inputs(module)
    assert found.layers.get(TABLES) == ({"nbit_input": 12} if cheap else None)
    assert found.searched.get(TABLES, 8) == (12 if affordable else 8)
    data = [{"x": rng.normal(size=(1, channels, 8, 8)).astype(np.float32)} for _ in range(4)]
    assert Calibration(module, data).choose()[0].layers == found.layers


def test_products_of_moved_values_leave_room_where_there_is_no_layer() -> None:
    op = relay.op
    x, w, ids = relay.var("x", (3,)), relay.var("w", (5,)), relay.var("ids", (3,), "int64")
    gate = op.negative(op.sigmoid(x))
    for factor, bits in ((op.take(w, ids, axis=0), 15), (relay.const(2.0), 16)):
        product = op.multiply(gate, factor)
        module = prerequisite_optimize(relay.module(product), None, 3)
        assert wide_inputs(module).fields["nbit_input"] == bits


def test_what_no_layer_reads_has_fifteen_bits() -> None:
    op, nn, rng = relay.op, relay.op.nn, np.random.default_rng(0)
    x = relay.var("x", (1, 8, 6, 6))
    first = nn.relu(nn.conv2d(x, const(rng, 8, 8, 3, 3)))
    gated = op.multiply(
        nn.conv2d(first, const(rng, 8, 8, 1, 1)), op.mean(first, axis=(2, 3), keepdims=True)
    )
    scores = op.reshape(nn.conv2d(gated, const(rng, 8, 8, 1, 1)), (8, 16))
    module = prerequisite_optimize(relay.module(nn.softmax(scores)), None, 3)
    assert wide_inputs(module).layers[OTHERS] == {"nbit_input": 15}
    data = [{"x": rng.normal(size=(1, 8, 6, 6)).astype(np.float32)} for _ in range(4)]
    calibration = Calibration(module, data)
    errors = []
    for layers in ({}, {OTHERS: {"nbit_input": 15}}):
        config = QConfig.recommended(calibrate_mode="max", layers=layers)
        candidate = calibration.candidate(config)
        assert_same_integers(candidate.module, data)
        wanted, found = (evaluate(mod, data[0])[0] for mod in (module, candidate.module))
        errors.append(float(np.square(found - wanted).sum()))
        readers = set(point_readers(mark(module, config)[0]["main"]).values())
        bits = {names: input_bits(names, config) for names in readers}
        own = bits.pop((OTHERS,))
        assert own == (15 if layers else 8)
        # What a convolution gives keeps to the usual bits.
        assert bits == dict.fromkeys([("",), ("", "conv2d_1"), ("conv2d_0",), ("conv2d_2",)], 8)
    assert errors[1] < errors[0]


@pytest.mark.parametrize(("inputs", "chosen"), [(4096, 12), (512, 10), (128, None)])
def test_a_softmax_reads_more_bits_where_layers_multiply_enough(
    inputs: int, chosen: int | None
) -> None:
    """As many as make no table that is larger than the weights by far."""
    nn, rng = relay.op.nn, np.random.default_rng(0)
    scores = nn.dense(relay.var("x", (1, inputs)), const(rng, 4, inputs))
    module = prerequisite_optimize(
        relay.module(nn.dense(nn.softmax(scores), const(rng, 3, 4))), None, 3
    )
    data = [{"x": rng.normal(size=(1, inputs)).astype(np.float32)} for _ in range(8)]
    calibration = Calibration(module, data)
    config, _ = calibration.choose()
    assert config.layers.input_bits.get(SCORES) == chosen
    assert_same_integers(calibration.candidate(config).module, data)


def test_wide_inputs_have_room_for_what_calibration_has_not_seen() -> None:
    rng = np.random.default_rng(1)
    module = heads(rng, 16)
    data = [{"x": rng.normal(size=(1, 3, 16, 16)).astype(np.float32)} for _ in range(32)]
    calibration = Calibration(module, data)
    qconfig = calibration.choose()[0]
    assert qconfig.sequential
    larger = {"x": data[0]["x"] * np.float32(2)}
    (wanted,) = evaluate(module, larger)
    errors = [
        float(np.square(evaluate(calibration.candidate(one).module, larger)[0] - wanted).sum())
        for one in (qconfig, qconfig.with_overrides(layers={}))
    ]
    assert errors[0] < errors[1] / 2


def test_auto_is_more_exact_than_the_recommendation_where_channels_are_uneven() -> None:
    rng = np.random.default_rng(0)
    module, data = two_layers(rng, 60.0), batches(rng)

    def noise(made: IRModule) -> float:
        wanted = [evaluate(module, batch)[0] for batch in data]
        found = [evaluate(made, batch)[0] for batch in data]
        return float(sum(((a - b) ** 2).sum() for a, b in zip(wanted, found, strict=True)))

    alone = noise(quantize(module, dataset=data, qconfig="auto"))
    recommended = noise(quantize(module, dataset=data, qconfig=QConfig.recommended()))
    assert alone < recommended / 10


def test_all_values_have_sixteen_bits_where_no_layer_multiplies() -> None:
    """Gaussian naive Bayes: the likelihoods of far classes need most of a range."""
    rng, op = np.random.default_rng(0), relay.op
    drawn = rng.normal(0, 3, (3, 6)), rng.uniform(0.05, 1, (3, 6))
    centres, widths = (relay.const(array.astype(np.float32)) for array in drawn)
    apart = op.subtract(relay.var("x", (1, 6)), centres)
    scores = op.negative(op.sum(op.multiply(op.multiply(apart, apart), widths), axis=(1,)))
    likely = op.exp(op.subtract(scores, op.max(scores, axis=(0,), keepdims=True)))
    module = prerequisite_optimize(relay.module(likely))
    data = [{"x": rng.normal(0, 3, (1, 6)).astype(np.float32)} for _ in range(64)]
    calibration = Calibration(module, data)
    chosen, _ = calibration.choose()
    assert (chosen.dtype_input, chosen.nbit_input) == ("int16", 16)
    narrow = chosen.with_overrides(dtype_input="int8", nbit_input=8)
    wanted = np.concatenate([evaluate(module, batch)[0] for batch in data])
    errors = []
    for qconfig in (chosen, narrow):
        made = calibration.candidate(qconfig)
        found = np.concatenate([evaluate(made.module, batch)[0] for batch in data])
        errors.append(((found - wanted) ** 2).mean())
    assert errors[0] < errors[1] / 10
    assert choose(two_layers(rng, 1.0), None)[0].dtype_input == "int8"


def product_of_values(x: Any, y: Any) -> Any:
    return relay.op.add(relay.op.multiply(relay.op.multiply(x, y), x), y)


def unit_length(x: Any, _y: Any) -> Any:
    op = relay.op
    return op.divide(x, op.sqrt(op.sum(op.multiply(x, x), axis=(2, 3), keepdims=True)))


def instance_norm(x: Any, _y: Any) -> Any:
    op = relay.op
    ones, zeros = (relay.const(np.full(90000, n, np.float32)) for n in (1, 0))
    return op.nn.layer_norm(op.reshape(x, newshape=(1, 2, 90000)), ones, zeros, axis=-1)


@pytest.mark.parametrize(
    ("network", "shape", "least"),
    [
        (product_of_values, (1, 1, 2, 8), 75),
        (unit_length, (1, 1, 8, 64), 45),
        (instance_norm, (1, 2, 300, 300), 38),
    ],
)
def test_sixteen_bits_fit_what_is_computed(
    network: Callable[[Any, Any], Any], shape: tuple[int, ...], least: float
) -> None:
    rng = np.random.default_rng(0)
    module = relay.module(network(relay.var("x", shape), relay.var("y", shape)))
    names = [param.name_hint for param in module["main"].params]
    data = [{n: rng.uniform(0.1, 3, shape).astype(np.float32) for n in names} for _ in range(8)]
    made = quantize(module, dataset=data, qconfig="auto")
    got, wanted = (np.concatenate([evaluate(m, b)[0] for b in data]) for m in (made, module))
    assert 10 * np.log10((wanted**2).mean() / ((got - wanted) ** 2).mean()) > least


def test_errors_predicted_from_statistics_rank_configurations_as_running_them_does() -> None:
    rng = np.random.default_rng(1)
    module, data = two_layers(rng, 3.0), batches(rng)
    calibration = Calibration(module, data, percentiles=(0.9, 0.99))
    best = {"calibrate_mode": "mse", "weight_scale": "mse", "activation_scheme": "asymmetric"}
    changes: tuple[dict[str, object], ...] = (
        {},
        {"activation_scheme": "symmetric", "weight_scale": "power2"},
        {"calibrate_mode": "percentile", "percentile": 0.99},
        {"calibrate_mode": "percentile", "percentile": 0.9},
        {"calibrate_mode": "global_scale", "global_scale": 32.0},
        {"nbit_weight": 5},
        {"nbit_weight": 3},
    )
    configs = [QConfig.recommended(**{**best, **change}) for change in changes]
    predicted = partial(predicted_sqnr_db, module, calibration.stats_for(configs[0]))
    told = [predicted(qconfig) for qconfig in configs]

    def noise(qconfig: QConfig) -> float:
        made = calibration.candidate(qconfig).module
        pairs = [(evaluate(module, one)[0], evaluate(made, one)[0]) for one in data]
        return float(sum(np.square(a - b).sum() for a, b in pairs))

    true = [-noise(qconfig) for qconfig in configs]
    assert np.argsort(told)[-1] == np.argsort(true)[-1] == 0
    assert np.corrcoef(np.argsort(np.argsort(told)), np.argsort(np.argsort(true)))[0, 1] > 0.8
    # Bits of one layer count for that layer alone.
    mixed = configs[0].with_overrides(layers={layer_names(module)[0]: {"nbit_weight": 3}})
    assert told[6] < predicted(mixed) < told[0]


@pytest.mark.parametrize(
    ("runs", "batch", "rounding"),
    [
        (1, 1, "corrected"),
        (2, 1, "sequential"),
        (1, 16, "sequential"),
        (8, 16, "sequential"),
    ],
)
def test_weights_are_fitted_to_samples_where_there_are_enough(
    runs: int, batch: int, rounding: str
) -> None:
    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(batch, 3, 8, 8)).astype(np.float32)} for _ in range(runs)]
    calibration = Calibration(two_layers(rng, 1.0, batch), data)
    qconfig, decisions = calibration.choose()
    assert qconfig.weight_rounding == rounding
    (why,) = (one.why for one in decisions if one.field == "weight_rounding")
    assert f"{runs * batch} " in why


@pytest.mark.parametrize("steps", [5, 1])
@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
def test_sums_in_loops_have_sixteen_bits(kind: str, steps: int) -> None:
    """Of one step too: a stream calls it, and its states go on to the next call."""
    found = wide_inputs(
        prerequisite_optimize(*imported(whole(kind, weights(kind), steps=steps)), 3)
    )
    assert found.layers[SUMS] == {"nbit_input": 16}
    assert SUMS not in found.searched
    assert any("sums in loops" in one for one in found.why)
    assert found.layers[TABLES] == {"nbit_input": 12}


def test_a_state_is_multiplied_in_its_sixteen_bits() -> None:
    """The cell times its gate: 16 by 8 bits fit int32, and are rounded nowhere before."""
    mod = prerequisite_optimize(*imported(whole("LSTM", weights("LSTM"))), 3)
    rng = np.random.default_rng(0)
    shapes = {param.name_hint: param.tensor_type.concrete_shape for param in mod["main"].params}
    data = [{n: rng.normal(size=s).astype(np.float32) for n, s in shapes.items()} for _ in range(8)]
    made = quantize(mod, dataset=data, qconfig="auto")
    nodes = nodes_of(made["quantized_main"])
    products = (node for node in nodes if is_op_call(node, "multiply"))
    sources = [
        behind(arg, ("cast", "annotation.stop_fusion"))[1]
        for call in products
        for arg in call.operands()
    ]
    assert "int16" in {one.tensor_type.dtype for one in sources if isinstance(one, Var)}


@pytest.mark.parametrize("kind", ["GRU", "LSTM", "RNN"])
def test_states_do_not_add_up_what_the_layers_of_a_loop_round(kind: str) -> None:
    """Data whose largest values stand far out, as features of sounds do."""
    proto = whole(kind, weights(kind), steps=30)
    mod = prerequisite_optimize(*imported(proto), 3)
    rng = np.random.default_rng(1)
    data = [{"x": rng.standard_t(2, (30, 2, 3)).astype(np.float32)} for _ in range(16)]
    made = quantize(mod, dataset=data[:10], qconfig="auto")
    assert sqnr_db(mod, made, data[10:]) > 40


@pytest.mark.parametrize(("classes", "wide"), [(4, True), (200, False)])
def test_a_small_layer_reads_the_sixteen_bits_of_what_a_loop_gives(
    classes: int, wide: bool
) -> None:
    graph, rng = Network(0), np.random.default_rng(0)
    gates = (graph.weight(rng.normal(0, 0.3, (1, 48, size))) for size in (4, 16))
    states, _ = graph("GRU", graph.input(20, 1, 4), *gates, outputs=2, hidden_size=16)
    rows = graph("Squeeze", states, graph.weight([1], np.int64))
    proto = graph.model(graph.dense(rows, 16, classes))
    module = prerequisite_optimize(*imported(proto), 3)
    head = layer_names(module)[-1]
    assert (wide_inputs(module).layers.get(head) == {"nbit_input": 16}) is wide
    if wide:
        data = [{"x": rng.normal(size=(20, 1, 4)).astype(np.float32)} for _ in range(12)]
        made = quantize(module, dataset=data[:8], qconfig="auto")
        assert sqnr_db(module, made, data[8:]) > 45


@pytest.mark.parametrize("function", ["softmax", "log_softmax"])
def test_a_softmax_of_pooled_values_weighs_all_of_them(function: str) -> None:
    """A value that no layer reads has 15 bits: more steps than a table has entries."""
    rng = np.random.default_rng(0)
    weight = relay.const(rng.normal(size=(8, 8, 1, 1)).astype(np.float32))
    hidden = relay.op.nn.conv2d(relay.var("x", (1, 8, 6, 6)), weight)
    pooled = relay.op.nn.batch_flatten(relay.op.nn.global_avg_pool2d(hidden))
    mod = relay.module(getattr(relay.op.nn, function)(pooled))
    data = [{"x": rng.normal(size=(1, 8, 6, 6)).astype(np.float32)} for _ in range(24)]
    made = quantize(mod, dataset=data[:16], qconfig="auto")
    assert sqnr_db(mod, made, data[16:]) > 35
    assert_same_integers(made, data[16:18])
