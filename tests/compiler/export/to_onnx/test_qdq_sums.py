"""QDQ graphs of modules with values of 9 to 16 bits, which runtimes read in 8."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler import evaluate
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.ir.expr import Quant
from compiler.qtypes.layer_choices import TABLES
from compiler.quantize import prerequisite_optimize
from compiler.runtime.artifact import QModule
from compiler.span import Span
from tests.compiler.export.to_onnx.qdq_graphs import (
    kernels,
    multiplier_and_shift,
    of_file,
    outputs_of,
    residual_network,
    sqnr_db,
)


def test_residual_sums_of_16_bits_are_narrowed() -> None:
    module, data = residual_network()
    narrow = to_qdq_onnx(module.module)
    wide = to_qdq_onnx(module.module, wide_sums=True)
    onnx.checker.check_model(narrow.model, full_check=True)
    assert narrow.narrowed > 0 == wide.narrowed
    wanted, near, far = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, of_file(wide.model).run, of_file(narrow.model).run)
    )
    assert 20 < sqnr_db(far, wanted) < sqnr_db(near, wanted)


def test_narrowed_sums_are_added_by_8_bit_kernels(tmp_path: Path) -> None:
    module, _ = residual_network()
    kinds = [
        kernels(to_qdq_onnx(module.module, wide_sums=wide).model, tmp_path)
        for wide in (False, True)
    ]
    # The last of seven convolutions has a float output.
    assert (kinds[0]["QLinearConv"], kinds[0]["QLinearAdd"]) == (6, 3)
    assert kinds[0]["FusedConv"] + kinds[0]["Add"] == 0 < kinds[1]["FusedConv"] + kinds[1]["Add"]


def test_sums_of_8_bits_are_added_by_8_bit_kernels(tmp_path: Path) -> None:
    module, _ = residual_network(bits=8)
    assert len(re.findall(r"requantize\(%\w+, shift=", str(module.module))) == 3
    kinds = kernels(to_qdq_onnx(module.module).model, tmp_path)
    # The first sum reads the input of the network.
    assert (kinds["QLinearConv"], kinds["QLinearAdd"], kinds["Add"]) == (6, 2, 1)


def test_sums_that_a_layer_norm_reads_keep_their_bits() -> None:
    module, data = residual_network(normalized=True)
    made = to_qdq_onnx(module.module)
    wide = str(module.module).count("high=32767")
    assert (made.narrowed, wide) == (3, 4)
    (wanted,), (found,) = (run([data[0]["x"]]) for run in (module.run, of_file(made.model).run))
    assert sqnr_db(found, wanted) > 20


def test_factors_of_channels_are_not_moved_with_a_sum_that_is_narrowed() -> None:
    """A residual stream of images, scaled by channels, becomes one of tokens."""
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(5), relay.op, relay.op.nn

    def weight(*shape: int) -> Any:
        return relay.const(rng.normal(0, 0.4, shape).astype("float32"))

    def positive(*shape: int) -> Any:
        return relay.const(rng.uniform(0.5, 2, shape).astype("float32"))

    def tokens(value: Any) -> Any:
        return op.transpose(op.reshape(value, newshape=(1, 8, 16)), axes=(0, 2, 1))

    x = relay.var("x", (1, 8, 4, 4))
    image = op.add(x, nn.conv2d(x, weight(8, 8, 1, 1)))
    image = op.add(op.multiply(image, positive(8, 1, 1)), nn.conv2d(image, weight(8, 8, 1, 1)))
    rows = tokens(op.multiply(image, positive(8, 1, 1)))
    mixed = nn.matmul(nn.layer_norm(tokens(image), positive(8), weight(8)), weight(8, 8))
    stream = op.add(op.multiply(rows, positive(8)), mixed)
    mod = relay.module(nn.matmul(nn.layer_norm(stream, positive(8), weight(8)), weight(8, 8)))
    data = [{"x": rng.normal(0, 1, (1, 8, 4, 4)).astype("float32")} for _ in range(8)]
    module = QModule(Calibration(mod, data).candidate(QConfig.recommended()).module)
    made = to_qdq_onnx(module.module)
    wanted, found = outputs_of(module.run, data), outputs_of(of_file(made.model).run, data)
    assert made.narrowed
    assert sqnr_db(found, wanted) > 25


@pytest.mark.parametrize("bits", [10, 12, 16])
@pytest.mark.parametrize("classes", [5, 10000])
def test_last_layers_that_read_16_bits_are_computed_in_float_but_for_many_weights(
    classes: int, bits: int
) -> None:
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(4), relay.op, relay.op.nn
    x, shapes = relay.var("x", (1, 4, 6, 6)), ((8, 4, 3, 3), (classes, 8))
    first, last = (rng.normal(0, 0.4, shape).astype("float32") for shape in shapes)
    pooled = nn.global_avg_pool2d(nn.relu(nn.conv2d(x, relay.const(first))))
    dense = nn.dense(nn.batch_flatten(pooled), relay.const(last))
    mod = relay.module(op.add(dense, relay.const(rng.normal(size=classes).astype("float32"))))
    data = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype("float32")} for _ in range(6)]
    asked = QConfig.recommended(
        layers={"dense_1": {"nbit_input": bits}},
        activation_scheme="unsigned",
        calibrate_mode="max",
    )
    module = QModule(Calibration(mod, data).candidate(asked).module)
    made = to_qdq_onnx(module.module)
    onnx.checker.check_model(made.model, full_check=True)
    assert [name for name, _, _ in made.float_products] == ["nn.dense"] * (classes == 5)
    assert onnx.TensorProto.DOUBLE not in {
        attribute.i for node in made.model.graph.node for attribute in node.attribute
    } | {one.data_type for one in made.model.graph.initializer}
    wanted, found = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, of_file(made.model).run)
    )
    # All 8 bits are steps of what was seen: there is no room for others, nor for a sign.
    assert sqnr_db(found, wanted) > 45


def test_tables_of_12_bits_read_8(tmp_path: Path) -> None:
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(4), relay.op, relay.op.nn
    value: Any = relay.var("x", (1, 4, 6, 6))
    for _ in range(3):
        weight = relay.const(rng.normal(0, 0.5, (4, 4, 1, 1)).astype("float32"))
        value = nn.conv2d(value, weight)
        value = op.multiply(value, op.sigmoid(value))
    # A movement, of which there are no 8 bits, goes on from what the table gives.
    halves = op.split(value, indices_or_sections=2, axis=1)
    value = op.add(relay.TupleGetItem(halves, 0), relay.TupleGetItem(halves, 1))
    mod = prerequisite_optimize(relay.module(value), None, 3)
    data = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype("float32")} for _ in range(12)]
    calibration = Calibration(mod, data[:6])
    found = {}
    for bits in (8, 12):
        layers = {TABLES: {"nbit_input": bits}}
        asked = QConfig.recommended(calibrate_mode="mse", layers=layers)
        module = QModule(calibration.candidate(asked).module)
        made = to_qdq_onnx(module.module)
        onnx.checker.check_model(made.model, full_check=True)
        # Of 12 bits what the first convolution computes stays as it is.
        floats = [str(span) for _, span, _ in made.float_products]
        assert (len(floats), made.narrowed) == ((0, 0) if bits == 8 else (1, 2))
        assert kernels(made.model, tmp_path)["QLinearConv"] == (3 if bits == 8 else 2)
        wanted, got = (
            np.concatenate([run([batch["x"]])[0] for batch in data])
            for run in (module.run, of_file(made.model).run)
        )
        (real,) = zip(*(evaluate(mod, batch) for batch in data))
        found[bits] = sqnr_db(got, np.concatenate(real)), sqnr_db(wanted, np.concatenate(real))
        exact = to_qdq_onnx(module.module, wide_sums=True)
        assert (exact.narrowed, len(exact.float_products)) == (0, 0 if bits == 8 else 3)
    assert found[12][0] > found[8][0] - 1
    assert found[12][1] > found[8][1]


def test_what_stands_in_front_of_a_table_may_be_anything() -> None:
    from compiler import relay

    rng, op = np.random.default_rng(0), relay.op
    x = relay.var("x", (1, 2, 4, 4))
    data = op.cast(op.subtract(x, relay.const(np.float32("nan"))), dtype="int8")
    weight = relay.const(rng.integers(-50, 50, (4, 2, 1, 1)).astype("int8"))
    made = op.zeros(shape=(1, 2, 4, 4), dtype="int8")
    for value in (data, made):
        total = op.nn.conv2d(value, weight, out_dtype="int32")
        wide = op.clip(total, a_min=-2047.0, a_max=2047.0).with_fields(quant=Quant(1.0, bits=12))
        places = op.cast(op.subtract(wide, relay.const(np.int32(-2047))), dtype="uint16")
        table = relay.const(np.arange(4095, dtype="int32"))
        found = op.cast(op.lookup(places, table), dtype="float32")
        assert to_qdq_onnx(relay.module(found)).float_ops == {"lookup": 1}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", ["depthwise", "dense", "pooled"])
def test_inner_layers_that_read_16_bits_are_computed_in_8(
    kind: str, signed: bool, tmp_path: Path
) -> None:
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, nn = np.random.default_rng(4), relay.op.nn
    x = relay.var("x", (1, 4, 6, 6))
    groups = 8 if kind == "depthwise" else 1
    shapes = (8, 4, 3, 3), (8, 8 // groups, 3, 3), (4, 8, 1, 1)
    first, deep, last = (relay.const(rng.normal(0, 0.4, s).astype("float32")) for s in shapes)
    value = nn.conv2d(x, first, padding=(1, 1))
    value = value if signed else nn.relu(value)
    value = nn.max_pool2d(value, (2, 2), (1, 1)) if kind == "pooled" else value
    value = nn.relu(nn.conv2d(value, deep, groups=groups, channels=8))
    mod = relay.module(nn.conv2d(value, last))
    data = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype("float32")} for _ in range(6)]
    asked = QConfig.recommended(layers={"conv2d_1": {"nbit_input": 16}})
    module = QModule(Calibration(mod, data).candidate(asked).module)
    made = to_qdq_onnx(module.module)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.narrowed) == ((), 1)
    wide = to_qdq_onnx(module.module, wide_sums=True)
    assert wide.float_products
    assert kernels(made.model, tmp_path)["QLinearConv"] == 2
    wanted, found = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, of_file(made.model).run)
    )
    assert sqnr_db(found, wanted) > 30


@functools.cache
def mobile_block(
    joined: bool, multiplier: int = 1, scheme: str = "asymmetric"
) -> tuple[QModule, dict[str, list[int]], list[dict[str, np.ndarray]]]:
    """A depthwise layer of 16 bits on channels of uneven ranges, what is known of them, and data.

    Args:
        joined: what the layer reads is added to what is computed from it.
        multiplier: outputs of each channel.
        scheme: of activations.
    """
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(5), relay.op, relay.op.nn

    def weight(*shape: int, sizes: Any = 1.0) -> Any:
        values = rng.normal(0, 0.4, shape) * np.reshape(sizes, (-1, 1, 1, 1))
        return relay.const(values.astype("float32"))

    same, count = {"padding": (1, 1)}, 8 * multiplier
    small = weight(8, 4, 3, 3, sizes=np.exp2(-np.arange(8)))
    stem = nn.relu(nn.conv2d(relay.var("x", (1, 4, 6, 6)), small, **same))
    large = weight(count, 1, 3, 3, sizes=np.exp2(np.repeat(np.arange(8), multiplier)))
    deep = nn.conv2d(stem, large, groups=8, channels=count, **same)
    value = nn.relu(deep.with_fields(span=Span("onnx:deep")))
    value = nn.conv2d(value, weight(8, count, 1, 1))
    value = op.add(stem, value) if joined else value
    mod = prerequisite_optimize(relay.module(nn.conv2d(value, weight(4, 8, 1, 1))))
    data = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype("float32")} for _ in range(12)]
    asked = QConfig.recommended(
        layers={"deep": {"nbit_input": 16}},
        weight_rounding="corrected",
        activation_scheme=scheme,
        calibrate_mode="max",
    )
    made = Calibration(mod, data[:8]).candidate(asked)
    return QModule(made.module), made.channel_maxima, data[8:]


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_narrowed_channels_have_ranges_of_their_own(
    joined: bool, multiplier: int, reduced: bool
) -> None:
    module, maxima, data = mobile_block(joined, multiplier)
    made, plain, wide = (
        to_qdq_onnx(module.module, reduced, maxima=known, wide_sums=sums)
        for known, sums in ((maxima, False), (None, False), (None, True))
    )
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.narrowed) == ((), 1)
    found, one_range, exact = (
        outputs_of(of_file(one.model).run, data) for one in (made, plain, wide)
    )
    assert sqnr_db(found, exact) > sqnr_db(one_range, exact) + 4


def test_narrowed_channels_stay_on_8_bit_kernels(tmp_path: Path) -> None:
    counts = []
    for joined in (False, True):
        module, maxima, _ = mobile_block(joined, scheme="symmetric")
        counts.append(kernels(to_qdq_onnx(module.module, maxima=maxima).model, tmp_path))
    # The last of four convolutions has a float output; the sum needs one scale for all channels.
    assert [kinds["QLinearConv"] for kinds in counts] == [3, 4]
    assert (counts[1]["QLinearAdd"], counts[1]["Add"]) == (1, 0)


def test_an_8_bit_side_of_a_sum_is_not_rounded_again() -> None:
    module, _, _ = mobile_block(joined=True)
    nodes = to_qdq_onnx(module.module).model.graph.node
    kinds = {name: node.op_type for node in nodes for name in node.output}
    rounded = [kinds.get(node.input[0]) for node in nodes if node.op_type == "QuantizeLinear"]
    assert "DequantizeLinear" not in rounded


@pytest.mark.parametrize(
    "maxima",
    [{}, {"deep": [3, 4]}, {"other": [1] * 8}, {"deep": []}],
    ids=["none", "too few", "of another layer", "no channels"],
)
def test_maxima_that_do_not_fit_change_nothing(maxima: dict[str, list[int]]) -> None:
    module, _, _ = mobile_block(joined=True)
    assert to_qdq_onnx(module.module, maxima=maxima) == to_qdq_onnx(module.module)


@pytest.mark.parametrize("value", [0, 1, 1 << 40])
def test_no_maxima_break_a_graph(value: int) -> None:
    module, _, data = mobile_block(joined=True)
    made = to_qdq_onnx(module.module, maxima={"deep": [value] * 8})
    onnx.checker.check_model(made.model, full_check=True)
    assert np.isfinite(outputs_of(of_file(made.model).run, data)).all()


FREE = 2**31 - 1


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("ends", "kept"),
    [
        ([12_750, 25_500, 51_000, 102_000], True),
        ([12_745, 25_500, FREE, FREE], True),
        ([12_750, 25_500, 25_500, FREE], False),
    ],
    ids=["one real number", "free channels", "another number"],
)
def test_clips_of_channels_that_8_bits_have_are_left_out(
    bits: int, ends: list[int], kept: bool
) -> None:
    """Sums of 4 channels become 8 bits, or 16 that a depthwise convolution reads."""
    from compiler import relay

    rng, op, nn = np.random.default_rng(8), relay.op, relay.op.nn

    def constant(values: Any, dtype: str = "int32") -> Any:
        return relay.const(np.asarray(values, dtype))

    x = relay.var("x", (1, 3, 6, 6))
    data = op.cast(op.clip(op.round(x), a_min=-127, a_max=127), dtype="int8")
    weight = constant(rng.integers(-90, 90, (4, 3, 3, 3)), "int8")
    total = nn.conv2d(data, weight, out_dtype="int32")
    sums = op.maximum(
        op.minimum(total, constant(np.reshape(ends, (4, 1, 1)))), constant(np.zeros((4, 1, 1)))
    )
    most, unit = (255, 1) if bits == 8 else (8192, 8192 / 255)
    pairs = [multiplier_and_shift(unit / 50 / 2**place) for place in range(4)]
    m, e = (constant([pair[i] for pair in pairs]) for i in (0, 1))
    scaled = op.fixed_point_multiply_per_axis(op.cast(sums, dtype="int64"), m, e, axis=1)
    low, high = (0, most) if bits == 8 else (-32767, 32767)
    limited = op.clip(scaled, a_min=low, a_max=high)
    limited = limited if bits == 8 else limited.with_fields(quant=Quant(1.0, bits=bits))
    held = op.cast(limited, dtype="int32")
    held = op.cast(held, dtype="uint8" if bits == 8 else "int16")
    deep = constant(rng.integers(1, 90, (4, 1, 3, 3)), "int8")
    result = nn.conv2d(held, deep, groups=4, channels=4, out_dtype="int32")
    mod = relay.module(op.multiply(op.cast(result, dtype="float32"), constant(0.5, "float32")))
    made = to_qdq_onnx(mod)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products == ()) == kept
    inputs = [{"x": rng.normal(0, 60, (1, 3, 6, 6)).astype("float32")} for _ in range(6)]
    wanted, found = (outputs_of(run, inputs) for run in (QModule(mod).run, of_file(made.model).run))
    assert sqnr_db(found, wanted) > 30


def test_positions_behind_a_layer_norm_have_a_number_for_each_token() -> None:
    """A decoder that normalizes embeddings in front of the positions, as BlenderBot does."""
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op = np.random.default_rng(3), relay.op

    def const(*shape: int) -> Any:
        return relay.const(rng.normal(0, 0.5, shape).astype("float32"))

    x = relay.var("x", (1, 5, 8))
    gamma = relay.const(np.arange(1, 9, dtype="float32"))
    value = op.nn.layer_norm(op.nn.dense(x, const(8, 8)), gamma, const(8))
    value = op.add(value, const(5, 8))
    mod = relay.module(op.nn.dense(value, const(4, 8)))
    data = [{"x": rng.normal(0, 1, (1, 5, 8)).astype("float32")} for _ in range(8)]
    module = QModule(Calibration(mod, data).candidate(QConfig.recommended()).module)
    assert "nn.integer_standardize" in str(module.module)
    wanted = outputs_of(module.run, data)
    made = to_qdq_onnx(module.module).model
    onnx.checker.check_model(made, full_check=True)
    assert sqnr_db(outputs_of(of_file(made).run, data), wanted) > 20
