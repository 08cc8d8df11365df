"""QDQ graphs: nearly the module's integers, in 8 bit kernels."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import qsearch
from compiler import evaluate
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.qdq import to_qdq_onnx
from compiler.ir.span import Span
from compiler.quantize import prerequisite_optimize
from compiler.runtime.artifact import QModule
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.export.to_onnx.grid_graphs import multiplier_and_shift

DATA = Path(qsearch.__file__).parent / "models" / "digits_dev.npz"


def digits(**changes: object) -> QModule:
    """The shipped CNN, quantized as recommended but for the changes."""
    return qsearch.quantize("digits", qconfig=changes)


def images(count: int = 100) -> np.ndarray:
    """Images nobody calibrated on."""
    with np.load(DATA) as held:
        return np.asarray(held["input"][:count])


def sqnr_db(found: np.ndarray, wanted: np.ndarray) -> float:
    """Signal to noise of outputs."""
    noise = float(np.square(found - wanted).sum())
    return 10 * float(np.log10(np.square(wanted).sum() / max(noise, 1e-12)))


def outputs(model: onnx.ModelProto, x: np.ndarray, kernels: bool = False) -> np.ndarray:
    """One sample after the other, as the graph says, or by 8 bit kernels, which may saturate."""
    session = OrtExecutor(model, optimize=kernels)
    return np.concatenate([session.run([x[i : i + 1]])[0] for i in range(len(x))])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation_scheme": "symmetric"},
        {"activation_scheme": "asymmetric"},
        {"requantization": "power_of_two"},
        {"rounding": "TONEAREST"},
        {"weight_granularity": "tensor", "avg_pool_round": False},
        {"nbit_weight": 4, "keep_output_wide": False},
        {"nbit_input": 4},
        {"nbit_input": 6, "activation_scheme": "symmetric", "rounding": "TONEAREST"},
    ],
    ids=str,
)
def test_outputs_are_near_those_of_the_module(changes: dict[str, object]) -> None:
    module, x = digits(**changes), images()
    (wanted,) = module.run([x])
    for runtime, least in (("onnxruntime", 30), ("openvino", 30), ("tensorrt", 25)):
        made = to_qdq_onnx(module.module, runtime)
        onnx.checker.check_model(made.model, full_check=True)
        assert made.float_products == ()
        found = outputs(made.model, x)
        assert sqnr_db(found, wanted) > least
        assert np.mean(found.argmax(axis=1) == wanted.argmax(axis=1)) >= 0.98


def test_kernels_of_every_processor_compute_a_graph_of_reduced_range() -> None:
    model, x = to_qdq_onnx(digits().module, reduce_range=True).model, images()
    assert sqnr_db(outputs(model, x, kernels=True), outputs(model, x)) > 40


def kernels(model: onnx.ModelProto, folder: Path) -> collections.Counter[str]:
    """Operators of the graph that onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    data = model.SerializeToString()
    onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    optimized = onnx.load(options.optimized_model_filepath)
    return collections.Counter(node.op_type for node in optimized.graph.node)


@pytest.mark.parametrize("changes", [{}, {"nbit_input": 4}, {"nbit_input": 6}], ids=str)
def test_onnxruntime_finds_its_kernels_everywhere(
    changes: dict[str, object], tmp_path: Path
) -> None:
    kinds = kernels(to_qdq_onnx(digits(**changes).module).model, tmp_path)
    assert kinds["QLinearConv"] == 3
    assert (kinds["QGemm"], kinds["QLinearGlobalAveragePool"]) == (1, 1)
    assert kinds["Conv"] == kinds["Gemm"] == kinds["DequantizeLinear"] == 0


def test_a_symmetric_runtime_gets_symmetric_int8_only() -> None:
    graph = to_qdq_onnx(digits().module, "tensorrt").model.graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    quantizing = [n for n in graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for node in quantizing:
        zero = held[node.input[2]]
        assert zero.dtype == np.int8
        assert not zero.any()


def test_a_reduced_range_has_weights_of_seven_bits() -> None:
    graph = to_qdq_onnx(digits().module, reduce_range=True).model.graph
    held = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    weights = [w for w in held.values() if w.dtype == np.int8 and w.ndim > 1]
    assert len(weights) == 4
    assert max(int(np.abs(w.astype(np.int32)).max()) for w in weights) == 64


def test_what_has_no_8_bit_form_is_named_with_its_share() -> None:
    from compiler import relay

    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 8))
    q = relay.op.cast(relay.op.clip(relay.op.round(x), a_min=-127, a_max=127), dtype="int8")
    wide = relay.const(rng.integers(-500, 500, (4, 8)).astype("int16"))
    total = relay.op.nn.dense(relay.op.cast(q, dtype="int16"), wide, out_dtype="int32")
    mod = relay.module(relay.op.cast(total, dtype="float32"))
    made = to_qdq_onnx(mod)
    assert made.macs == 32
    assert [(op, macs) for op, _, macs in made.float_products] == [("nn.dense", 32)]
    data = rng.integers(-100, 100, (1, 8)).astype("float32")
    (wanted,) = QModule(mod).run([data], "reference")
    np.testing.assert_array_equal(outputs(made.model, data), wanted)


def residual_network(
    normalized: bool = False, bits: int = 16
) -> tuple[QModule, list[dict[str, np.ndarray]]]:
    """Blocks whose results are added to what they read, sums of so many bits; and the data."""
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op, nn = np.random.default_rng(3), relay.op, relay.op.nn

    def conv(value: Any) -> Any:
        weight = relay.const(rng.normal(0, 0.35, (8, 8, 1, 1)).astype("float32"))
        bias = relay.const(np.full((8, 1, 1), 0.1, "float32"))
        return op.add(nn.conv2d(value, weight), bias)

    value: Any = relay.var("x", (1, 8, 6, 6))
    for _ in range(2):
        value = op.add(value, conv(nn.relu(conv(value))))
    value = nn.relu(op.add(conv(value), conv(value)))
    if normalized:
        scale = relay.const(np.ones(6, "float32"))
        value = nn.layer_norm(op.add(value, conv(value)), scale, scale)
    mod = relay.module(conv(value))
    data = [{"x": rng.normal(0, 1, (1, 8, 6, 6)).astype("float32")} for _ in range(8)]
    asked = QConfig.recommended(residual_bits=bits, calibrate_mode="mse")
    return QModule(Calibration(mod, data[:4]).candidate(asked).module), data


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
def test_residual_sums_of_16_bits_are_narrowed(runtime: str) -> None:
    module, data = residual_network()
    narrow = to_qdq_onnx(module.module, runtime)
    wide = to_qdq_onnx(module.module, runtime, wide_sums=True)
    onnx.checker.check_model(narrow.model, full_check=True)
    assert narrow.narrowed > 0 == wide.narrowed
    wanted, near, far = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, OrtExecutor(wide.model).run, OrtExecutor(narrow.model).run)
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
    assert str(module.module).count("left_shift") == 3
    kinds = kernels(to_qdq_onnx(module.module).model, tmp_path)
    # The first sum reads the input of the network.
    assert (kinds["QLinearConv"], kinds["QLinearAdd"], kinds["Add"]) == (6, 2, 1)


def test_sums_that_a_layer_norm_reads_keep_their_bits() -> None:
    module, data = residual_network(normalized=True)
    made = to_qdq_onnx(module.module)
    wide = str(module.module).count("a_max=32767")
    assert (made.narrowed, wide) == (3, 4)
    (wanted,), (found,) = (run([data[0]["x"]]) for run in (module.run, OrtExecutor(made.model).run))
    assert sqnr_db(found, wanted) > 20


@pytest.mark.parametrize("bits", [10, 12, 16])
@pytest.mark.parametrize("classes", [5, 10000])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
def test_last_layers_that_read_16_bits_are_computed_in_float_but_for_many_weights(
    runtime: str, classes: int, bits: int
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
    made = to_qdq_onnx(module.module, runtime)
    onnx.checker.check_model(made.model, full_check=True)
    assert [name for name, _, _ in made.float_products] == ["nn.dense"] * (classes == 5)
    assert onnx.TensorProto.DOUBLE not in {
        attribute.i for node in made.model.graph.node for attribute in node.attribute
    } | {one.data_type for one in made.model.graph.initializer}
    wanted, found = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, OrtExecutor(made.model).run)
    )
    # All 8 bits are steps of what was seen: there is no room for others, nor for a sign.
    assert sqnr_db(found, wanted) > 45


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
def test_tables_of_12_bits_read_8(runtime: str, tmp_path: Path) -> None:
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
        asked = QConfig.recommended(calibrate_mode="mse", table_bits=bits)
        module = QModule(calibration.candidate(asked).module)
        made = to_qdq_onnx(module.module, runtime)
        onnx.checker.check_model(made.model, full_check=True)
        # Of 12 bits what the first convolution computes stays as it is.
        floats = [str(span) for _, span, _ in made.float_products]
        assert (len(floats), made.narrowed) == ((0, 0) if bits == 8 else (1, 2))
        if runtime == "onnxruntime":
            assert kernels(made.model, tmp_path)["QLinearConv"] == (3 if bits == 8 else 2)
        wanted, got = (
            np.concatenate([run([batch["x"]])[0] for batch in data])
            for run in (module.run, OrtExecutor(made.model).run)
        )
        (real,) = zip(*(evaluate(mod, batch) for batch in data))
        found[bits] = sqnr_db(got, np.concatenate(real)), sqnr_db(wanted, np.concatenate(real))
        exact = to_qdq_onnx(module.module, runtime, wide_sums=True)
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
        wide = op.clip(total, a_min=-2047.0, a_max=2047.0)
        places = op.cast(op.subtract(wide, relay.const(np.int32(-2047))), dtype="uint16")
        table = relay.const(np.arange(4095, dtype="int32"))
        found = op.cast(op.lookup(places, table), dtype="float32")
        assert to_qdq_onnx(relay.module(found)).float_ops == {"lookup": 1}


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", ["depthwise", "dense", "pooled"])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
def test_inner_layers_that_read_16_bits_are_computed_in_8(
    runtime: str, kind: str, signed: bool, tmp_path: Path
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
    made = to_qdq_onnx(module.module, runtime)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.narrowed) == ((), 1)
    wide = to_qdq_onnx(module.module, runtime, wide_sums=True)
    assert wide.float_products
    if runtime == "onnxruntime":
        assert kernels(made.model, tmp_path)["QLinearConv"] == 2
    wanted, found = (
        np.concatenate([run([batch["x"]])[0] for batch in data])
        for run in (module.run, OrtExecutor(made.model).run)
    )
    assert sqnr_db(found, wanted) > 30


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("counted", [False, True])
def test_averages_of_windows_are_convolutions_where_these_are_faster(
    padded: bool, counted: bool, tmp_path: Path
) -> None:
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, nn = np.random.default_rng(7), relay.op.nn
    first, last = (
        relay.const(rng.normal(0, 0.4, shape).astype("float32"))
        for shape in ((8, 4, 3, 3), (4, 8, 3, 3))
    )
    value = nn.relu(nn.conv2d(relay.var("x", (1, 4, 8, 8)), first))
    around = (1, 1) if padded else (0, 0)
    value = nn.avg_pool2d(value, (3, 2), (1, 1), padding=around, count_include_pad=counted)
    mod = relay.module(nn.conv2d(value, last))
    data = [{"x": rng.normal(0, 1, (1, 4, 8, 8)).astype("float32")} for _ in range(6)]
    module = QModule(Calibration(mod, data).candidate(QConfig.recommended()).module)
    made = {name: to_qdq_onnx(module.module, name).model for name in ("onnxruntime", "openvino")}
    written = {
        name: [node.op_type for node in model.graph.node].count("AveragePool")
        for name, model in made.items()
    }
    border = padded and not counted
    assert written == {"onnxruntime": int(border), "openvino": 1}
    if not border:
        assert kernels(made["onnxruntime"], tmp_path)["QLinearConv"] == 2
    wanted = outputs_of(module.run, data)
    assert all(sqnr_db(outputs_of(OrtExecutor(m).run, data), wanted) > 30 for m in made.values())


def gated_block(rng: np.random.Generator) -> Any:
    """Signed data, a border around them, squeeze and excite, and a sum."""
    from compiler import relay

    op, nn = relay.op, relay.op.nn

    def conv(value: Any, *shape: int, **attrs: Any) -> Any:
        weight = relay.const((rng.normal(0.05, 0.4, shape)).astype("float32"))
        return nn.conv2d(value, weight, **attrs)

    stem = conv(relay.var("x", (1, 4, 8, 8)), 8, 4, 1, 1)
    value = conv(stem, 8, 1, 3, 5, padding=(2, 3, 0, 1), groups=8, channels=8)
    gate = op.sigmoid(conv(nn.global_avg_pool2d(value), 8, 8, 1, 1))
    value = conv(op.multiply(value, gate), 8, 8, 1, 1)
    return relay.module(conv(op.add(value, stem), 4, 8, 1, 1))


@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
def test_zero_points_need_no_operators_of_their_own(runtime: str, tmp_path: Path) -> None:
    from compiler.quantize import Calibration, QConfig

    rng = np.random.default_rng(9)
    mod = gated_block(rng)
    data = [{"x": rng.normal(0.4, 1, (1, 4, 8, 8)).astype("float32")} for _ in range(6)]
    asked = QConfig.recommended(activation_scheme="asymmetric", calibrate_mode="max")
    module = QModule(Calibration(mod, data).candidate(asked).module)
    assert "nn.pad" in str(module.module)
    made = to_qdq_onnx(module.module, runtime)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.float_ops) == ((), {"lookup": 1})
    if runtime == "onnxruntime":
        found = kernels(made.model, tmp_path)
        assert (found["QLinearConv"], found["QLinearMul"], found["QLinearAdd"]) == (4, 1, 1)
        assert found["Mul"] == 1  # of the output, which is float
        assert not {"Pad", "Add", "Sub", "Clip", "IsNaN"} & found.keys()
    wanted, found_ = (outputs_of(run, data) for run in (module.run, OrtExecutor(made.model).run))
    assert sqnr_db(found_, wanted) > 30


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
        bias_correction=True,
        activation_scheme=scheme,
        calibrate_mode="max",
    )
    made = Calibration(mod, data[:8]).candidate(asked)
    return QModule(made.module), made.channel_maxima, data[8:]


def outputs_of(run: Any, data: list[dict[str, np.ndarray]]) -> np.ndarray:
    """The first output for all inputs."""
    return np.concatenate([run([batch["x"]])[0] for batch in data])


@pytest.mark.parametrize("multiplier", [1, 2])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("runtime", ["onnxruntime", "openvino", "tensorrt"])
@pytest.mark.parametrize("reduced", [False, True])
def test_narrowed_channels_have_ranges_of_their_own(
    runtime: str, joined: bool, multiplier: int, reduced: bool
) -> None:
    module, maxima, data = mobile_block(joined, multiplier)
    made, plain, wide = (
        to_qdq_onnx(module.module, runtime, reduced, maxima=known, wide_sums=sums)
        for known, sums in ((maxima, False), (None, False), (None, True))
    )
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.narrowed) == ((), 1)
    found, one_range, exact = (
        outputs_of(OrtExecutor(one.model).run, data) for one in (made, plain, wide)
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
    assert np.isfinite(outputs_of(OrtExecutor(made.model).run, data)).all()


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(OnnxExportError, match="unknown runtime"):
        to_qdq_onnx(digits().module, "onnx-runtime")


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
    held = op.cast(op.clip(scaled, a_min=low, a_max=high), dtype="int32")
    held = op.cast(held, dtype="uint8" if bits == 8 else "int16")
    deep = constant(rng.integers(1, 90, (4, 1, 3, 3)), "int8")
    result = nn.conv2d(held, deep, groups=4, channels=4, out_dtype="int32")
    mod = relay.module(op.multiply(op.cast(result, dtype="float32"), constant(0.5, "float32")))
    made = to_qdq_onnx(mod)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products == ()) == kept
    inputs = [{"x": rng.normal(0, 60, (1, 3, 6, 6)).astype("float32")} for _ in range(6)]
    wanted, found = (
        outputs_of(run, inputs) for run in (QModule(mod).run, OrtExecutor(made.model).run)
    )
    assert sqnr_db(found, wanted) > 30
