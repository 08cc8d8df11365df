from __future__ import annotations

import itertools
import math
import pkgutil
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import compiler.ops
from compiler import relay
from compiler.errors import AttrError, CompilerError, UnknownOpError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, all_ops
from compiler.ir.ty import is_dynamic, tensor_fields
from compiler.ops.__main__ import matrix
from compiler.ops.evaluate import evaluate_op, flatten
from compiler.ops.nn.conv2d import Conv2DAttrs
from compiler.ops.nn.softmax import SoftmaxAttrs
from compiler.ops.number_format import storage_dtype
from compiler.ops.op_call import op_call
from compiler.ops.rules.numpy_compute import FNumpyCompute
from tests.compiler.random_graphs import REQUIRED, accepted_calls, plain_attrs, random_value
from tests.each import each

# Other tests register operators of their own; the callee of call_lowered and of scan is a function,
# no value; the marks of an open loop have none.
OPS = [
    op
    for op in all_ops()
    if not op.name.startswith(("test.", "scan")) and op.name != "call_lowered"
]

# Their arguments differ too much for random types; they have tests of their own.
RARELY_FIT = {"scatter_nd", "nn.fixed_point_softmax", "image.mix"}
UNCONDITIONAL = {
    "zeros",
    "ones",
    "annotation.cast_hint",
    "annotation.stop_fusion",
    "on_device",
    "device_copy",
    "debug",
}


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_relations_refuse_unfit_types_and_attributes_with_a_type_error_only(op: Op) -> None:
    plain, refused = accepted_calls(op, seed=0, tries=300, vary_attrs=False)
    assert plain or op.name in RARELY_FIT
    assert refused or op.name in UNCONDITIONAL
    accepted_calls(op, seed=1, tries=300)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_numpy_results_have_the_inferred_shape_and_dtype(op: Op) -> None:
    rng = np.random.default_rng(0)
    plain, _ = accepted_calls(op, seed=0, tries=200, vary_attrs=False)
    varied, _ = accepted_calls(op, seed=2, tries=200)
    calls = plain[:20] + varied[:40]
    assert calls or op.name in RARELY_FIT
    for attrs, types, result in calls:
        if any(is_dynamic(t) for t in types):
            continue
        try:
            got = flatten([evaluate_op(op, attrs, [random_value(t, rng) for t in types], result)])
        except CompilerError:  # a value it is not defined for; any other exception fails
            continue
        want = tensor_fields(result)
        for array, ty in each(zip(got, want, strict=True)):
            assert array.dtype == storage_dtype(ty.dtype), (attrs, types, result)
            assert is_dynamic(ty) or array.shape == ty.shape or op.name == "arange", (attrs, types)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_plain_calls_have_a_value(op: Op) -> None:
    rng = np.random.default_rng(0)
    plain, _ = accepted_calls(op, seed=0, tries=600, vary_attrs=False)
    static = [
        c
        for c in plain
        if not any(is_dynamic(t) or 0 in f.shape for t in c[1] for f in tensor_fields(t))
    ]
    assert static or op.name in RARELY_FIT
    for attrs, types, result in static[:10]:
        values = [random_value(t, rng) for t in types]
        if op.name == "arange":
            values[2] = np.ones_like(values[2])  # a step of 0 has no meaning
        evaluate_op(op, attrs, values, result)


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_operator_has_numpy_semantics_and_a_pattern(op: Op) -> None:
    assert op in FNumpyCompute
    assert isinstance(op.pattern, OpPattern)


def test_every_module_of_the_operator_folders_is_imported_by_the_package() -> None:
    found = {
        m.name
        for m in pkgutil.walk_packages(compiler.ops.__path__, "compiler.ops.")
        if m.name.count(".") == 3 and ".rules." not in m.name
    }
    assert found <= set(sys.modules)


def test_the_table_has_a_row_per_operator() -> None:
    rows = {line.split()[0] for line in matrix().splitlines() if line.strip()}
    assert {op.name for op in all_ops()} <= rows
    assert "nn.dense" not in matrix("conv2d")


def test_the_table_shows_what_exporters_and_the_proof_ask() -> None:
    shown = matrix("nn.conv2d")
    for name in ("FToOnnx", "FToInteger", "FRange"):
        assert f"  {name}, " in shown


def test_a_call_is_built_with_the_attributes_of_its_operator_and_no_others() -> None:
    x, w = relay.var("x", (1, 3, 8, 8)), relay.var("w", (4, 3, 3, 3))
    call = op_call("nn.conv2d", x, w, padding=(1, 1, 1, 1))
    assert Conv2DAttrs.of(call).padding == (1, 1, 1, 1)
    assert relay.op.nn.conv2d(x, w, padding=(1, 1, 1, 1)).attrs == call.attrs
    with pytest.raises(AttrError, match="a call was expected to have SoftmaxAttrs"):
        SoftmaxAttrs.of(call)
    with pytest.raises(AttrError, match="add has no attributes"):
        op_call("add", x, x, axis=1)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        (
            "nn.conv2d",
            "strides padding dilation groups channels kernel_size data_layout kernel_layout "
            "out_layout out_dtype",
        ),
        ("nn.dense", "units out_dtype"),
        ("nn.batch_matmul", "out_dtype transpose_a transpose_b"),
        ("nn.matmul", "units out_dtype transpose_a transpose_b"),
        ("nn.max_pool2d", "pool_size strides dilation padding layout out_layout ceil_mode"),
        ("nn.batch_norm", "axis epsilon center scale"),
        ("strided_slice", "begin end strides slice_mode axes"),
        ("clip", "a_min a_max"),
        ("mean", "axis keepdims exclude"),
        ("variance", "axis keepdims exclude unbiased"),
        ("relay.op.annotation.simulated_quantize", "kind sign rounding axis bits given name"),
    ],
)
def test_attributes_are_declared_in_the_order_of_the_text_format(name: str, fields: str) -> None:
    record = Op.get(name).attrs_type
    assert record is not None
    values = record.make(**REQUIRED.get(name, {}))
    assert [key for key, _ in values.items()] == fields.split()


def test_attribute_values_become_plain_python_values() -> None:
    attrs = Op.get("nn.conv2d").attrs_type.make(
        strides=[np.int64(2), 2], padding=1, channels=np.int32(4), kernel_size=3
    )
    values = dict(attrs.items())
    assert values["strides"] == (2, 2)
    assert values["padding"] == (1, 1, 1, 1)
    assert type(values["channels"]) is int
    assert values["kernel_size"] == (3, 3)
    assert [k for k, _ in attrs.non_default_items()] == [
        "strides",
        "padding",
        "channels",
        "kernel_size",
    ]


@dataclass(frozen=True, eq=False)
class _Values(Attrs):
    """A value of any kind, beside others."""

    value: Any = 0.0
    pair: tuple[Any, ...] = (1, 2)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, True, False),
        (1, 1.0, False),
        (0.0, -0.0, False),
        ((1, 2), (1, 2), True),
        ((1, 2), (1, 2, 3), False),
        ((1, (2.0, "a")), (1, (2.0, "a")), True),
        ((0.0,), (-0.0,), False),
        ((1,), (True,), False),
        ("1", 1, False),
        (None, 0, False),
        (float("nan"), float("nan"), True),
        ((float("nan"),), (float("nan"),), True),
        (1.5, np.float64(1.5), True),
        (10**30, 10**30, True),
    ],
    ids=repr,
)
def test_attributes_are_equal_by_kind_and_bits(one: Any, other: Any, equal: bool) -> None:
    left, right = _Values(one), _Values(other)
    assert (left == right) is (right == left) is equal
    assert (hash(left) == hash(right)) is equal
    assert (left != _Values(one, (1, 3))) is True

    @dataclass(frozen=True, eq=False)
    class Defaulted(Attrs):
        value: Any = one

    assert [name for name, _ in Defaulted(other).non_default_items()] == ["value"] * (not equal)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("nn.conv2d", {"stride": 1}, ["stride", "strides"]),
        ("nn.conv2d", {"padding": (1, 2, 3)}, ["padding", "3 values"]),
        ("nn.conv2d", {"strides": (0, 1)}, ["strides"]),
        ("clip", {"a_min": 0.0}, ["a_max", "required"]),
        ("cast", {"dtype": "int7"}, ["dtype", "int8"]),
        ("nn.softmax", {"axis": 1.5}, ["axis", "1.5"]),
        ("reshape", {"newshape": "3"}, ["newshape"]),
    ],
)
def test_wrong_attributes_are_refused_by_name(
    name: str, values: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(AttrError) as caught:
        Op.get(name).attrs_type.make(**values)
    assert all(word in str(caught.value) for word in words)


def test_an_unknown_operator_names_its_neighbours() -> None:
    with pytest.raises(UnknownOpError, match=r"nn\.conv2d"):
        Op.get("nn.conv2dd")


def test_attributes_of_every_operator_equal_their_copies() -> None:
    for op in each(all_ops()):
        a, b = plain_attrs(op), plain_attrs(op)
        assert a == b
        assert hash(a) == hash(b)


def test_padding_counts_multiply_out() -> None:
    for sides in itertools.product((0, 1, 2), repeat=2):
        attrs = Op.get("nn.conv2d").attrs_type.make(padding=sides)
        assert attrs.padding == (*sides, *sides)
        assert math.prod(attrs.strides) == 1


def test_an_operator_without_semantics_is_an_error_that_names_it() -> None:
    ghost = Op("ghost", ("x",), 1)
    with pytest.raises(CompilerError, match="ghost"):
        FNumpyCompute.require(ghost)
