"""ConvertLayout: what lies behind a convolution of integers, operator by operator and on models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import quantize, relay, transform
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.ty import Any as AnyDim
from compiler.quantize import build_candidate, mark, measured_points
from tests.compiler.work import calls_of

op = relay.op
SHAPE = (2, 4, 6, 6)
RNG = np.random.default_rng(3)


def conv(data: Any, groups: int = 1) -> Any:
    """(2, 4, 6, 6) int32 of small numbers."""
    weight = RNG.integers(-3, 4, (4, SHAPE[1] // groups, 3, 3)).astype(np.int8)
    return op.nn.conv2d(data, relay.const(weight), padding=(1, 1), groups=groups, out_dtype="int32")


def narrow(data: Any) -> Any:
    return op.cast(op.clip(data, a_min=-127.0, a_max=127.0), dtype="int8")


def moves(mod: IRModule) -> int:
    """Calls that bring memory into another order."""
    nodes = list(post_order(mod["main"]))
    return sum(is_op_call(n, "layout_transform") or is_op_call(n, "transpose") for n in nodes)


def vector(dtype: str = "int32") -> Any:
    return relay.const(RNG.integers(1, 9, 4).astype(dtype))


BEHIND: dict[str, tuple[Callable[[Any], Any], int]] = {
    # What follows the convolution of %x; transpositions that are left.
    "add": (lambda y: op.add(y, relay.const(RNG.integers(0, 9, (4, 1, 1)).astype("int32"))), 2),
    "row": (lambda y: op.add(y, relay.const(np.arange(6, dtype="int32"))), 2),
    "scalar": (lambda y: op.multiply(y, relay.const(np.int32(3))), 2),
    "add_branch": (lambda y: op.add(conv(narrow(y)), y), 2),
    "add_input": (lambda y: op.add(y, relay.var("z", SHAPE, "int32")), 3),
    "pooled_gate": (lambda y: op.multiply(y, op.max(y, axis=(2, 3), keepdims=True)), 2),
    "place_of_channel": (lambda y: op.argmax(y, axis=1), 1),
    "place_in_row": (lambda y: op.argmin(y, axis=3, keepdims=True), 2),
    "place_of_two_axes": (lambda y: op.argmax(y, axis=(1, 2)), 2),
    "lower_rank": (lambda y: op.add(y, op.max(y, axis=(0, 1))), 2),
    "per_axis": (
        lambda y: op.fixed_point_multiply_per_axis(y, vector(), vector() * 0, axis=-3),
        2,
    ),
    "bias_add": (lambda y: op.nn.bias_add(y, vector()), 2),
    "lookup": (
        lambda y: op.lookup(narrow(y), relay.const(RNG.integers(0, 99, 256).astype("int8"))),
        2,
    ),
    "split": (lambda y: relay.TupleGetItem(op.split(y, indices_or_sections=2, axis=1), 1), 2),
    "concatenate": (lambda y: op.concatenate(relay.Tuple((y, conv(narrow(y)))), axis=2), 2),
    "softmax": (
        lambda y: op.nn.integer_softmax(
            narrow(y), relay.const(np.arange(1, 257, dtype="int32")), axis=1
        ),
        2,
    ),
    "softmax of TFLM": (
        lambda y: op.nn.fixed_point_softmax(
            narrow(y), relay.const(np.arange(1, 257, dtype="int32")), axis=1
        ),
        2,
    ),
    "pad": (
        lambda y: op.nn.pad(
            y, relay.const(np.int32(7)), pad_width=((0, 0), (1, 0), (2, 1), (0, 3))
        ),
        2,
    ),
    "strided_slice": (lambda y: op.strided_slice(y, begin=(0, 1), end=(2, 4), strides=(1, 2)), 2),
    "avg_pool": (lambda y: op.nn.avg_pool2d(y, pool_size=(3, 3), padding=(1, 1)), 2),
    "global_pool": (lambda y: op.nn.batch_flatten(op.nn.global_max_pool2d(y)), 1),
    "upsampling": (lambda y: op.nn.upsampling(y, scale_h=2.0, scale_w=2.0), 2),
    "sum": (lambda y: op.sum(y, axis=(-1, 0)), 2),
    "mean_of_channels": (lambda y: op.mean(y, axis=1, exclude=True), 1),
    "flatten": (lambda y: op.nn.batch_flatten(y), 2),
    "pixels": (lambda y: op.transpose(op.reshape(y, newshape=(2, 4, 36)), axes=(0, 2, 1)), 1),
    "rows_of_pixels": (lambda y: op.transpose(y, axes=(0, 2, 3, 1)), 1),
    "unknown": (lambda y: op.reverse(y, axis=2), 2),
    "squeeze": (lambda y: op.squeeze(op.sum(y, axis=0, keepdims=True)), 2),
    "transposed_conv": (
        lambda y: op.nn.conv2d_transpose(
            narrow(y),
            relay.const(RNG.integers(-3, 4, (4, 2, 3, 3)).astype("int8")),
            strides=(2, 2),
            groups=2,
            out_dtype="int32",
        ),
        2,
    ),
    "floats": (lambda y: op.nn.global_avg_pool2d(op.cast(y, dtype="float32")), 2),
    "tuple": (lambda y: relay.Tuple((y, op.nn.relu(y))), 3),
}


@pytest.mark.parametrize("name", BEHIND)
def test_what_follows_a_convolution_follows_its_layout(name: str) -> None:
    follow, left = BEHIND[name]
    check(follow(conv(relay.var("x", SHAPE, "int8"))), left)


def test_groups_and_dilation() -> None:
    x = relay.var("x", SHAPE, "int8")
    check(op.add(conv(x, groups=2), conv(x, groups=4)), 2)


@pytest.mark.parametrize(("axes", "left"), [((0, 3, 1, 2), 1), ((0, 3, 2, 1), 3)])
def test_images_whose_channels_lie_side_by_side_stay(axes: tuple[int, ...], left: int) -> None:
    x = relay.var("x", (2, 6, 6, 4), "int8")
    check(conv(op.transpose(x, axes=axes)), left)


def check(body: Expr, left: int) -> None:
    params = [v for v in post_order(body) if isinstance(v, relay.Var)]
    mod = relay.module(relay.Function(tuple(params), body))
    with transform.PassContext(opt_level=3, verify=True):
        new = transform.ConvertLayout()(mod)
        assert transform.ConvertLayout()(new)["main"] is new["main"], "once is enough"
    assert moves(new) == left, compiler.text(new, show_meta=False)
    data = [
        RNG.integers(-100, 100, p.checked_type.concrete_shape).astype(p.checked_type.dtype)  # type: ignore[attr-defined]
        for p in mod["main"].params
    ]
    for a, b in zip(compiler.evaluate(new, data), compiler.evaluate(mod, data), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_shapes_that_are_not_known_stay() -> None:
    x = relay.var("x", (AnyDim(), *SHAPE[1:]), "int8")
    mod = relay.module(relay.Function((x,), conv(x)))
    assert transform.ConvertLayout()(mod)["main"] is mod["main"]


def test_the_work_grows_with_the_graph() -> None:
    def deep(layers: int) -> IRModule:
        value: Any = conv(relay.var("x", SHAPE, "int8"))
        for _ in range(layers):
            value = op.nn.relu(value)
        return relay.module(value)

    def count(layers: int) -> int:
        mod = deep(layers)
        context = transform.PassContext()
        return calls_of(lambda: transform.ConvertLayout().run(mod["main"], mod, context))

    assert count(4000) <= 2.2 * count(2000)


CONFIGS = (
    "",
    "nbit_weight=4,weight_granularity=tensor,requantization=power_of_two",
    "activation_scheme=asymmetric,weight_scale=max",
)


@pytest.mark.shared
@pytest.mark.parametrize(
    "model", ["digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_vit"]
)
def test_integers_of_real_models_stay(shared_data: Path, model: str) -> None:
    rng = np.random.default_rng(len(model))
    mod, params = load(shared_data / f"{model}.onnx")
    mod = quantize.prerequisite_optimize(mod, params, opt_level=3)
    for changes in CONFIGS:
        config = quantize.qconfig_from_text(changes)
        annotated, _ = mark(mod, config)
        ranges = np.exp2(rng.uniform(-2, 3, len(measured_points(annotated)))).astype(np.float32)
        made = build_candidate(mod, config, ranges).partitioned
        assert made is not None
        with transform.PassContext(opt_level=3):
            new = transform.ConvertLayout()(made)
        assert 'data_layout="NHWC"' in compiler.text(new, show_types=False, show_meta=False)
        given = [
            rng.integers(0, 127, p.checked_type.concrete_shape).astype(p.checked_type.dtype)  # type: ignore[attr-defined]
            for p in made["quantized_main"].params
        ]
        want = compiler.evaluate(made, given, function="quantized_main")
        got = compiler.evaluate(new, given, function="quantized_main")
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)
