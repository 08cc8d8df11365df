"""Every operator as loops computes what FNumpyCompute does: integers bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler.core.words import FBody
from compiler.errors import CompilerError, TypeInferenceError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Op
from compiler.ir.op import all_ops, get_op
from compiler.ir.ty import TensorType, Type, is_dynamic, tensor_fields
from compiler.lir.parser import parse_primfunc
from compiler.ops.__main__ import matrix
from compiler.ops.evaluate import Value, evaluate_op, flatten
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference
from tests.compiler.lowered_calls import lower_call
from tests.compiler.random_graphs import accepted_calls, random_value, result_type
from tests.each import each

# Its callee is lowered already.
# The body of a scan is a function of the lowered module; its marks are the importer's.
WITHOUT_LOOPS = {"call_lowered", "debug", "scan", "scan.end", "scan.state", "scan.step"}
LOOPS = (FLower, FBody, FDefinition, FSimplifyInference)
OPS = [op for op in all_ops() if any(op in table for table in LOOPS)]
# Too particular for random types: they have tests below or of their own.
RARELY_FIT = {
    "nn.conv2d", "nn.conv2d_transpose", "nn.matmul", "nn.integer_softmax", "arange",
    "nn.fixed_point_softmax", "image.mix",
    "scatter_nd",
}  # fmt: skip


def assert_agrees(got: Sequence[Any], want: Sequence[Any]) -> None:
    assert [(a.shape, a.dtype) for a in got] == [(a.shape, a.dtype) for a in want]
    for a, b in zip(got, want):
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
        else:
            # Sums in another order, whose error goes with their terms; float16 has 11 bits.
            rtol = 2e-3 if a.dtype == np.float16 else 1e-5
            finite = np.abs(b[np.isfinite(b)].astype(np.float64))
            atol = 1e-6 * max(1.0, float(finite.max(initial=0)))
            np.testing.assert_allclose(
                a.astype(np.float64), b.astype(np.float64), rtol=rtol, atol=atol
            )


def check(op: Op, attrs: Attrs | None, types: Sequence[Type], values: Sequence[Value]) -> bool:
    """Compares on these values; False where the operator is not defined for them."""
    result = result_type(op, attrs, types)
    assert result is not None
    try:
        want = flatten([evaluate_op(op, attrs, values, result)])
    except CompilerError:
        return False
    loops = lower_call(op, attrs, types)
    assert_agrees(loops.evaluate(flatten(list(values))), want)
    constants: list[Any] = []

    def constant(array: Any) -> str:
        constants.append(array)
        return f"meta[relay.Constant][{len(constants) - 1}]"

    text = loops.definition("main", constant)
    assert parse_primfunc(text, tuple(constants)).digest() == loops.digest()
    return True


def extreme_value(ty: Type, rng: np.random.Generator) -> Value:
    """Any value of the dtype, smallest and largest often among them."""
    if not isinstance(ty, TensorType):
        return tuple(extreme_value(part, rng) for part in tensor_fields(ty))
    dtype, shape = storage_dtype(ty.dtype), ty.concrete_shape
    if dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape) * 3).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, shape)).astype(bool)
    info = np.iinfo(dtype)
    values = np.asarray(rng.integers(info.min, info.max, shape, dtype, endpoint=True))
    edge = rng.random(shape)
    return np.where(edge < 0.2, info.min, np.where(edge > 0.8, info.max, values)).astype(dtype)


def test_every_operator_has_loops() -> None:
    missing = {op.name for op in set(all_ops()) - set(OPS) if not op.name.startswith("test.")}
    assert missing == WITHOUT_LOOPS
    assert "FLower, LowerTE" in matrix("nn.conv2d")


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_loops_compute_what_numpy_does(op: Op) -> None:
    plain, _ = accepted_calls(op, seed=5, tries=300, vary_attrs=False)
    varied, _ = accepted_calls(op, seed=6, tries=160)
    rng = np.random.default_rng(0)
    done = 0
    for attrs, types, result in plain[:12] + varied[:24]:
        if any(is_dynamic(ty) for ty in (*types, result)):
            continue
        done += check(op, attrs, types, [random_value(ty, rng) for ty in types])
    assert done or op.name in RARELY_FIT


INTEGER_ARITHMETIC = (
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "floor_divide", "floor_mod",
    "mod", "trunc_mod", "negative", "abs", "sign", "nn.relu", "clip", "cast",
    "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "less", "where", "sum", "mean",
    "max", "min", "prod", "argmax", "argmin", "nn.dense", "nn.batch_matmul", "nn.avg_pool2d",
    "nn.max_pool2d", "nn.global_avg_pool2d", "nn.adaptive_avg_pool2d", "cumsum",
    "nn.bias_add", "concatenate", "lookup",
)  # fmt: skip


@pytest.mark.parametrize("name", INTEGER_ARITHMETIC)
def test_integers_wrap_truncate_and_saturate_alike_at_the_ends_of_their_range(name: str) -> None:
    op = get_op(name)
    calls, _ = accepted_calls(op, seed=7, tries=160)
    rng = np.random.default_rng(1)
    static = [call for call in calls[:24] if not any(is_dynamic(ty) for ty in (*call[1], call[2]))]
    for attrs, types, _ in each(static):
        check(op, attrs, types, [extreme_value(ty, rng) for ty in types])


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_fixed_point_factors_agree_for_every_multiplier_and_shift(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(("int32", "int64", "int16", "int8")))
    shift = data.draw(st.integers(-40, 4))
    multiplier = data.draw(st.sampled_from((0, 1 << 30, (1 << 31) - 1, 1518500250)))
    ty = TensorType((1, 3, 5), dtype)
    # The contract of the operator: |x * 2^max(shift, 0)| < 2^32.
    bound = min(1 << 27, int(np.iinfo(dtype).max))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    x = rng.integers(-bound, bound, ty.concrete_shape).astype(dtype)
    op = get_op("fixed_point_multiply")
    assert op.attrs_type is not None
    assert check(op, op.attrs_type.make(multiplier=multiplier, shift=shift), [ty], [x])
    per_axis = get_op("fixed_point_multiply_per_axis")
    assert per_axis.attrs_type is not None
    vector = TensorType((3,), "int32")
    factors = np.array([multiplier, 1 << 30, 1234567890], np.int32)
    shifts = np.array([shift, -shift % 5, -3], np.int32)
    assert check(per_axis, per_axis.attrs_type.make(), [ty, vector, vector], [x, factors, shifts])


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[dict[str, Any], list[TensorType]]:
    groups = draw(st.integers(1, 3))
    per_group = draw(st.integers(1, 3))
    filters = groups * draw(st.integers(1, 2))
    kernel = [draw(st.integers(1, 3)) for _ in range(2)]
    dilation = [draw(st.integers(1, 2)) for _ in range(2)]
    dtype, kernel_dtype, out = draw(
        st.sampled_from(
            (
                ("int8", "int8", "int32"), ("uint8", "int8", "int32"), ("int16", "int16", "int64"),
                ("int8", "int8", "int8"), ("int16", "int8", "int32"), ("float32",) * 3,
            )
        )
    )  # fmt: skip
    attrs = {
        "strides": [draw(st.integers(1, 2)) for _ in range(2)],
        "padding": [draw(st.integers(0, 2)) for _ in range(4)],
        "dilation": dilation,
        "groups": groups,
        "out_dtype": out,
        "data_layout": draw(st.sampled_from(("NCHW", "NHWC"))),
    }
    size = [draw(st.integers(5, 8)) for _ in range(2)]
    shape = {"N": draw(st.integers(1, 2)), "C": groups * per_group, "H": size[0], "W": size[1]}
    data = tuple(shape[letter] for letter in attrs["data_layout"])
    return attrs, [
        TensorType(data, dtype),
        TensorType((filters, per_group, *kernel), kernel_dtype),
    ]


@settings(max_examples=50, deadline=None)
@given(convolutions(), st.integers(0, 1000))
def test_convolutions_agree(case: tuple[dict[str, Any], list[TensorType]], seed: int) -> None:
    attrs, types = case
    op = get_op("nn.conv2d")
    assert op.attrs_type is not None
    rng = np.random.default_rng(seed)
    assert check(op, op.attrs_type.make(**attrs), types, [extreme_value(ty, rng) for ty in types])


@settings(max_examples=40, deadline=None)
@given(convolutions(), st.integers(0, 1000))
def test_transposed_convolutions_agree(
    case: tuple[dict[str, Any], list[TensorType]], seed: int
) -> None:
    attrs, (data, weight) = case
    filters, per_group, *kernel = weight.concrete_shape
    channels = attrs["groups"] * per_group
    kernel_type = TensorType((channels, filters // attrs["groups"], *kernel), weight.dtype)
    attrs["padding"] = [min(p, 1) for p in attrs["padding"]]
    attrs["output_padding"] = [s - 1 for s in attrs["strides"]]
    op = get_op("nn.conv2d_transpose")
    assert op.attrs_type is not None
    rng = np.random.default_rng(seed)
    types = [data, kernel_type]
    assert check(op, op.attrs_type.make(**attrs), types, [extreme_value(ty, rng) for ty in types])


@settings(max_examples=25, deadline=None)
@given(st.booleans(), st.booleans(), st.sampled_from(("int8", "float32")), st.integers(0, 99))
def test_matrix_products_agree_on_both_sides_transposed_or_not(
    turned_a: bool, turned_b: bool, dtype: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    m, k, n = (int(size) for size in rng.integers(1, 6, 3))
    a, b = ((k, m) if turned_a else (m, k)), ((n, k) if turned_b else (k, n))
    wide = "int32" if dtype == "int8" else ""
    for name, lead in (("nn.matmul", ()), ("nn.batch_matmul", (3,))):
        op = get_op(name)
        assert op.attrs_type is not None
        attrs = op.attrs_type.make(transpose_a=turned_a, transpose_b=turned_b, out_dtype=wide)
        batch = (1,) if lead and seed % 2 else lead
        types = [TensorType((*lead, *a), dtype), TensorType((*batch, *b), dtype)]
        assert check(op, attrs, types, [extreme_value(ty, rng) for ty in types])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("int8", "uint8", "int16")), st.integers(-3, 2), st.integers(0, 99))
def test_the_integer_softmax_agrees(dtype: str, axis: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = TensorType((2, 3, 5), dtype)
    length = int(rng.integers(1, 300))
    table = np.sort(rng.integers(-3, 1 << 24, length).astype(np.int32))[::-1].copy()
    op = get_op("nn.integer_softmax")
    assert op.attrs_type is not None
    types = [data, TensorType((length,), "int32")]
    attrs = op.attrs_type.make(axis=axis, out_bits=int(rng.integers(1, 20)))
    assert check(op, attrs, types, [extreme_value(data, rng), table])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("int8", "uint8")), st.integers(-3, 2), st.integers(0, 99))
def test_the_fixed_point_softmax_agrees(dtype: str, axis: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = TensorType((2, 3, 5), dtype)
    length = int(rng.integers(1, 300))
    table = np.sort(rng.integers(-3, (1 << 31) - 1, length).astype(np.int32))[::-1].copy()
    op = get_op("nn.fixed_point_softmax")
    assert op.attrs_type is not None
    types = [data, TensorType((length,), "int32")]
    assert check(op, op.attrs_type.make(axis=axis), types, [extreme_value(data, rng), table])


@settings(max_examples=25, deadline=None)
@given(st.sampled_from(("int8", "int16")), st.booleans(), st.integers(0, 99))
def test_the_integer_standardization_agrees(dtype: str, centred: bool, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = TensorType((2, 7), dtype)
    op = get_op("nn.integer_standardize")
    assert op.attrs_type is not None
    attrs = op.attrs_type.make(epsilon=int(rng.integers(0, 99)), root_bits=3, centred=centred)
    assert check(op, attrs, [data], [extreme_value(data, rng)])


def test_ranges_of_integers_and_floats_agree() -> None:
    op = get_op("arange")
    assert op.attrs_type is not None
    for dtype, (start, stop, step) in (("int32", (3, 20, 4)), ("float32", (0.5, 3.0, 0.25))):
        scalar = TensorType((), dtype)
        attrs = op.attrs_type.make(start=start, stop=stop, step=step)
        values = [np.array(v, dtype) for v in (start, stop, step)]
        assert check(op, attrs, [scalar] * 3, values)


@pytest.mark.parametrize("bound", [float("nan"), float("inf")])
def test_a_range_without_a_finite_count_has_no_type(bound: float) -> None:
    op = get_op("arange")
    assert op.attrs_type is not None
    attrs = op.attrs_type.make(start=0.0, stop=bound, step=1.0)
    with pytest.raises(TypeInferenceError, match="is no finite count"):
        result_type(op, attrs, [TensorType((), "float32")] * 3)


def test_scattering_is_a_library_routine() -> None:
    rng = np.random.default_rng(0)
    scatter = get_op("scatter_nd")
    assert scatter.attrs_type is not None
    data = rng.integers(0, 9, (4, 3)).astype(np.int32)
    index, updates = np.array([[3, 0, 3]]), np.arange(9, dtype=np.int32).reshape(3, 3)
    values = [data, index, updates]
    types = [TensorType(v.shape, str(v.dtype)) for v in values]
    for mode in ("update", "add", "max"):
        assert check(scatter, scatter.attrs_type.make(mode=mode), types, values)


@pytest.mark.parametrize("method", ["nearest_neighbor", "linear", "cubic"])
@pytest.mark.parametrize("size", [(6, 10), (3, 2), (7, 5)])
def test_resizing_agrees_in_both_layouts(method: str, size: tuple[int, int]) -> None:
    op = get_op("image.resize2d")
    assert op.attrs_type is not None
    rng = np.random.default_rng(0)
    modes = ("half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel")
    for coordinates in modes:
        for layout, shape in (("NCHW", (1, 2, 3, 5)), ("NHWC", (1, 3, 5, 2))):
            attrs = op.attrs_type.make(
                size=size, method=method, layout=layout, coordinate_transformation_mode=coordinates
            )
            ty = TensorType(shape, "float32")
            assert check(op, attrs, [ty], [extreme_value(ty, rng)])


@pytest.mark.parametrize("weights", [TensorType((4, 2), "int16"), TensorType((4,), "int32")])
def test_weights_that_do_not_fit_the_places_have_no_type(weights: TensorType) -> None:
    op = get_op("image.mix")
    assert op.attrs_type is not None
    types = [TensorType((1, 3), "int8"), TensorType((4, 2), "int64"), weights]
    with pytest.raises(TypeInferenceError, match="axis 1 has places"):
        result_type(op, op.attrs_type.make(axes=(1,)), types)


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("name", ["nn.space_to_depth", "nn.depth_to_space"])
def test_blocks_of_no_channels_become_loops(name: str, mode: str) -> None:
    op = get_op(name)
    assert op.attrs_type is not None
    empty = np.zeros((2, 0, 4, 4), np.float32)
    attrs = op.attrs_type.make(block_size=2, mode=mode)
    assert check(op, attrs, [TensorType(empty.shape, "float32")], [empty])
