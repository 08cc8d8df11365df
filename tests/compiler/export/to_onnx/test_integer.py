"""Exact integer ONNX against the reference executor: the same bits, wrapping included."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from compiler import relay
from compiler.core.words import WORDS, FBody
from compiler.errors import OnnxExportError, TooLargeError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.integer.emitter import FToInteger
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range
from compiler.ops.qnn.requantize import RESCALING
from compiler.ops.rules.float_product import Ties, nearest_float_factors
from compiler.ops.rules.integer_calls import requantize
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.rules.requantize import multiplier_and_shift
from compiler.pipeline import evaluate
from compiler.proof.derive import derive_static
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.inner_values import ONNX, OTHERS
from tests.each import each

op = relay.op
DTYPES = ("int8", "uint8", "int16", "int32", "int64")


def constant(values: Any, dtype: str = "int32") -> Expr:
    return relay.const(np.asarray(values, dtype))


def module(params: Any, body: Expr) -> IRModule:
    return relay.module(relay.Function(tuple(params), body))


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Uniform over the dtype, its ends made likely."""
    low, high = integer_range(dtype)
    drawn = rng.integers(low, high, shape, dtype=dtype, endpoint=True)
    ends = rng.choice(np.array([low, high, 0], dtype), shape)
    return np.where(rng.random(shape) < 0.2, ends, drawn).astype(dtype)


def assert_same_bits(mod: IRModule, inputs: dict[str, np.ndarray]) -> None:
    expected = evaluate(mod, inputs)
    found = IntegerExecutor(mod).run(inputs)
    for a, b in zip(expected, found, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("what", [*ONNX, *OTHERS])
def test_a_value_that_hardly_any_input_meets_is_that_of_the_reference(what: str) -> None:
    case = {**ONNX, **OTHERS}[what]
    assert derive_static(case.mod).holds
    assert_same_bits(case.mod, dict(case.given))


seeds = st.integers(0, 1 << 30)


@given(
    seed=seeds,
    name=st.sampled_from(["add", "subtract", "multiply", "maximum", "minimum"]),
    dtype=st.sampled_from(DTYPES),
    constant_side=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_arithmetic_wraps_as_the_reference_does(
    seed: int, name: str, dtype: str, constant_side: bool
) -> None:
    rng = np.random.default_rng(seed)
    x, y = relay.var("x", (2, 3, 4), dtype), relay.var("y", (3, 1), dtype)
    inputs = {"x": whole(rng, (2, 3, 4), dtype), "y": whole(rng, (3, 1), dtype)}
    if constant_side:
        call = getattr(op, name)(x, constant(inputs.pop("y"), dtype))
        assert_same_bits(module([x], call), inputs)
    else:
        assert_same_bits(module([x, y], getattr(op, name)(x, y)), inputs)


@given(seed=seeds, dtype=st.sampled_from(DTYPES), target=st.sampled_from((*DTYPES, "bool")))
@settings(max_examples=40, deadline=None)
def test_casts_wrap_and_limits_are_truncated(seed: int, dtype: str, target: str) -> None:
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.uniform(-300, 300, 2))
    x = relay.var("x", (40,), dtype)
    limited = op.nn.relu(op.clip(x, a_min=low, a_max=high))
    body = relay.Tuple((op.cast(x, dtype=target), limited, op.negative(x), op.abs(x)))
    if dtype == "uint8":
        body = relay.Tuple(body.fields[:2])
    assert_same_bits(module([x], body), {"x": whole(rng, (40,), dtype)})


@given(seed=seeds, dtype=st.sampled_from(("int8", "int16", "int32")))
@settings(max_examples=20, deadline=None)
def test_floats_are_truncated_and_saturated(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (60,))
    values = rng.normal(0, 10.0 ** rng.integers(0, 12), 60).astype("float32")
    values[:4] = [np.nan, np.inf, -np.inf, -0.0]
    assert_same_bits(module([x], op.cast(x, dtype=dtype)), {"x": values})


@given(
    seed=seeds,
    name=st.sampled_from(["right_shift", "left_shift"]),
    dtype=st.sampled_from(("int8", "int32", "int64")),
    computed=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_shifts_are_arithmetic(seed: int, name: str, dtype: str, computed: bool) -> None:
    rng = np.random.default_rng(seed)
    x, n = relay.var("x", (5, 7), dtype), relay.var("n", (7,), dtype)
    amount = rng.integers(0, np.dtype(dtype).itemsize * 8, 7).astype(dtype)
    inputs = {"x": whole(rng, (5, 7), dtype)}
    if computed:
        call = getattr(op, name)(x, n)
        assert_same_bits(module([x, n], call), {**inputs, "n": amount})
    else:
        assert_same_bits(module([x], getattr(op, name)(x, constant(amount, dtype))), inputs)


# Within the operator's contract, |x * 2^max(shift, 0)| < 2^32.
shifts = st.integers(-40, 12)
multipliers = st.one_of(st.just(1 << 30), st.just(0), st.integers((1 << 30) + 1, (1 << 31) - 1))


def within_contract(rng: np.random.Generator, shape: tuple[int, ...], shift: int) -> np.ndarray:
    bound = 1 << min(31, 32 - max(shift, 0))
    return rng.integers(-bound, bound, shape)


@given(seed=seeds, multiplier=multipliers, shift=shifts, dtype=st.sampled_from(("int32", "int64")))
@settings(max_examples=80, deadline=None)
def test_a_fixed_point_product_is_the_definition(
    seed: int, multiplier: int, shift: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (300,), dtype)
    call = op.fixed_point_multiply(x, multiplier=multiplier, shift=shift)
    values = within_contract(rng, (300,), shift).astype(dtype)
    assert_same_bits(module([x], call), {"x": values})


@given(
    seed=seeds,
    pairs=st.lists(st.tuples(multipliers, shifts), min_size=1, max_size=5),
    axis=st.sampled_from((1, -1)),
    dtype=st.sampled_from(("int32", "int64")),
)
@settings(max_examples=80, deadline=None)
def test_a_fixed_point_product_per_channel_is_the_definition(
    seed: int, pairs: list[tuple[int, int]], axis: int, dtype: str
) -> None:
    rng = np.random.default_rng(seed)
    shape = (2, len(pairs), 6) if axis == 1 else (3, 4, len(pairs))
    x = relay.var("x", shape, dtype)
    m, e = (constant([pair[i] for pair in pairs]) for i in (0, 1))
    call = op.fixed_point_multiply_per_axis(x, m, e, axis=axis)
    values = within_contract(rng, shape, max(e for _, e in pairs)).astype(dtype)
    assert_same_bits(module([x], call), {"x": values})


@given(
    seed=seeds,
    groups=st.sampled_from((1, 2, 4)),
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.tuples(*[st.integers(0, 2)] * 4),
    dilation=st.integers(1, 2),
    dtypes=st.sampled_from(
        [
            ("int8", "int8"),
            ("uint8", "int8"),
            ("int16", "int8"),
            ("int16", "int16"),
            ("int8", "int32"),
        ]
    ),
    layouts=st.sampled_from([("NCHW", "OIHW"), ("NHWC", "HWIO")]),
)
@settings(max_examples=60, deadline=None)
def test_convolutions_accumulate_every_input_exactly(
    seed: int,
    groups: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: int,
    dtypes: tuple[str, str],
    layouts: tuple[str, str],
) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"N": 1, "C": 4, "H": 7, "W": 6}
    shape = tuple(sizes[letter] for letter in layouts[0])
    taps = {"O": 4, "I": 4 // groups, "H": kernel[0], "W": kernel[1]}
    weight = whole(rng, tuple(taps[letter] for letter in layouts[1]), dtypes[1])
    x = relay.var("x", shape, dtypes[0])
    call = op.nn.conv2d(
        x,
        constant(weight, dtypes[1]),
        groups=groups,
        strides=strides,
        padding=padding,
        dilation=(dilation, dilation),
        data_layout=layouts[0],
        kernel_layout=layouts[1],
        out_dtype="int32",
    )
    assert_same_bits(module([x], call), {"x": whole(rng, shape, dtypes[0])})


@given(
    seed=seeds,
    dtype=st.sampled_from(("int8", "uint8", "int16", "int32")),
    k=st.integers(1, 40),
    turns=st.tuples(st.booleans(), st.booleans()),
)
@settings(max_examples=40, deadline=None)
def test_products_of_matrices_are_exact(
    seed: int, dtype: str, k: int, turns: tuple[bool, bool]
) -> None:
    rng = np.random.default_rng(seed)
    lhs, rhs = ((2, k, 3) if turns[0] else (2, 3, k)), ((2, 5, k) if turns[1] else (2, k, 5))
    x, y = relay.var("x", lhs, dtype), relay.var("y", rhs, "int8")
    call = op.nn.batch_matmul(x, y, transpose_a=turns[0], transpose_b=turns[1], out_dtype="int32")
    inputs = {"x": whole(rng, lhs, dtype), "y": whole(rng, rhs, "int8")}
    assert_same_bits(module([x, y], call), inputs)
    z = relay.var("z", (3, k), dtype)
    weight = constant(whole(rng, (4, k), "int8"), "int8")
    dense = op.nn.dense(z, weight, out_dtype="int32")
    assert_same_bits(module([z], dense), {"z": whole(rng, (3, k), dtype)})


@given(
    seed=seeds,
    name=st.sampled_from(["max_pool2d", "avg_pool2d"]),
    window=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    strides=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(*[st.integers(0, 3)] * 4),
    ceil_mode=st.booleans(),
    include=st.booleans(),
    dtype=st.sampled_from(("int8", "int16", "int32")),
    layout=st.sampled_from(("NCHW", "NHWC")),
)
@settings(max_examples=80, deadline=None)
def test_pools_are_exact_and_averages_truncate(
    seed: int,
    name: str,
    window: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[int, int, int, int],
    ceil_mode: bool,
    include: bool,
    dtype: str,
    layout: str,
) -> None:
    rng = np.random.default_rng(seed)
    sizes = {"N": 2, "C": 3, "H": 7, "W": 8}
    shape = tuple(sizes[letter] for letter in layout)
    x = relay.var("x", shape, dtype)
    more = {"count_include_pad": include} if name == "avg_pool2d" else {}
    pooled = getattr(op.nn, name)(
        x,
        pool_size=window,
        strides=strides,
        padding=padding,
        ceil_mode=ceil_mode,
        layout=layout,
        **more,
    )
    everything = op.nn.global_avg_pool2d(x, layout=layout)
    body = relay.Tuple((pooled, everything, op.nn.global_max_pool2d(x, layout=layout)))
    assert_same_bits(module([x], body), {"x": whole(rng, shape, dtype)})


@given(seed=seeds, dtype=st.sampled_from(("int8", "int16", "int32")))
@settings(max_examples=20, deadline=None)
def test_movements_keep_every_integer(seed: int, dtype: str) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (2, 4, 6), dtype)
    table = constant(whole(rng, (256,), dtype), dtype)
    moved = op.transpose(op.reshape(x, newshape=(4, 2, 6)), axes=(1, 2, 0))
    body = relay.Tuple(
        (
            moved,
            op.concatenate(relay.Tuple((x, x)), axis=1),
            op.strided_slice(x, begin=(0, 1, 0), end=(2, 4, 6), strides=(1, 2, 3)),
            op.nn.pad(x, constant(-7, dtype), pad_width=((0, 0), (1, 2), (0, 0))),
            op.take(table, op.cast(x, dtype="int32")),
            op.mean(x, axis=(1, 2)),
            op.sum(x, axis=(0,)),
            op.max(x, axis=(2,), keepdims=True),
            op.where(op.greater_equal(x, constant(0, dtype)), x, constant(3, dtype)),
        )
    )
    assert_same_bits(module([x], body), {"x": whole(rng, (2, 4, 6), dtype)})


@pytest.mark.parametrize("mode", ["clip", "wrap", "fast"])
def test_positions_outside_are_those_of_the_reference(mode: str) -> None:
    x = relay.var("x", (6,), "int32")
    table = constant([7, 8, 9], "int8")
    values = np.array([-9, -1, 0, 2, 3, 9], "int32")
    assert_same_bits(module([x], op.take(table, x, axis=0, mode=mode)), {"x": values})


@given(
    seed=seeds,
    dtype=st.sampled_from(("int8", "int16", "int32")),
    mode=st.sampled_from(("reflect", "edge")),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
)
@settings(max_examples=30, deadline=None)
def test_repeated_and_reflected_elements_are_the_right_ones(
    seed: int, dtype: str, mode: str, size: tuple[int, int]
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (1, 2, 4, 5), dtype)
    widths = ((0, 0), (0, 1), (2, 1), (3, 0))
    if mode == "reflect":
        widths = ((0, 0), (1, 1), (2, 1), (3, 0))
    body = relay.Tuple(
        (
            op.nn.pad(x, relay.const(np.array(0, dtype)), pad_width=widths, pad_mode=mode),
            op.nn.upsampling(x, scale_h=2, scale_w=3, method="nearest_neighbor"),
            op.image.resize2d(
                x,
                size=size,
                method="nearest_neighbor",
                coordinate_transformation_mode="asymmetric",
                rounding_method="floor",
            ),
        )
    )
    assert_same_bits(module([x], body), {"x": whole(rng, (1, 2, 4, 5), dtype)})


@pytest.mark.parametrize("executor", [IntegerExecutor])
def test_limits_beyond_32_bits_hold_on_long_tensors(executor: Any) -> None:
    """onnxruntime's own Max, Min and Clip compare the low halves only."""
    x = relay.var("x", (64,), "int32")
    bound = constant(np.full(64, 3 << 40), "int64")
    wide = op.left_shift(op.cast(x, dtype="int64"), relay.const(np.int64(20)))
    body = relay.Tuple(
        [
            op.cast(op.right_shift(limited, relay.const(np.int64(22))), dtype="int32")
            for limited in (
                op.minimum(wide, bound),
                op.maximum(wide, op.negative(bound)),
                op.clip(wide, a_min=-(2.0**44), a_max=2.0**45),
                op.nn.relu(wide),
            )
        ]
    )
    mod = module([x], body)
    values = np.random.default_rng(0).integers(-(1 << 29), 1 << 29, 64).astype(np.int32)
    for wanted, found in each(zip(evaluate(mod, {"x": values}), executor(mod).run({"x": values}))):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("executor", [IntegerExecutor])
@given(seed=st.integers(0, 2**32 - 1), axis=st.sampled_from((None, 0, 1, (0, 2), -1)))
@settings(max_examples=10, deadline=None)
def test_extremes_along_axes_hold_beyond_32_bits(executor: Any, seed: int, axis: Any) -> None:
    """onnxruntime's own ReduceMax and ReduceMin compare the low halves of some operands only."""
    x = relay.var("x", (5, 9, 16), "int32")
    wide = op.left_shift(op.cast(x, dtype="int64"), relay.const(np.int64(20)))
    body = relay.Tuple(
        [
            op.cast(op.right_shift(extreme, relay.const(np.int64(20))), dtype="int32")
            for extreme in (
                op.max(wide, axis=axis),
                op.min(wide, axis=axis),
                op.max(wide, axis=axis, keepdims=True),
                op.min(wide, axis=axis, exclude=axis is not None),
            )
        ]
    )
    mod = module([x], body)
    values = np.random.default_rng(seed).integers(-(1 << 29), 1 << 29, (5, 9, 16), np.int32)
    for wanted, found in each(zip(evaluate(mod, {"x": values}), executor(mod).run({"x": values}))):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axes", list(permutations(range(3))))
def test_a_product_of_what_is_transposed_has_a_session(axes: tuple[int, ...]) -> None:
    """onnxruntime ends with a signal where it moves a Transpose of batches behind a Cast."""
    rng = np.random.default_rng(0)
    shape = (3, 4, 5)
    x = relay.var("x", shape, "int8")
    k = shape[axes[2]]
    weight = constant(whole(rng, (2, k), "int8"), "int8")
    product = op.nn.dense(op.transpose(x, axes=axes), weight, out_dtype="int32")
    assert_same_bits(module([x], product), {"x": whole(rng, shape, "int8")})


@pytest.mark.parametrize("largest", [(1 << 23) - 1, 1 << 23, 1 << 33])
@pytest.mark.parametrize("dense", [False, True])
def test_products_are_float_where_every_sum_is_exact(largest: int, dense: bool) -> None:
    """The largest sum of a weight's magnitudes, times that of the data: one below the limit, and at
    it. The data take both ends, so that partial sums reach it."""
    dtype, terms = ("int32", 4) if largest >> 32 else ("int16", 256)
    reach = (1 << 31) if largest >> 32 else 1 << 15
    x = relay.var("x", (2, terms), dtype)
    numbers = np.full((1, terms), largest // (reach * terms))
    numbers[0, 0] += (largest - int(np.abs(numbers).sum()) * reach) // reach
    numbers *= -1  # the lowest number of a dtype is the farthest
    weight = constant(numbers, dtype)
    if dense:
        body = op.nn.dense(x, weight, out_dtype="int64")
    else:
        image = op.reshape(x, newshape=(2, terms, 1, 1))
        kernel = constant(numbers.reshape(1, terms, 1, 1), dtype)
        body = op.nn.conv2d(image, kernel, out_dtype="int64")
    mod = module([x], body)
    least, most = integer_range(dtype)
    ends = np.where(numbers < 0, least, most), np.where(numbers < 0, most, least)
    assert_same_bits(mod, {"x": np.concatenate(ends).astype(dtype)})
    kinds = {node.op_type for node in to_integer_onnx(mod).graph.node}
    sums = int(np.abs(numbers).sum()) * reach
    floats = sums < 1 << (52 if dense else 23)
    assert bool(kinds & {"Conv", "MatMul"}) == floats
    assert bool(kinds & {"ConvInteger", "MatMulInteger"}) != floats


@given(st.integers(0, 1 << 20), st.sampled_from(["up", "away", "even"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_a_limited_product_is_right_at_every_operand(seed: int, ties: Ties, rows: bool) -> None:
    """Every operand within its limits; factors that a float32 product replaces, and others."""
    rng = np.random.default_rng(seed)
    reach = int(rng.choice([300, 5000, 60_000]))
    low, high = (0, 255) if rng.random() < 0.5 else (-128, 127)
    x = relay.var("x", (3, 2 * reach + 1), "int32")
    held = op.clip(x, a_min=-reach, a_max=reach)
    factor = np.exp(rng.uniform(np.log(1e-4), np.log(2), 3)).astype(np.float32)
    if rng.random() < 0.5:
        factor = nearest_float_factors(factor, ties, (-reach, reach), (low, high))
    multiplier, shift = multiplier_and_shift(factor)
    vectors = [multiplier, shift] if rows else []
    one = {} if rows else {"multiplier": int(multiplier[0]), "shift": int(shift[0])}
    ends: dict[str, Any] = {
        "rounding": ties,
        "axis": 0,
        "low": low,
        "high": high,
        "out_dtype": "int16",
    }
    body = requantize(held, *vectors, **one, **ends)
    data = np.broadcast_to(np.arange(-reach, reach + 1, dtype=np.int32), (3, 2 * reach + 1))
    assert_same_bits(module([x], body), {"x": data.copy()})


def test_every_operator_that_realisation_emits_has_an_integer_form() -> None:
    arithmetic = {"cast", "left_shift", "right_shift", "fixed_point_multiply", "where"}
    arithmetic |= {"fixed_point_multiply_per_axis", "greater_equal", "maximum", "minimum"}
    arithmetic |= {"bitwise_and"}
    tables = {"lookup", "nn.integer_softmax", "nn.integer_standardize"}
    # These become others: shifts and products, tables, softmax and standardization on integers.
    replaced = {"relay.op.annotation.simulated_quantize", "unary_formula", "nn.softmax"}
    replaced |= {"nn.layer_norm", "nn.rms_norm", "nn.log_softmax", "divide", "nn.prelu"}
    replaced |= {"nn.conv2d_transpose", "nn.adaptive_avg_pool2d"}
    replaced |= {"scan.state", "scan.step", "scan.end"}  # marks of a loop, which is closed then
    replaced |= {"sqrt"}  # isqrt of more bits
    emitted = set(FQRealizeRewrite.names()) - replaced
    assert (emitted | arithmetic | tables) - WORDS - set(FBody.names()) == set()
    assert set(FToInteger.names()) == WORDS | set(RESCALING)


@pytest.mark.parametrize("divisor", [7, -7, [[1], [-3], [0]]])
def test_quotients_go_down_up_to_the_ends_of_64_bits(divisor: Any) -> None:
    info = np.iinfo("int64")
    data = np.array([[info.min, info.min + 1, -8, -7, -1, 0, 1, 7, 8, info.max - 1, info.max]] * 3)
    x = relay.var("x", data.shape, "int64")
    assert_same_bits(module([x], op.floor_divide(x, constant(divisor, "int64"))), {"x": data})


@pytest.mark.parametrize("dtype", ["int8", "int16"])
@pytest.mark.parametrize("number", [3, 7, 16_777_217, 25_418_971])
@pytest.mark.parametrize("where", ["divided", "multiplied", "twice", "in front"])
def test_one_number_beside_a_product_keeps_all_its_bits(
    where: str, number: int, dtype: str
) -> None:
    # onnxruntime moves it into the product, as a float32.
    rng = np.random.default_rng([number, dtype == "int8"])
    x, factor = relay.var("x", (200, 17), dtype), constant(number, "int64")
    weight = constant(rng.integers(-127, 127, (5, 17)), "int16")
    body = op.nn.dense(x, weight, out_dtype="int64")
    body = op.floor_divide(body, factor) if where == "divided" else op.multiply(body, factor)
    if where == "twice":
        body = op.multiply(body, constant(7_003, "int64"))
    if where == "in front":
        body = op.nn.dense(body, constant(np.eye(3, 5), "int8"), out_dtype="int64")
    data = rng.integers(*integer_range(dtype), (200, 17), dtype=dtype, endpoint=True)
    data[::2, 2:] = 0
    assert_same_bits(module([x], body), {"x": data})


@pytest.mark.parametrize("factor", [309, [309, 301, 303, 299, 305]])
@pytest.mark.parametrize("dense", [True, False])
def test_sums_inside_a_product_by_a_number_are_exact(dense: bool, factor: Any) -> None:
    # Operands lie far from 0: partial sums are larger than all of them together.
    rng = np.random.default_rng(0)
    x = relay.var("x", (4, 2000) if dense else (4, 2000, 1, 1), "int8")
    data = op.maximum(x, constant(100, "int8"))
    weight = np.repeat([[1] * 1000 + [-1] * 1000], 5, axis=0)
    if dense:
        body = op.nn.dense(data, constant(weight, "int8"), out_dtype="int32")
    else:
        kernel = constant(weight[:, :, None, None], "int8")
        body = op.nn.conv2d(data, kernel, kernel_size=(1, 1), channels=5, out_dtype="int32")
    numbers = np.reshape(factor, (-1,) if dense else (-1, 1, 1))
    images = rng.integers(100, 127, x.type_annotation.concrete_shape, "int8", endpoint=True)
    assert_same_bits(module([x], op.multiply(body, constant(numbers))), {"x": images})


def test_a_product_that_is_always_zero_is_zero_without_a_sign() -> None:
    x, data = relay.var("x", (4,), "int8"), np.array([-3, 0, 5, -128], np.int8)
    nothing = op.minimum(op.maximum(x, constant(0, "int8")), constant(0, "int8"))
    product = op.multiply(op.cast(x, dtype="int32"), op.cast(nothing, dtype="int32"))
    assert_same_bits(module([x], op.cast(product, dtype="float32")), {"x": data})


def test_products_of_64_bits_are_exact_up_to_their_ends() -> None:
    x = relay.var("x", (1, 5), "int64")
    held = op.clip(x, a_min=2147483647.0, a_max=4294967296.0)
    data = np.array([[-256, -513, 2147483648, 4294967295, 2**62]])
    assert_same_bits(module([x], op.multiply(held, constant(1 << 29, "int64"))), {"x": data})


def test_an_operator_without_an_exact_form_is_refused_by_name() -> None:
    x = relay.var("x", (4,), "int32")
    with pytest.raises(OnnxExportError, match="power has no ONNX form here: it has no exact"):
        to_integer_onnx(module([x], op.power(x, constant(3))))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64"])
def test_bits_of_two_numbers_are_those_of_the_reference(dtype: str) -> None:
    rng = np.random.default_rng(len(dtype))
    info = np.iinfo(dtype)
    data = rng.integers(info.min, info.max, (2, 4, 70), dtype=dtype, endpoint=True)
    data[:, 0, :4] = [[info.min, info.max, 0, 1], [info.max, info.min, info.max, 2]]
    x, y = (relay.var(name, (4, 70), dtype) for name in "xy")
    for body in (op.bitwise_or(x, y), op.bitwise_and(x, y), op.bitwise_xor(y, constant(6, dtype))):
        assert_same_bits(module([x, y], body), {"x": data[0], "y": data[1]})


@given(seed=seeds, dtype=st.sampled_from(("int8", "uint8")), size=st.sampled_from((1, 100, 256)))
@settings(max_examples=20, deadline=None)
def test_tables_and_softmax_by_table_are_exact(seed: int, dtype: str, size: int) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (3, 5, 7), dtype)
    table = op.lookup(x, constant(whole(rng, (size,), "int16"), "int16"))
    exponentials = constant(rng.integers(0, 1 << 22, size))
    soft = op.nn.integer_softmax(x, exponentials, axis=1, out_bits=15)
    assert_same_bits(module([x], relay.Tuple((table, soft))), {"x": whole(rng, (3, 5, 7), dtype)})


@pytest.mark.parametrize("ends", [(-2048, 2047), (0, 255), (-700, -300), (900, 1000)])
def test_a_table_holds_entries_for_the_bits_that_its_data_have(ends: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    x = relay.var("x", (5000,), "int32")
    data = op.cast(op.clip(x, a_min=ends[0], a_max=ends[1]), dtype="int16")
    mod = module([x], op.lookup(data, constant(whole(rng, (1 << 16,), "int16"), "int16")))
    (table,) = [t for t in to_integer_onnx(mod).graph.initializer if max(t.dims, default=0) > 60]
    assert table.dims[0] == 2 << max(ends[1], -ends[0] - 1).bit_length()
    assert_same_bits(mod, {"x": np.arange(-2500, 2500, dtype="int32")})


@given(
    seed=seeds,
    dtype=st.sampled_from(("int8", "int16")),
    epsilon=st.sampled_from((0, 1, 1000)),
    bits=st.tuples(st.integers(0, 4), st.integers(0, 12)),
    flat=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_standardizing_with_an_integer_root_is_exact(
    seed: int, dtype: str, epsilon: int, bits: tuple[int, int], flat: bool
) -> None:
    rng = np.random.default_rng(seed)
    x = relay.var("x", (3, 10), dtype)
    call = op.nn.integer_standardize(x, epsilon=epsilon, root_bits=bits[0], out_bits=bits[1])
    values = whole(rng, (3, 10), dtype)
    if flat:
        values[:, 1:] = values[:, :1]
    assert_same_bits(module([x], call), {"x": values})


@pytest.mark.parametrize("writer", [to_integer_onnx, to_onnx])
def test_a_maximum_sees_the_zeros_of_a_pad_in_front_of_it(writer: Any) -> None:
    """onnxruntime's Pad_Fusion would make them padding."""
    dtype = "int8" if writer is to_integer_onnx else "float32"
    x = relay.var("x", (1, 2, 5, 5), dtype)
    zero = relay.const(np.zeros((), dtype))
    padded = op.nn.pad(x, zero, pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))
    mod = module((x,), op.nn.max_pool2d(padded, pool_size=(3, 3), strides=(2, 2)))
    given = {"x": -np.ones((1, 2, 5, 5), dtype)}
    (expected,) = evaluate(mod, given)
    session = onnxruntime.InferenceSession(writer(mod).SerializeToString())
    np.testing.assert_array_equal(session.run(None, given)[0], expected)
    assert set(expected.flat) == {0, -1}


def test_a_float_file_of_others_has_the_meaning_of_its_text() -> None:
    nodes = [
        helper.make_node("Pad", ["x", "pads"], ["padded"]),
        helper.make_node("MaxPool", ["padded"], ["y"], kernel_shape=[3, 3]),
    ]
    graph = helper.make_graph(
        nodes,
        "padded",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 4, 4])],
        [helper.make_tensor("pads", TensorProto.INT64, [8], [0, 0, 1, 1, 0, 0, 1, 1])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (y,) = OrtExecutor(model).run({"x": -np.ones((1, 1, 4, 4), "float32")})
    np.testing.assert_array_equal(y[0, 0, [0, 1], [0, 1]], [0, -1])


def test_a_form_larger_than_a_message_is_refused_before_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("compiler.export.to_onnx.integer.model.MOST_BYTES", 4 * 64 - 1)
    x = relay.var("x", (1, 8), "int8")
    mod = module((x,), op.nn.dense(x, constant(np.ones((8, 8)), "int8"), out_dtype="int32"))
    with pytest.raises(TooLargeError, match="may take 256 bytes"):
        to_integer_onnx(mod)
