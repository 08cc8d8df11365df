"""QDQ graphs: nearly the module's integers, in 8 bit kernels."""

from __future__ import annotations

import collections
import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler import relay
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.narrow_weights import initializer_bytes
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.ir.inference.infer_type import infer_module
from compiler.pipeline import evaluate
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, prerequisite_optimize
from compiler.runtime.artifact import QModule
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.export.to_onnx.qdq_graphs import kernels, of_file, outputs_of, sqnr_db

DATA = Path(qsearch.__file__).parent / "models" / "digits_dev.npz"


@functools.cache
def digits(**changes: object) -> QModule:
    """The shipped CNN, quantized as recommended but for the changes, on a few of its images."""
    with np.load(DATA.with_name("digits_calib.npz")) as held:
        return qsearch.quantize("digits", held["input"][:32], qconfig=changes)


def images(count: int = 100) -> np.ndarray:
    """Images nobody calibrated on."""
    with np.load(DATA) as held:
        return np.asarray(held["input"][:count])


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
    made = to_qdq_onnx(module.module)
    onnx.checker.check_model(made.model, full_check=True)
    assert made.float_products == ()
    found = outputs(made.model, x)
    assert sqnr_db(found, wanted) > 30
    assert np.mean(found.argmax(axis=1) == wanted.argmax(axis=1)) >= 0.98


@pytest.mark.parametrize("masked", [False, True])
def test_a_softmax_of_12_bits_stays_one_operator(masked: bool) -> None:
    """Behind a mask of integers nothing of its operand is a real yet."""
    op, nn, rng = relay.op, relay.op.nn, np.random.default_rng(0)
    x, mask = relay.var("x", (4, 16)), relay.var("mask", (1, 4), "int32")
    both = [nn.dense(x, relay.const(rng.normal(size=(16, 16)).astype("f"))) for _ in range(2)]
    rows = [op.reshape(one, newshape=(1, 4, 16)) for one in both]
    scores = op.reshape(nn.batch_matmul(*rows), newshape=(4, 4))
    if masked:
        off = op.multiply(op.cast(mask, dtype="float32"), relay.const(np.float32(-50)))
        scores = op.add(scores, off)
    out = nn.dense(nn.softmax(scores), relay.const(rng.normal(size=(8, 4)).astype("f")))
    network = relay.module(relay.Function([x, mask] if masked else [x], out))
    data = [{"x": rng.normal(size=(4, 16)).astype("f")} for _ in range(8)]
    if masked:
        data = [{**one, "mask": rng.integers(0, 2, (1, 4)).astype("i4")} for one in data]
    config = QConfig.recommended(layers={"<scores>": {"nbit_input": 12}})
    module = Calibration(prerequisite_optimize(network), data).candidate(config).partitioned
    assert module is not None
    assert "int16" in str(module["quantized_main"])
    made = to_qdq_onnx(module)
    assert [node.op_type for node in made.model.graph.node].count("Softmax") == 1
    wanted = np.stack([evaluate(module, one)[0] for one in data])
    session = of_file(made.model)
    found = np.stack([session.run(list(one.values()))[0] for one in data])
    assert sqnr_db(found, wanted) > 30


def test_a_limit_of_sums_at_0_is_kept_by_signed_integers() -> None:
    rng = np.random.default_rng(0)
    weights = [relay.const(rng.normal(0, 0.5, (4, 4, 3, 3)).astype("float32")) for _ in range(2)]
    x = relay.var("x", (1, 4, 8, 8))
    first = relay.op.clip(relay.op.nn.conv2d(x, weights[0]), a_min=0.0, a_max=6.0)
    mod = relay.module(relay.Function([x], relay.op.nn.conv2d(first, weights[1])))
    data = rng.normal(0, 1, (32, 4, 8, 8)).astype("float32")
    config = QConfig.recommended(
        requantization="power_of_two",
        activation_scheme="symmetric",
        weight_granularity="tensor",
        layers={},
    )
    module = qsearch.quantize(to_onnx(mod), {"x": data}, qconfig=config)
    (wanted,) = module.run([data])
    assert sqnr_db(outputs(to_qdq_onnx(module.module).model, data), wanted) > 25


def test_kernels_of_every_processor_compute_a_graph_of_reduced_range() -> None:
    model, x = to_qdq_onnx(digits().module, reduce_range=True).model, images()
    assert sqnr_db(outputs(model, x, kernels=True), outputs(model, x)) > 40


@pytest.mark.parametrize("changes", [{}, {"nbit_input": 4}, {"nbit_input": 6}], ids=str)
def test_onnxruntime_finds_its_kernels_everywhere(
    changes: dict[str, object], tmp_path: Path
) -> None:
    kinds = kernels(to_qdq_onnx(digits(**changes).module).model, tmp_path)
    assert kinds["QLinearConv"] == 3
    assert (kinds["QGemm"], kinds["QLinearGlobalAveragePool"]) == (1, 1)
    assert kinds["Conv"] == kinds["Gemm"] == kinds["DequantizeLinear"] == 0


@pytest.mark.parametrize(("bits", "opset"), [(2, 25), (3, 21), (4, 21), (5, 17)])
@pytest.mark.parametrize("rounding", ["nearest", "sequential"])
def test_weights_of_few_bits_are_narrow_and_stay_on_the_kernels_of_8(
    bits: int, opset: int, rounding: str, tmp_path: Path
) -> None:
    module, x = digits(nbit_weight=bits, weight_rounding=rounding), images()
    wide = to_qdq_onnx(module.module, opset=17).model
    wanted = outputs(wide, x, kernels=True)
    stored_bits = {2: 2, 3: 4, 4: 4, 5: 8}
    for newest in (21, 25):
        made = to_qdq_onnx(module.module, opset=newest).model
        onnx.checker.check_model(made, full_check=True)
        assert made.opset_import[0].version == min(opset, newest)
        assert kernels(made, tmp_path) == kernels(wide, tmp_path)
        np.testing.assert_array_equal(outputs(made, x, kernels=True), wanted)
        stored = max(stored_bits[bits], 2 if newest == 25 else 4)
        saved = initializer_bytes(wide) - initializer_bytes(made)
        assert saved >= 0.95 * (8 - stored) / 8 * (24 * 16 * 9 + 32 * 24 * 9 + 10 * 32)


@pytest.mark.parametrize(("bits", "saved"), [(2, 0.75), (4, 0.5), (8, 0)])
def test_a_table_of_few_bits_is_narrow(bits: int, saved: float) -> None:
    table = np.random.default_rng(0).integers(-(2 ** (bits - 1)) + 1, 2 ** (bits - 1), (100, 8))
    x = relay.var("x", (2, 7), "int64")
    picked = relay.op.take(relay.const(table.astype("int8")), x, axis=0)
    mod = infer_module(relay.module(relay.op.cast(picked, dtype="int32")))
    wide, made = (to_qdq_onnx(mod, opset=opset).model for opset in (17, 25))
    onnx.checker.check_model(made, full_check=True)
    assert initializer_bytes(wide) - initializer_bytes(made) == saved * 800
    data = {"x": np.arange(14).reshape(2, 7)}
    np.testing.assert_array_equal(*(OrtExecutor(one).run(data)[0] for one in (wide, made)))


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


@pytest.mark.parametrize("shape", [(1, 1, 8), (1, 3, 40), (1, 64)])
def test_data_of_16_bits_are_not_rounded_to_8_by_the_runtime(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", shape)
    bounded = relay.op.clip(relay.op.round(x), a_min=-32767, a_max=32767)
    weight = relay.const(rng.integers(-100, 100, (32, shape[-1])).astype("int8"))
    total = relay.op.nn.dense(relay.op.cast(bounded, dtype="int16"), weight, out_dtype="int32")
    scaled = relay.op.multiply(
        relay.op.cast(total, dtype="float32"),
        relay.const(np.exp2(np.arange(32) % 5 - 20.0, dtype="f")),
    )
    mod = infer_module(relay.module(scaled))
    data = rng.integers(-1000, 1000, shape).astype("float32")
    (wanted,) = QModule(mod).run([data], "reference")
    made = to_qdq_onnx(mod)
    np.testing.assert_array_equal(outputs(made.model, data, kernels=True), wanted)


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
    made = to_qdq_onnx(module.module).model
    border = padded and not counted
    assert [node.op_type for node in made.graph.node].count("AveragePool") == int(border)
    if not border:
        assert kernels(made, tmp_path)["QLinearConv"] == 2
    wanted = outputs_of(module.run, data)
    assert sqnr_db(outputs_of(of_file(made).run, data), wanted) > 30


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


def test_zero_points_need_no_operators_of_their_own(tmp_path: Path) -> None:
    from compiler.quantize import Calibration, QConfig

    rng = np.random.default_rng(9)
    mod = gated_block(rng)
    data = [{"x": rng.normal(0.4, 1, (1, 4, 8, 8)).astype("float32")} for _ in range(6)]
    asked = QConfig.recommended(activation_scheme="asymmetric", calibrate_mode="max")
    module = QModule(Calibration(mod, data).candidate(asked).module)
    assert "nn.pad" in str(module.module)
    made = to_qdq_onnx(module.module)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products, made.float_ops) == ((), {"lookup": 1})
    found = kernels(made.model, tmp_path)
    assert (found["QLinearConv"], found["QLinearMul"], found["QLinearAdd"]) == (4, 1, 1)
    assert found["Mul"] == 1  # of the output, which is float
    assert not {"Pad", "Add", "Sub", "Clip", "IsNaN"} & found.keys()
    wanted, found_ = (outputs_of(run, data) for run in (module.run, of_file(made.model).run))
    assert sqnr_db(found_, wanted) > 30


def near_its_module(result: Any, shape: tuple[int, ...]) -> onnx.ModelProto:
    """The QDQ graph of a network in "x", which is as near to its module as kernels round."""
    rng = np.random.default_rng(4)
    data = [{"x": rng.normal(0.2, 1, shape).astype("float32")} for _ in range(6)]
    asked = QConfig.recommended(calibrate_mode="max")
    module = QModule(Calibration(relay.module(result), data).candidate(asked).module)
    made = to_qdq_onnx(module.module)
    onnx.checker.check_model(made.model, full_check=True)
    wanted, found = (outputs_of(run, data) for run in (module.run, of_file(made.model).run))
    assert sqnr_db(found, wanted) > 30
    return made.model


def weights(*shape: int) -> Any:
    """A constant of normal numbers."""
    return relay.const(np.random.default_rng(sum(shape)).normal(0, 0.4, shape).astype("float32"))


@pytest.mark.parametrize("size", [(12, 9), (12, 6), (10, 14)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric"])
@pytest.mark.parametrize(("method", "operator"), [("linear", "Resize"), ("cubic", "MatMul")])
def test_interpolation_is_one_float_operator(
    method: str, operator: str, coordinates: str, size: tuple[int, int]
) -> None:
    nn = relay.op.nn
    value = nn.relu(nn.conv2d(relay.var("x", (1, 3, 6, 6)), weights(8, 3, 1, 1)))
    value = relay.op.image.resize2d(
        value, size=size, method=method, coordinate_transformation_mode=coordinates
    )
    model = near_its_module(nn.conv2d(value, weights(4, 8, 1, 1)), (1, 3, 6, 6))
    kinds = collections.Counter(node.op_type for node in model.graph.node)
    assert kinds[operator] == (operator == "Resize" or sum(np.not_equal(size, 6)))
    assert not {"Gather", "Floor"} & kinds.keys()


def test_slopes_of_channels_are_one_float_operator() -> None:
    nn, data = relay.op.nn, relay.var("x", (1, 3, 6, 6))
    slopes = relay.const(np.linspace(0.01, 0.4, 8, dtype="float32"))
    value = nn.prelu(nn.conv2d(data, weights(8, 3, 1, 1)), slopes)
    model = near_its_module(nn.conv2d(value, weights(4, 8, 1, 1)), (1, 3, 6, 6))
    kinds = collections.Counter(node.op_type for node in model.graph.node)
    assert kinds["PRelu"] == 1
    assert not {"Floor", "Round", "Min", "Max"} & kinds.keys()


def test_parts_signs_and_sums_that_broadcast_stay_between_quantized_tensors() -> None:
    op, nn = relay.op, relay.op.nn
    value = nn.relu(nn.conv2d(relay.var("x", (1, 3, 6, 6)), weights(12, 3, 1, 1)))
    parts = op.split(value, indices_or_sections=3, axis=1)
    first, second, third = (relay.TupleGetItem(parts, place) for place in range(3))
    value = op.add(nn.conv2d(first, weights(4, 4, 1, 1)), op.mean(second, axis=2, keepdims=True))
    value = nn.relu(op.subtract(value, op.multiply(third, weights(4, 1, 1))))
    value = op.take(value, relay.const(np.asarray([0, 5, 2])), axis=3)
    model = near_its_module(nn.conv2d(value, weights(4, 4, 1, 1)), (1, 3, 6, 6))
    assert not {"Floor", "Round"} & {node.op_type for node in model.graph.node}


def test_a_sum_that_may_wrap_is_refused() -> None:
    from compiler import relay

    x = relay.var("x", (2, 3), "int32")
    mod = relay.module(relay.Function((x,), relay.op.add(x, x)))
    with pytest.raises(OnnxExportError, match="int32 ends at") as caught:
        to_qdq_onnx(mod)
    assert "requantize before this operator" in str(caught.value)
