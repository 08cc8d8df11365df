from __future__ import annotations

import importlib
import itertools
import math
import pkgutil
import random
import sys
from typing import Any

import numpy as np
import pytest

import compiler.ops
from compiler.errors import AttrError, CompilerError, TypeInferenceError, UnknownOpError
from compiler.ir.expr import Op
from compiler.ir.op import OpPattern, all_ops
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import IncompleteType, TensorType, TupleType, Type, tensor_fields
from compiler.ops.__main__ import matrix
from compiler.ops.evaluate import evaluate_op, flatten
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.numpy_compute import FNumpyCompute

# Values for attributes that have no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "nn.max_pool2d": {"pool_size": (2, 2)},
    "nn.avg_pool2d": {"pool_size": (2, 2)},
    "nn.group_norm": {"num_groups": 1},
    "nn.l2_normalize": {"eps": 1e-6, "axis": (1,)},
    "nn.pad": {"pad_width": ((0, 1), (1, 0))},
    "clip": {"a_min": -1.0, "a_max": 1.0},
    "cast": {"dtype": "int8"},
    "zeros": {"shape": (2,)},
    "ones": {"shape": (2,)},
    "full": {"shape": (2,)},
    "fixed_point_multiply": {"multiplier": 1 << 30, "shift": 1},
    "einsum": {"equation": "ij,jk->ik"},
    "reshape": {"newshape": (-1,)},
    "expand_dims": {"axis": 0},
    "split": {"indices_or_sections": 1},
    "strided_slice": {"begin": (0,), "end": (1,)},
    "gather": {"axis": 0},
    "broadcast_to": {"shape": (2, 3)},
    "tile": {"reps": (2,)},
    "repeat": {"repeats": 2},
    "reverse": {"axis": 0},
    "layout_transform": {"src_layout": "NCHW", "dst_layout": "NHWC"},
    "one_hot": {"depth": 3},
    "image.resize2d": {"size": (3, 3)},
    "annotation.cast_hint": {"dtype": "int8"},
    "relay.op.annotation.simulated_quantize": {"kind": 1},
}
SHAPES = [(), (1,), (2,), (3,), (2, 3), (3, 2), (1, 2, 3), (2, 3, 3), (1, 2, 3, 3), (2, 2, 1, 1)]
DTYPES = ["float32", "float16", "int8", "int32", "int64", "uint8", "bool"]


class _Assigning:
    """A solver that only knows equality, which is all that relations of known types need."""

    def __init__(self) -> None:
        self.found: dict[int, Type] = {}

    def assign(self, dst: Type, src: Type) -> None:
        if isinstance(dst, IncompleteType):
            self.found[id(dst)] = src
        elif dst != src:
            raise TypeInferenceError(f"{dst} is not {src}")


def result_of(op: Op, types: tuple[Type, ...]) -> Type | None:
    attrs = op.attrs_type.make(**REQUIRED.get(op.name, {})) if op.attrs_type else None
    hole, solver = IncompleteType(), _Assigning()
    if not op.rel((*types, hole), len(types), attrs, solver):
        return None
    return solver.found[id(hole)]


def random_type(op: Op, rng: random.Random) -> Type:
    if op.arg_names == ("data",) and op.name in ("concatenate", "stack", "einsum"):
        first = TensorType(rng.choice(SHAPES), rng.choice(DTYPES))
        second = first if rng.random() < 0.7 else TensorType(rng.choice(SHAPES), "float32")
        return TupleType((first, second)) if rng.random() < 0.9 else first
    if rng.random() < 0.05:
        return TupleType((TensorType((2,)),))
    return TensorType(rng.choice(SHAPES), rng.choice(DTYPES))


def random_value(ty: Type, rng: np.random.Generator) -> Any:
    if isinstance(ty, TupleType):
        return tuple(random_value(f, rng) for f in ty.fields)
    assert isinstance(ty, TensorType)
    return rng.integers(0, 3, ty.concrete_shape).astype(storage_dtype(ty.dtype))


def accepted_and_refused(op: Op) -> tuple[list[tuple[tuple[Type, ...], Type]], int]:
    rng = random.Random(op.name)
    accepted, refused = [], 0
    for _ in range(400):
        types = tuple(random_type(op, rng) for _ in op.arg_names)
        if len(types) > 1 and rng.random() < 0.6:
            dtype = rng.choice(DTYPES)
            types = tuple(
                TensorType(t.shape, dtype) if isinstance(t, TensorType) else t for t in types
            )
        try:
            result = result_of(op, types)
        except TypeInferenceError:
            refused += 1
            continue
        if result is not None:
            accepted.append((types, result))
    return accepted, refused


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_relations_refuse_unfit_types_with_a_type_error_only(op: Op) -> None:
    accepted, refused = accepted_and_refused(op)
    assert accepted or refused
    unconditional = {"zeros", "ones"}
    assert refused or op.name in unconditional | {
        "annotation.cast_hint",
        "annotation.stop_fusion",
        "annotation.on_device",
        "device_copy",
    }


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_numpy_results_have_the_inferred_shape_and_dtype(op: Op) -> None:
    rng = np.random.default_rng(0)
    accepted, _ = accepted_and_refused(op)
    attrs = op.attrs_type.make(**REQUIRED.get(op.name, {})) if op.attrs_type else None
    for types, result in accepted[:12]:
        if op.name == "fixed_point_multiply_per_axis":
            continue
        values = [random_value(t, rng) for t in types]
        if op.name == "arange":
            values = [np.asarray(v, values[0].dtype) for v in (0, 3, 1)]
        got = flatten([evaluate_op(op, attrs, values, result)])
        want = tensor_fields(result)
        assert [str(a.dtype) for a in got] == [t.dtype for t in want], (types, result)
        for array, ty in zip(got, want):
            known = [d for d in ty.shape if not isinstance(d, AnyDim)]
            assert len(array.shape) == len(ty.shape)
            assert len(known) < len(ty.shape) or array.shape == ty.shape, (types, result)


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_every_operator_has_numpy_semantics_and_a_pattern(op: Op) -> None:
    assert op in FNumpyCompute
    assert isinstance(op.pattern, OpPattern)


def test_every_module_of_the_operator_folders_is_imported_by_the_package() -> None:
    found = {
        m.name
        for m in pkgutil.walk_packages(compiler.ops.__path__, "compiler.ops.")
        if m.name.count(".") == 3 and ".rules." not in m.name
    }
    text = importlib.import_module("compiler.ops").__file__
    assert text is not None
    with open(text, encoding="utf-8") as file:
        source = file.read()
    missing = [name for name in sorted(found) if f"import {name}\n" not in source]
    assert not missing, "add these imports to compiler/ops/__init__.py"
    assert found <= set(sys.modules)


def test_the_table_has_a_row_per_operator() -> None:
    rows = {line.split()[0] for line in matrix().splitlines() if line.strip()}
    assert {op.name for op in all_ops()} <= rows
    assert "nn.dense" not in matrix("conv2d")


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
        ("relay.op.annotation.simulated_quantize", "kind sign rounding axis"),
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
    for op in all_ops():
        if op.attrs_type is not None:
            given = REQUIRED.get(op.name, {})
            a, b = op.attrs_type.make(**given), op.attrs_type.make(**given)
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
