"""The body of every operator computes, in words, what its numpy meaning says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compiler.ops  # noqa: F401  (fills the table of bodies)
from compiler import relay
from compiler.core.legalize import words_of
from compiler.core.words import WORDS
from compiler.errors import CompilerError
from compiler.export.to_onnx.integer.emitter import FToInteger
from compiler.ir.dataflow import Dataflow, Value, dataflow
from compiler.ir.expr import Expr, Function, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType
from compiler.ops.nn.softmax import exponentials
from compiler.ops.qnn.requantize import RESCALING
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.numpy_compute import FNumpyCompute
from compiler.proof.derive import derive_static
from compiler.ranges.analysis import FRange
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.inner_limits import CORE, OPERATORS, core_of, inputs_of, module_of
from tests.each import each

Array = NDArray[Any]
op = relay.op
NARROW = ("int8", "uint8")
SIGNED = ("int8", "int16", "int32", "int64")
WHOLE = (*NARROW, "int16", "uint16", "int32", "uint32", "int64")


def evaluate(flow: Dataflow, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of a flow, every operator by the numpy meanings of its words."""
    held: dict[Value, Array] = dict(zip(flow.inputs, inputs))

    def of(value: Value) -> Array:
        return held[value] if value.data is None else value.data

    for step in flow.steps:
        words, results = words_of(step)
        assert {word.name for word in words} <= WORDS
        for word in words:
            compute = FNumpyCompute.require(word.op)
            with np.errstate(all="ignore"):
                (array,) = compute(word.attrs, [of(a) for a in word.args], word.result.type)
            assert array.shape == word.result.type.concrete_shape, word.name
            assert str(array.dtype) == word.result.type.dtype, word.name
            held[word.result] = array
        held |= {value: of(made) for value, made in zip(step.results, results)}
    return [of(value) for value in flow.outputs]


def sub_pixel(attrs: Any, x: Array, to_space: bool) -> Array:
    n, c, h, w = x.shape
    b = attrs.block_size
    if to_space:
        inner = c // b**2
        if attrs.mode == "DCR":
            blocks = x.reshape(n, b, b, inner, h, w).transpose(0, 3, 4, 1, 5, 2)
        else:
            blocks = x.reshape(n, inner, b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
        return blocks.reshape(n, inner, h * b, w * b)
    blocks = x.reshape(n, c, h // b, b, w // b, b)
    order = (0, 3, 5, 1, 2, 4) if attrs.mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return blocks.transpose(order).reshape(n, c * b**2, h // b, w // b)


def gathered(attrs: Any, x: Array, at: Array) -> Array:
    axis = attrs.axis % x.ndim
    crop = tuple(slice(None) if k == axis else slice(n) for k, n in enumerate(at.shape))
    return np.take_along_axis(x[crop], np.clip(at, 0, x.shape[axis] - 1), axis=axis)


def gathered_nd(attrs: Any, x: Array, at: Array) -> Array:
    batch = attrs.batch_dims
    index = list(np.indices(at.shape[1:])[:batch])
    sizes = x.shape[batch:]
    return x[(*index, *(np.clip(part, 0, n - 1) for part, n in zip(at, sizes)))]


def hot(attrs: Any, at: Array, on: Array, off: Array) -> Array:
    rows = at[..., None] == np.arange(attrs.depth)
    return np.moveaxis(np.where(rows, on, off), -1, attrs.axis)


def over_image(function: Any) -> Any:
    def compute(attrs: Any, x: Array) -> Array:
        axes = tuple(attrs.layout.index(letter) for letter in "HW")
        return np.asarray(function(x, axis=axes, keepdims=True))

    return compute


def toward_zero(x: Array, **how: Any) -> Array:
    total = x.astype(np.int64).sum(**how)
    count = x.size // total.size
    return (np.sign(total) * (np.abs(total) // count)).astype(x.dtype)


ORACLES: dict[str, Any] = {
    "gather": gathered,
    "gather_nd": gathered_nd,
    "layout_transform": lambda attrs, x: x.transpose(
        [attrs.src_layout.index(letter) for letter in attrs.dst_layout]
    ),
    "nn.depth_to_space": lambda attrs, x: sub_pixel(attrs, x, True),
    "nn.global_avg_pool2d": over_image(toward_zero),
    "nn.global_max_pool2d": over_image(np.max),
    "nn.space_to_depth": lambda attrs, x: sub_pixel(attrs, x, False),
    "one_hot": hot,
    "repeat": lambda attrs, x: np.repeat(x, attrs.repeats, axis=attrs.axis),
    "reverse": lambda attrs, x: np.flip(x, axis=attrs.axis),
    "split": lambda attrs, x: np.split(x, attrs.indices_or_sections, axis=attrs.axis),
    "tile": lambda attrs, x: np.tile(x, attrs.reps),
}
"""Numpy meanings of operators that take theirs from their bodies."""


def computed(name: str) -> Any:
    def compute(attrs: Any, args: Sequence[Array], out_type: Any) -> list[Array]:
        found = ORACLES[name](attrs, *args)
        return found if isinstance(found, list) else [found]

    return compute


def check(call: Expr, inputs: Mapping[Var, Array]) -> None:
    """The call in words against the reference."""
    mod = infer_module(IRModule.from_expr(Function(tuple(inputs), call)))
    given = list(inputs.values())
    with ExitStack() as replaced:
        for name in ORACLES:
            replaced.enter_context(FNumpyCompute.replaced(Op.get(name), computed(name)))
        wanted = ReferenceExecutor(mod).run(given)
    for found, expected in zip(evaluate(dataflow(mod), given), wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


def values(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Array:
    """Ends, beside 0, and anything of a dtype."""
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    rng = np.random.default_rng(seed)
    some = rng.integers(low, high, shape, dtype="int64", endpoint=True)
    near = rng.choice(np.clip([low, low + 1, -2, -1, 0, 1, 2, high - 1, high], low, high), shape)
    return np.where(rng.random(shape) < 0.5, some, near).astype(dtype)


def pairs(dtype: str) -> tuple[Array, Array]:
    """All pairs of two 8-bit numbers, or many of wider ones."""
    if dtype in NARROW:
        both = np.array(list(product(np.arange(256), repeat=2))).astype(np.uint8).T
        return both[0].view(dtype), both[1].view(dtype)
    return values(dtype, (5000,), 1), values(dtype, (5000,), 2)


def var(name: str, array: Array) -> Var:
    return Var(name, TensorType(array.shape, str(array.dtype)))


QUOTIENTS = ("divide", "floor_mod", "mod", "trunc_mod")
UNARY = ("negative", "abs", "copy", "floor", "ceil", "trunc", "round", "round_even", "bitwise_not")
BINARY = (
    *("not_equal", "less_equal", "greater", "greater_equal", "bitwise_xor"),
    *QUOTIENTS,
)
LOGICAL = ("logical_and", "logical_or", "logical_xor")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("dtype", WHOLE)
def test_elementwise_operators_of_every_value(dtype: str) -> None:
    a, b = pairs(dtype)
    x, y = var("x", a), var("y", b)
    for name in UNARY:
        check(getattr(op, name)(x), {x: a})
    for name in BINARY:
        check(getattr(op, name)(x, y), {x: a, y: b})
    for name, divisor in product(QUOTIENTS, (1, 3, 7, 64)):
        check(getattr(op, name)(x, relay.const(np.array(divisor, dtype))), {x: a})
    for bits in range(np.iinfo(dtype).bits):
        check(op.left_shift(x, relay.const(np.array(bits, dtype))), {x: a})
    for low, high in ((-5.0, 9.0), (3.0, 1e30), (7.0, 2.0)):
        check(op.clip(x, a_min=low, a_max=high), {x: a})
    check(op.nn.relu(x), {x: a})
    check(op.where(x, x, y), {x: a, y: b})


def test_logical_operators_of_every_value() -> None:
    a, b = np.array([[0, 0, 1, 1], [0, 1, 0, 1]], bool)
    x, y = var("x", a), var("y", b)
    for name in LOGICAL:
        check(getattr(op, name)(x, y), {x: a, y: b})
    check(op.logical_not(x), {x: a})
    check(op.not_equal(x, y), {x: a, y: b})


@pytest.mark.parametrize("dtype", [*WHOLE, "bool"])
def test_moves_of_every_dtype(dtype: str) -> None:
    data = values(dtype, (2, 4, 6, 3))
    x = var("x", data)
    indices = np.random.default_rng(0).integers(-3, 8, (2, 4, 5, 3))
    cases = [
        op.squeeze(op.expand_dims(x, axis=1, num_newaxis=2)), op.nn.batch_flatten(x),
        op.reshape_like(x, relay.const(np.zeros((6, 24), dtype))),
        op.transpose(x), op.transpose(x, axes=(-1, 0, 2, 1)),
        op.layout_transform(x, src_layout="NCHW", dst_layout="NHWC"),
        op.stack(relay.Tuple((x, x)), axis=-2), op.reverse(x, axis=-2),
        op.tile(x, reps=(3, 1, 2, 1, 2)), op.repeat(x, repeats=3, axis=-1),
        op.repeat(x, repeats=2), op.take(x, relay.const(indices)),
        op.take(x, relay.const(indices), axis=-2, mode="wrap"),
        op.take(x, relay.const(indices), axis=3, batch_dims=2, mode="fast"),
        op.gather(x, relay.const(indices), axis=2),
        op.gather_nd(x, relay.const(indices.reshape(3, -1) - 1)),
        op.gather_nd(x, relay.const(indices.reshape(2, 2, -1)), batch_dims=1),
        op.nn.pad(
            x, relay.const(np.array(1, dtype)), pad_width=((0, 0), (1, 2), (3, 0), (1, 1)),
            pad_mode="reflect",
        ),
        op.nn.pad(x, relay.const(np.array(1, dtype)), pad_width=((0, 1), (-1, 2), (2, -3), (0, 0))),
        op.nn.pad(x, relay.const(np.array(1, dtype)), pad_width=((0, 1),) * 4, pad_mode="edge"),
    ]  # fmt: skip
    for mode in ("DCR", "CRD"):
        cases.append(op.nn.depth_to_space(x, block_size=2, mode=mode))
    cut = op.strided_slice(x, begin=(0, 0, 0, 0), end=(2, 4, 6, 2))
    for mode in ("DCR", "CRD"):
        cases.append(op.nn.space_to_depth(cut, block_size=2, mode=mode))
    for call in cases:
        check(call, {x: data})
    parts = op.split(x, indices_or_sections=(1, 4), axis=2)
    check(relay.Tuple([relay.TupleGetItem(parts, n) for n in range(3)]), {x: data})


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_places_that_are_computed(dtype: str) -> None:
    data, at = values("int8", (3, 5, 4)), values(dtype, (3, 5, 4), 5) % 9 - 3
    x, places = var("x", data), var("places", at)
    given = {x: data, places: at}
    for call in (
        op.take(x, places), op.take(x, places, axis=1, mode="wrap"),
        op.take(x, places, axis=2, batch_dims=1), op.gather(x, places, axis=-2),
        op.gather_nd(x, places), op.gather_nd(x, op.reshape(places, (1, 3, 20)), batch_dims=1),
    ):  # fmt: skip
        check(call, given)


@pytest.mark.parametrize("dtype", WHOLE)
def test_reductions_and_pools_of_every_dtype(dtype: str) -> None:
    data = (
        values(dtype, (2, 4, 5, 3)) if np.iinfo(dtype).bits < 64 else values("int32", (2, 4, 5, 3))
    )
    data = data.astype(dtype)
    x = var("x", data)
    for name, axis, keepdims in product(
        ("min", "max", "mean"), (None, 2, (1, 3), -1), (True, False)
    ):
        check(getattr(op, name)(x, axis=axis, keepdims=keepdims), {x: data})
    for axis, last in product((None, 1), (True, False)):
        check(op.argmin(x, axis=axis, select_last_index=last), {x: data})
    if np.iinfo(dtype).bits < 64:
        for axis, up in product((0, 2, -1), (True, False)):
            how = {"k": data.shape[axis] - 1, "is_ascend": up, "ret_type": "indices"}
            check(op.topk(x, axis=axis, **how), {x: data})
        pair = infer_module(IRModule.from_expr(Function((x,), op.topk(x, k=2, axis=2))))
        (step,) = dataflow(pair).steps
        assert words_of(step)[0] == [step]  # values and places together are no words
    on, off = (relay.const(np.array(number, dtype)) for number in (3, 1))
    for axis in (0, -1, 2):
        check(op.one_hot(x, on, off, depth=4, axis=axis), {x: data})
    for layout in ("NCHW", "NHWC"):
        check(op.nn.global_avg_pool2d(x, layout=layout), {x: data})
        check(op.nn.global_max_pool2d(x, layout=layout), {x: data})
    for layout, ceil, counted in product(("NCHW", "NHWC"), (True, False), (True, False)):
        how: dict[str, Any] = {
            "pool_size": (3, 2),
            "strides": (2, 2),
            "padding": (1, 0, 2, 1),
            "layout": layout,
            "ceil_mode": ceil,
        }
        check(op.nn.avg_pool2d(x, count_include_pad=counted, **how), {x: data})
        check(op.nn.max_pool2d(x, **how), {x: data})


@pytest.mark.parametrize("dtype", WHOLE)
def test_running_sums_of_every_dtype(dtype: str) -> None:
    data = values(dtype, (3, 5, 1, 4))
    x = var("x", data)
    for axis, exclusive in product((None, 1, 2, -1), (True, False)):
        check(op.cumsum(x, axis=axis, exclusive=exclusive), {x: data})
        check(op.cumsum(x, axis=axis, dtype="int64", exclusive=exclusive), {x: data})


def test_reductions_of_bools() -> None:
    data = values("bool", (3, 4, 2))
    x = var("x", data)
    for name, axis in product(("min", "max", "all", "any"), (None, 1, (0, 2))):
        check(getattr(op, name)(x, axis=axis), {x: data})


def test_products_and_resizes() -> None:
    rng = np.random.default_rng(3)
    data = rng.integers(-128, 128, (2, 4, 5, 6)).astype("int8")
    x = var("x", data)
    for layout, kernel, out in (
        ("NHWC", "HWIO", ""),
        ("NCHW", "OIHW", "NHWC"),
        ("NHWC", "OHWI", "NCHW"),
    ):
        sizes = {"O": 6, "I": 2 if layout == "NCHW" else 3, "H": 3, "W": 2}
        weight = rng.integers(-128, 128, [sizes[c] for c in kernel]).astype("int8")
        how = {"data_layout": layout, "kernel_layout": kernel, "out_layout": out, "groups": 2}
        check(
            op.nn.conv2d(x, relay.const(weight), padding=(1, 0, 1, 2), out_dtype="int32", **how),
            {x: data},
        )
    rows = relay.const(rng.integers(-128, 128, (7, 6)).astype("int8"))
    check(op.nn.dense(x, rows, out_dtype="int32"), {x: data})
    check(op.nn.matmul(x, rows, transpose_b=True, out_dtype="int64"), {x: data})
    check(op.nn.bias_add(x, relay.const(np.arange(5, dtype="int8")), axis=-2), {x: data})
    three = rng.integers(-128, 128, (2, 3, 4)).astype("int8")
    y = var("y", three)
    for a, b in ((True, False), (False, True)):
        check(op.nn.batch_matmul(y, y, transpose_a=a, transpose_b=b, out_dtype="int32"), {y: three})
    for layout, coordinates in product(
        ("NCHW", "NHWC"), ("half_pixel", "align_corners", "asymmetric")
    ):
        how = {"coordinate_transformation_mode": coordinates, "method": "nearest_neighbor"}
        check(op.image.resize2d(x, size=(7, 4), layout=layout, **how), {x: data})
        check(op.nn.upsampling(x, scale_h=1.5, scale_w=2, layout=layout), {x: data})


@pytest.mark.parametrize("picked_first", [False, True])
def test_neighbours_are_mixed_along_two_axes(picked_first: bool) -> None:
    data = values("int8", (2, 3, 5, 4))
    x, rng = var("x", data), np.random.default_rng(7)
    taps = [
        relay.const(made.astype(dtype))
        for out, size in ((8, 5), (3, 4))
        for made, dtype in (
            (rng.integers(0, size, (out, 3)), "int64"),
            (rng.integers(-9, 9, (out, 3)), "int32"),
        )
    ]
    check(op.image.mix(x, *taps, axes=(2, 3), picked_first=picked_first), {x: data})
    check(op.image.mix(x, *taps[:2], axes=(2,)), {x: data})


@pytest.mark.parametrize("dtype", ["int8", "int16"])
def test_softmax_and_standardization(dtype: str) -> None:
    data = values(dtype, (3, 9, 4))
    x = var("x", data)
    tables = (np.array([1 << 20, 5, 0, -3]), np.round(2.0**18 * np.exp(-np.arange(256) / 16)))
    for table, axis, bits in product(tables, (-1, 0, 1), (1, 15, 20)):
        check(
            op.nn.integer_softmax(x, relay.const(table.astype("int32")), axis=axis, out_bits=bits),
            {x: data},
        )
    for axis, centred, root in product((-1, 0, 1), (True, False), (0, 4)):
        how = {"axis": axis, "epsilon": 77, "root_bits": root, "out_bits": 12, "centred": centred}
        check(op.nn.integer_standardize(x, **how), {x: data})


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_the_softmax_of_tflm(dtype: str) -> None:
    data = values(dtype, (3, 9, 4))
    x = var("x", data)
    for scale, axis in product((1e-4, 0.03, 0.2, 9.0), (-1, 0, 1)):
        table = exponentials(scale)
        assert table is not None
        check(op.nn.fixed_point_softmax(x, relay.const(table), axis=axis), {x: data})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_random_modules_in_words() -> None:
    """Of what is proved; elsewhere numbers may leave the 62 bits that a root has."""
    met = 0
    for index in range(300):
        rng = np.random.default_rng([71, index])
        g = core_of(rng, OPERATORS[index % len(OPERATORS)])
        try:
            mod = module_of(g)
        except CompilerError:
            continue
        if not derive_static(mod).holds:
            continue
        met += 1
        flow = dataflow(mod, CORE)
        reference = ReferenceExecutor(mod, CORE)
        for given in inputs_of(mod, g, 3):
            for found, wanted in zip(evaluate(flow, given), reference.run(given), strict=True):
                np.testing.assert_array_equal(found, wanted, f"index {index}")
    assert met > 100


@pytest.mark.parametrize(
    "form", [FNumpyCompute, FRange, FToInteger, FLower], ids=lambda form: str(form.name)
)
def test_every_word_has_every_form(form: OpRule[Any]) -> None:
    """The engine's are its kernels: tests/e2e/test_operators.py runs each word there."""
    assert set(form.names()) >= WORDS


def test_words_and_requantizations_alone_have_an_exact_onnx_form() -> None:
    assert set(FToInteger.names()) == WORDS | set(RESCALING)
    assert set(FRange.names()) - WORDS == {"nn.avg_pool2d"}


def test_a_word_and_what_touches_floats_stay_as_they_are() -> None:
    x = Var("x", TensorType((2, 3), "int32"))
    body = op.multiply(op.cast(op.add(x, x), dtype="float32"), relay.const(0.5))
    for step in each(dataflow(infer_module(IRModule.from_expr(Function((x,), body)))).steps):
        assert words_of(step) == ([step], list(step.results))
