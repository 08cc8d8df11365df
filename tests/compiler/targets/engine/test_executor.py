"""The executor plans, shares and calls what has no kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from compiler import parse, relay
from compiler.errors import PlanError
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.ty import integer_range
from compiler.ops.number_format import storage_dtype
from compiler.targets.engine.executor import EngineExecutor
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.each import each
from tests.needs import NEEDS_C

pytestmark = NEEDS_C


def test_an_operator_without_a_kernel_is_refused_by_name() -> None:
    x = relay.var("x", (1, 4, 3), "int8")
    ordered = relay.op.topk(relay.op.cast(x, dtype="int32"), k=4, axis=1, ret_type="values")
    with pytest.raises(PlanError, match=r"no kernel for topk of Tensor\[\(1, 4, 3\), int32\]"):
        EngineExecutor(relay.module(relay.op.clip(ordered, a_min=-50, a_max=50)))


@pytest.mark.parametrize(
    "call",
    ["fixed_point_multiply_per_axis(%x, %m, %s, axis=1)", "qnn.requantize(%x, %m, %s, axis=1)"],
)
def test_multipliers_that_are_computed_are_named(call: str) -> None:
    types = "%x: Tensor[(1, 3), int32], %m: Tensor[(3), int32], %s: Tensor[(3), int32]"
    mod = infer_module(parse(f'#[version = "0.0.5"]\ndef @main({types}) {{ {call} }}'))
    with pytest.raises(PlanError, match="shifts or biases are computed") as info:
        EngineExecutor(mod)
    assert info.value.fix == "fold them to constants"


def quantized(x: Expr, scale: object, zero: int = 0) -> Expr:
    """To int8, as ``quantize_inputs`` does."""
    op = relay.op
    scaled = op.round(op.multiply(x, relay.const(np.asarray(scale, np.float32))))
    clipped = op.clip(scaled, a_min=-127 - zero, a_max=127 - zero)
    shifted = op.add(clipped, relay.const(np.float32(zero))) if zero else clipped
    return op.cast(shifted, dtype="int8")


ODD = np.array([np.nan, np.inf, -np.inf, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, 1e30, 1e-40, -0.0])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, for NaN and infinities
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64"])
@pytest.mark.parametrize("rounded", ["round", "round_even", "clip"])
def test_floats_become_integers_as_on_the_reference(dtype: str, rounded: str) -> None:
    op = relay.op
    x = relay.var("x", (3, 60), "float32")
    shifted = op.subtract(op.add(x, relay.const(np.float32(3))), relay.const(np.float32(0.1)))
    if rounded == "clip":
        shifted = op.clip(shifted, a_min=-1.5, a_max=1e9)
    else:
        shifted = getattr(op, rounded)(shifted)
    rng = np.random.default_rng(0)
    data = np.concatenate([np.tile(ODD, 5), rng.normal(0, 50, 60), rng.normal(0, 1e19, 60)])
    agree(relay.module(op.cast(shifted, dtype=dtype)), data.reshape(3, 60).astype(np.float32))


@pytest.mark.parametrize("end", [127, 32767, 1 << 24])
def test_floats_beside_halves_are_rounded_as_on_the_reference(end: int) -> None:
    op, halves = relay.op, np.arange(400, dtype=np.float32) * np.float32(end / 400)
    halves = np.concatenate([np.round(halves), np.arange(200)]).astype(np.float32) + np.float32(0.5)
    beside = [np.nextafter(halves, np.float32(to)) for to in (-np.inf, np.inf)]
    data = np.concatenate([halves, *beside, -halves, *(-b for b in beside)])
    x = relay.var("x", data.shape)
    clipped = op.clip(op.round(x), a_min=-end, a_max=end)
    agree(relay.module(op.cast(clipped, dtype="int32")), data)


def test_conversions_are_part_of_the_plan_in_any_order_of_axes() -> None:
    """Transposed inputs and outputs, a factor for each channel, affine maps on both sides."""
    op, rng = relay.op, np.random.default_rng(0)
    x = relay.var("x", (2, 6, 5, 3), "float32")
    factors = rng.uniform(10, 30, 3)
    images = {
        "moved": quantized(op.transpose(x, axes=(0, 3, 1, 2)), factors.reshape(3, 1, 1)),
        "first": op.transpose(quantized(x, factors), axes=(0, 3, 1, 2)),
        "one": quantized(op.transpose(x, axes=(0, 3, 1, 2)), 20.0),
        "affine": quantized(
            op.add(op.transpose(x, axes=(0, 3, 1, 2)), relay.const(np.float32(0.25))), 20.0
        ),
    }
    weight = relay.const(drawn(rng, (4, 3, 3, 3), "int8", False))
    data = rng.normal(0, 3, (2, 6, 5, 3)).astype(np.float32)
    for image in each(images.values()):
        sums = op.nn.conv2d(image, weight, padding=(1, 1), out_dtype="int32")
        scales = relay.const(rng.uniform(0, 1, (4, 1, 1)).astype(np.float32))
        result = op.multiply(op.cast(sums, dtype="float32"), scales)
        last = op.reshape(op.transpose(result, axes=(0, 2, 3, 1)), newshape=(2, 30, 4))
        shifted = op.subtract(last, relay.const(np.float32([1, 2, 3, 4])))
        agree(relay.module(relay.Tuple((last, shifted, op.cast(sums, dtype="float32")))), data)


def test_integers_of_every_dtype_come_and_go() -> None:
    dtypes = (
        "bool",
        "int4",
        "uint4",
        "int8",
        "uint8",
        "int16",
        "uint16",
        "int32",
        "uint32",
        "int64",
    )
    inputs = {d: relay.var(d, (2, 3, 4, 5), d) for d in dtypes}
    turned = [relay.op.transpose(x, axes=(3, 1, 0, 2)) for x in inputs.values()]
    rng = np.random.default_rng(0)
    ranges = {d: (0, 2) if d == "bool" else integer_range(d) for d in dtypes}
    data = [
        rng.integers(low, high, (2, 3, 4, 5), endpoint=d != "bool").astype(storage_dtype(d))
        for d, (low, high) in ranges.items()
    ]
    agree(relay.module(relay.Tuple((*turned, *inputs.values()))), *data)


def test_an_input_may_be_reshaped_before_it_is_quantized() -> None:
    op, rng = relay.op, np.random.default_rng(0)
    x = relay.var("x", (1, 4, 33))
    image = op.expand_dims(x, axis=2)
    scaled = op.round(op.multiply(image, relay.const(np.float32(20))))
    data = op.cast(op.clip(scaled, a_min=-127, a_max=127), dtype="int8")
    weight = relay.const(drawn(rng, (5, 4, 1, 3), "int8", False))
    made = op.nn.conv2d(data, weight, padding=(0, 1, 0, 1), out_dtype="int32")
    executor = agree(relay.module(made), rng.normal(0, 3, (1, 4, 33)).astype(np.float32))
    assert "wide" not in {step.kind for step in executor.steps}


def test_a_quantized_image_is_written_as_the_convolution_behind_its_pad_reads_it() -> None:
    rng = np.random.default_rng(0)
    image = quantized(relay.var("x", (1, 3, 9, 9)), 20.0, -22)
    padded = relay.op.nn.pad(
        image, relay.const(np.int8(-22)), pad_width=((0, 0), (0, 0), (1, 2), (3, 1))
    )
    weight = relay.const(drawn(rng, (16, 3, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(padded, weight, strides=(2, 2), out_dtype="int32")
    data = rng.normal(0, 3, (1, 3, 9, 9)).astype(np.float32)
    executor = agree(relay.module(requantized(made, 16, 1, rng)), data)
    kinds = [step.kind for step in executor.steps]
    assert kinds == ["fill", "quantize", "gemm", "copy", "dequantize"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of numpy, for NaN and infinities
@pytest.mark.parametrize("zero", [-127, -22, 90])
def test_an_input_with_a_zero_point_is_quantized_by_one_step(zero: int) -> None:
    rng = np.random.default_rng(0)
    image = quantized(relay.var("x", (1, 3, 5, 24)), 20.0, zero)
    weight = relay.const(drawn(rng, (4, 3, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(image, weight, padding=(1, 1), out_dtype="int32")
    data = np.concatenate([np.tile(ODD, 15), rng.normal(0, 3, 180)]).reshape(1, 3, 5, 24)
    executor = agree(relay.module(relay.Tuple((made, image))), data.astype(np.float32))
    assert "wide" not in {step.kind for step in executor.steps}


@pytest.mark.slow
def test_long_chains_are_planned_without_recursion() -> None:
    x = relay.var("x", (1, 4), "int8")
    made: Expr = relay.op.cast(x, dtype="int32")
    for number in range(1500):
        made = relay.op.clip(relay.op.add(made, made), a_min=-90 + number % 7, a_max=100)
    assert agree(relay.module(made), drawn(np.random.default_rng(0), (1, 4), "int8", False))


def test_a_module_may_have_many_inputs_and_outputs() -> None:
    names = [relay.var(f"x{n}", (1, 3), "int8") for n in range(40)]
    mod = relay.module(relay.Tuple(tuple(relay.op.negative(x) for x in names)))
    rng = np.random.default_rng(0)
    agree(mod, *(drawn(rng, (1, 3), "int8", True) for _ in names))


def test_many_threads_share_a_batch_and_an_executor() -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (1, 8, 9, 9), "uint8")
    weight = relay.const(drawn(rng, (24, 8, 3, 3), "int8", False))
    made = relay.op.nn.conv2d(x, weight, padding=1, out_dtype="int32")
    mod = relay.module(requantized(made, 24, 1, rng))
    data = drawn(rng, (13, 8, 9, 9), "uint8", False)
    wanted = [EngineExecutor(mod).run([data[i : i + 1]])[0] for i in range(13)]
    (found,) = EngineExecutor(mod).run_batch([data], 13, threads=3)
    np.testing.assert_array_equal(found, np.concatenate(wanted))


def test_four_threads_call_one_executor_at_a_time() -> None:
    rng = np.random.default_rng(1)
    x = relay.var("x", (1, 8, 9, 9), "uint8")
    weight = relay.const(drawn(rng, (24, 8, 3, 3), "int8", False))
    total = relay.op.nn.conv2d(x, weight, padding=1, out_dtype="int32")
    executor = EngineExecutor(relay.module(requantized(total, 24, 1, rng)))
    data = drawn(rng, (40, 1, 8, 9, 9), "uint8", False)
    wanted = [executor.run([each])[0] for each in data]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda each: executor.run([each])[0], data))
    np.testing.assert_array_equal(found, wanted)
