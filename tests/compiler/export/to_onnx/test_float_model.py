"""Float and simulated modules on onnxruntime against the reference executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler import relay
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.targets.ort.session import OrtExecutor

op = relay.op
SIMULATED = "relay.op.annotation.simulated_quantize"


def module(params: Any, body: Expr) -> IRModule:
    return relay.module(relay.Function(params if isinstance(params, tuple) else (params,), body))


def assert_same(mod: IRModule, inputs: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    expected = evaluate(mod, inputs)
    model = to_onnx(mod)
    onnx.checker.check_model(model, full_check=True)
    found = OrtExecutor(model).run(inputs)
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        # exp, erf and sums differ from numpy's in the last bits.
        np.testing.assert_allclose(b, a, rtol=rtol, atol=1e-6)


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype("float32")


def vector(size: int, seed: int = 1) -> Expr:
    return relay.const(np.random.default_rng(seed).uniform(0.5, 1.5, size).astype("float32"))


X4 = (2, 6, 5, 4)

UNARY = {
    "nn.relu": op.nn.relu,
    "nn.leaky_relu": lambda x: op.nn.leaky_relu(x, alpha=0.1),
    "nn.prelu": lambda x: op.nn.prelu(x, vector(6), axis=1),
    "clip": lambda x: op.clip(x, a_min=-0.5, a_max=0.7),
    "sigmoid": op.sigmoid,
    "tanh": op.tanh,
    "erf": op.erf,
    "exp": op.exp,
    "rsqrt of exp": lambda x: op.rsqrt(op.exp(x)),
    "log of exp": lambda x: op.log(op.exp(x)),
    "floor": op.floor,
    "ceil": op.ceil,
    "trunc": op.trunc,
    "round": lambda x: op.round(op.multiply(x, relay.const(np.float32(4)))),
    "round_even": lambda x: op.round_even(op.multiply(x, relay.const(np.float32(4)))),
    "softmax": lambda x: op.nn.softmax(x, axis=1),
    "log_softmax": lambda x: op.nn.log_softmax(x, axis=-1),
    "max_pool2d": lambda x: op.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)),
    "max_pool2d ceil": lambda x: op.nn.max_pool2d(
        x, pool_size=(2, 2), strides=(2, 2), ceil_mode=True
    ),
    "avg_pool2d": lambda x: op.nn.avg_pool2d(x, pool_size=(3, 3), padding=(1, 1, 1, 1)),
    "avg_pool2d pad": lambda x: op.nn.avg_pool2d(
        x, pool_size=(3, 3), padding=(1, 1, 1, 1), count_include_pad=True
    ),
    "global_avg_pool2d": op.nn.global_avg_pool2d,
    "layer_norm last": lambda x: op.nn.layer_norm(x, vector(4), vector(4, 2), axis=-1),
    "rms_norm": lambda x: op.nn.rms_norm(x, axis=1, epsilon=1e-3),
    "layer_norm inner": lambda x: op.nn.layer_norm(x, vector(6), vector(6, 2), axis=1),
    "instance_norm": lambda x: op.nn.instance_norm(x, vector(6), vector(6, 2)),
    "group_norm": lambda x: op.nn.group_norm(x, vector(6), vector(6, 2), num_groups=2),
    "group_norm last": lambda x: op.nn.group_norm(x, vector(4), vector(4), num_groups=2, axis=3),
    "lrn inner": lambda x: op.nn.lrn(x, size=3, axis=2),
    "constant function": lambda x: op.unary_formula(x, formula="2.0 3.0 add"),
    "batch_norm": lambda x: relay.TupleGetItem(
        op.nn.batch_norm(x, vector(6), vector(6, 2), vector(6, 3), vector(6, 4)), 0
    ),
    "bias_add": lambda x: op.nn.bias_add(x, vector(6), axis=1),
    "batch_flatten": op.nn.batch_flatten,
    "reshape": lambda x: op.reshape(x, newshape=(0, -1, 4)),
    "squeeze": lambda x: op.squeeze(op.expand_dims(x, axis=1), axis=(1,)),
    "transpose": lambda x: op.transpose(x, axes=(0, 2, 3, 1)),
    "split": lambda x: relay.TupleGetItem(op.split(x, indices_or_sections=(2, 5), axis=1), 1),
    "concatenate": lambda x: op.concatenate(relay.Tuple((x, x)), axis=2),
    "strided_slice": lambda x: op.strided_slice(
        x, begin=(0, 4, 0, 3), end=(2, 0, 5, -5), strides=(1, -2, 2, -1)
    ),
    "pad": lambda x: op.nn.pad(
        x, relay.const(np.float32(1.5)), pad_width=((0, 0), (0, 0), (1, 2), (0, 3))
    ),
    "mean": lambda x: op.mean(x, axis=(2, 3), keepdims=True),
    "mean without two axes": lambda x: op.mean(x, axis=(0, 1), exclude=True),
    "sum": lambda x: op.sum(x, axis=(1,)),
    "variance": lambda x: op.variance(x, op.mean(x, axis=(1,), keepdims=True), axis=(1,)),
    "variance unbiased": lambda x: op.variance(
        x, op.mean(x, axis=(1,), keepdims=True), axis=(1,), unbiased=True
    ),
    "where": lambda x: op.where(op.greater(x, relay.const(np.float32(0))), x, op.negative(x)),
    "power": lambda x: op.power(op.exp(x), relay.const(np.float32(1.5))),
    "cast": lambda x: op.cast(op.cast(op.floor(x), dtype="int32"), dtype="float32"),
    "dropout": lambda x: op.nn.dropout(x),
    "annotations": lambda x: op.annotation.stop_fusion(op.annotation.cast_hint(x, dtype="int8")),
}


@pytest.mark.parametrize("build", UNARY.values(), ids=UNARY)
def test_an_operator_computes_what_the_reference_does(build: Any) -> None:
    x = relay.var("x", X4)
    assert_same(module(x, build(x)), {"x": draw(*X4)})


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_convolutions_with_groups_strides_and_uneven_padding(groups: int) -> None:
    x, w = relay.var("x", X4), relay.var("w", (12, 6 // groups, 3, 2))
    body = op.nn.conv2d(x, w, strides=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), groups=groups)
    assert_same(module((x, w), body), {"x": draw(*X4), "w": draw(12, 6 // groups, 3, 2)})


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 5)])
def test_dense_of_two_and_more_axes(shape: tuple[int, ...]) -> None:
    x = relay.var("x", shape)
    body = op.nn.dense(x, relay.const(draw(4, 5)))
    assert_same(module(x, body), {"x": draw(*shape)})


@pytest.mark.parametrize(("flip_a", "flip_b"), [(False, False), (True, False), (False, True)])
def test_batch_matmul_with_transpositions(flip_a: bool, flip_b: bool) -> None:
    a = relay.var("a", (2, 5, 3) if flip_a else (2, 3, 5))
    b = relay.var("b", (2, 4, 5) if flip_b else (2, 5, 4))
    body = op.nn.batch_matmul(a, b, transpose_a=flip_a, transpose_b=flip_b)
    shapes = [v.type_annotation.shape for v in (a, b)]
    assert_same(module((a, b), body), {"a": draw(*shapes[0]), "b": draw(*shapes[1])})


def simulated(x: Expr, scale: Any, low: float, high: float, **attrs: Any) -> Expr:
    parts = [relay.const(np.asarray(v, "float32")) for v in (scale, low, high)]
    return op.relay.op.annotation.simulated_quantize(x, *parts, **attrs)


@pytest.mark.parametrize("limit", [127.0, 2.0**31])
def test_simulated_quantization_rounds_halves_away_from_zero_bit_for_bit(limit: float) -> None:
    rng = np.random.default_rng(0)
    ties = (rng.integers(-300, 300, 4000) / 2 * 0.0625).astype("float32")
    near = np.nextafter(ties, np.float32(rng.choice([-9.0, 9.0])))
    wild = rng.normal(0, 1e5, 4000).astype("float32")
    x = relay.var("x", (4000,))
    for scale in (0.0625, 0.0301):
        mod = module(x, simulated(x, scale, -limit, limit, kind=1))
        run = OrtExecutor(to_onnx(mod))
        for values in (ties, near, wild, np.full(4000, 0.49999997 * scale, "float32")):
            (expected,) = evaluate(mod, {"x": values})
            np.testing.assert_array_equal(run.run({"x": values})[0], expected)


@pytest.mark.parametrize("ends", [(-128, 127), (0, 255), (-255, 0), (-100, 155), (-127, 127)])
def test_simulated_quantization_to_8_bits_rounds_halves_to_even_bit_for_bit(
    ends: tuple[int, int],
) -> None:
    rng = np.random.default_rng(0)
    ties = (rng.integers(-600, 600, 4000) / 2 * 0.0625).astype("float32")
    x = relay.var("x", (4000,))
    for scale in (0.0625, 0.0301):
        mod = module(x, simulated(x, scale, *ends, kind=1, rounding="round_even"))
        run = OrtExecutor(to_onnx(mod), fused_grids=False)
        for values in (ties, rng.normal(0, 1e5, 4000).astype("float32")):
            (expected,) = evaluate(mod, {"x": values})
            np.testing.assert_array_equal(run.run({"x": values})[0], expected)


def test_simulated_quantization_by_channel() -> None:
    x = relay.var("x", (2, 3, 4, 4))
    mod = module(x, simulated(x, [0.1, 0.02, 0.7], -127, 127, kind=2, axis=1))
    inputs = {"x": draw(2, 3, 4, 4)}
    (found,) = OrtExecutor(to_onnx(mod)).run(inputs)
    np.testing.assert_array_equal(found, evaluate(mod, inputs)[0])


def test_identity_quantization_writes_nothing() -> None:
    x = relay.var("x", (4,))
    mod = module(x, op.exp(simulated(x, 1.0, -1, 1, kind=0)))
    assert [n.op_type for n in to_onnx(mod).graph.node] == ["Exp"]


def test_an_output_is_a_copy_only_where_its_tensor_has_another_name_already() -> None:
    x = relay.var("x", (4,))
    y = op.exp(x)
    model = to_onnx(module(x, relay.Tuple([y, op.negative(y), y, x])))
    assert [n.op_type for n in model.graph.node] == ["Exp", "Neg", "Identity", "Identity"]
    value = np.array([-1.0, 0.0, 0.5, 2.0], "float32")
    found = OrtExecutor(model).run({"x": value})
    for result, expected in zip(found, [np.exp(value), -np.exp(value), np.exp(value), value]):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_crossed_bounds_of_clip_mean_the_same_in_both_languages() -> None:
    x = relay.var("x", (7,))
    mod = module(x, op.clip(x, a_min=2.5, a_max=1.0))
    inputs = {"x": np.linspace(-3, 3, 7, dtype="float32")}
    assert_same(mod, inputs)
    model = to_onnx(module(x, op.clip(x, a_min=1.0, a_max=2.5)))
    low, high = model.graph.node[0].input[1:]
    model.graph.node[0].input[1:] = [high, low]
    again, params = load(model.SerializeToString())
    found = evaluate(again, {**inputs, **params})
    np.testing.assert_array_equal(found[0], OrtExecutor(model).run(inputs)[0])


def test_a_tuple_result_gives_one_output_per_field() -> None:
    x = relay.var("x", (3,))
    middle = op.exp(x)
    mod = module(x, relay.Tuple((middle, relay.Tuple((x, op.negative(middle))))))
    run = OrtExecutor(to_onnx(mod))
    assert run.output_names == ("output_0", "output_1", "output_2")
    assert_same(mod, {"x": draw(3)})


def test_integer_convolutions_are_sent_to_the_grid() -> None:
    x, w = relay.var("x", (1, 1, 4, 4), "int8"), relay.var("w", (1, 1, 3, 3), "int8")
    mod = module((x, w), op.nn.conv2d(x, w, out_dtype="int32"))
    with pytest.raises(OnnxExportError, match="to_integer_onnx"):
        to_onnx(mod)


def test_a_layout_onnx_does_not_have_is_refused() -> None:
    x = relay.var("x", (1, 4, 4, 2))
    pooled = op.nn.max_pool2d(x, pool_size=(2, 2), layout="NHWC")
    with pytest.raises(OnnxExportError, match="layout NHWC"):
        to_onnx(module(x, pooled))


@pytest.mark.shared
@pytest.mark.parametrize("name", ["digits_cnn", "fashion_mobilenet", "fashion_vit"])
def test_a_trained_model_survives_the_round_trip(shared_data: Path, name: str) -> None:
    path = shared_data / f"{name}.onnx"
    mod, params = load(path)
    shape = mod["main"].params[0].checked_type.shape
    inputs = {"input": draw(*shape)}
    (expected,) = OrtExecutor(onnx.load(path)).run(inputs)
    (found,) = OrtExecutor(to_onnx(mod)).run({**inputs, **params})
    # batch norm and layer norm are fused differently; logits are of the order of 1.
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["nearest_neighbor", "bilinear", "bicubic"])
@pytest.mark.parametrize("align_corners", [False, True])
def test_upsampling_by_fractions_takes_the_same_elements(method: str, align_corners: bool) -> None:
    for height, scale in ((2, 2.5), (3, 1.6), (5, 1.2), (7, 0.7)):
        x = relay.var("x", (1, 2, height, 4))
        options = {"method": method, "align_corners": align_corners}
        body = op.nn.upsampling(x, scale_h=scale, scale_w=1.5, **options)
        assert_same(module(x, body), {"x": draw(1, 2, height, 4)})


def test_resizing_rounds_halves_as_ours_does() -> None:
    options = {"coordinate_transformation_mode": "half_pixel", "rounding_method": "round"}
    x = relay.var("x", (1, 2, 8, 4))
    assert_same(
        module(x, op.image.resize2d(x, size=(2, 4), method="nearest_neighbor", **options)),
        {"x": draw(1, 2, 8, 4)},
    )


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8"])
def test_indices_outside_are_clipped_before_onnxruntime_sees_them(dtype: str) -> None:
    low = 0 if dtype == "uint8" else -9
    indices = np.asarray([[low, 1, 2, 100], [0, 3, low, 5]], dtype)
    x = relay.var("x", (3, 4))
    i = relay.var("i", (2, 4), dtype)
    values = {"x": draw(3, 4), "i": indices}
    assert_same(module((x, i), op.gather(x, i, axis=0)), values)
    assert_same(module((x, i), op.take(x, i, axis=1)), values)
    assert_same(module((x, i), op.gather_nd(x, i)), values)
    long = relay.var("x", (300, 4))
    assert_same(module((long, i), op.gather(long, i, axis=0)), {**values, "x": draw(300, 4)})


def test_a_session_may_read_large_constants_where_they_are() -> None:
    rng = np.random.default_rng(4)
    x = relay.var("x", (3, 256))
    weight = rng.normal(size=(256, 300)).astype("float32").T
    weight.flags.writeable = False
    mod = module(x, op.nn.dense(x, relay.const(weight)))
    assert np.shares_memory(mod["main"].body.args[1].data, weight)
    given = {"x": rng.normal(size=(3, 256)).astype("float32")}
    large: dict[str, np.ndarray] = {}
    model = to_onnx(mod, large=large)
    assert len(large) == 1
    for copies in (True, False):
        (found,) = OrtExecutor(model, large=large, copies=copies).run(given)
        np.testing.assert_allclose(found, evaluate(mod, given)[0], rtol=1e-4, atol=1e-4)
