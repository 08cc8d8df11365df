"""Scatters: the last update of a place stays, sums wrap, indices outside are the nearest place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import TypeInferenceError
from compiler.export.to_onnx.float.model import to_onnx
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.dataflow import dataflow
from compiler.ir.module import IRModule
from compiler.ranges.analysis import ranges_of
from compiler.targets.c.executor import CExecutor
from compiler.targets.engine.executor import EngineExecutor
from tests.compiler.core.test_bodies import check, values

Array = NDArray[Any]
op = relay.op
MODES = ("update", "add", "max", "min")
INTEGERS = ("int8", "uint8", "int16", "int32", "int64")


def one_by_one(data: Array, places: Array, updates: Array, mode: str) -> Array:
    """The rows of ``data`` with each update written in turn."""
    out = data.copy()
    for row, update in zip(np.clip(places, 0, len(data) - 1), updates):
        with np.errstate(over="ignore"):
            both = {
                "update": update,
                "add": out[row] + update,
                "max": np.maximum(out[row], update),
                "min": np.minimum(out[row], update),
            }
        out[row] = both[mode]
    return out


def scattered(
    shapes: tuple[int, int, int], dtype: str, index: str, mode: str, places: Array | None
) -> IRModule:
    """Updates (e, w) into data (n, w), at given places or at those of an input."""
    rows, width, count = shapes
    data = relay.var("data", (rows, width), dtype)
    updates = relay.var("updates", (count, width), dtype)
    at = relay.var("places", (1, count), index) if places is None else relay.const(places)
    return relay.module(op.scatter_nd(data, at, updates, mode=mode))


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 30)),
    dtype=st.sampled_from(INTEGERS),
    index=st.sampled_from(("int8", "int32", "int64", "uint8", "uint32")),
    mode=st.sampled_from(MODES),
    known=st.booleans(),
    seed=st.integers(0, 1 << 20),
)
def test_every_form_scatters_as_one_update_after_the_other(
    shapes: tuple[int, int, int], dtype: str, index: str, mode: str, known: bool, seed: int
) -> None:
    rows, width, count = shapes
    near = np.random.default_rng(seed).integers(-2, rows + 2, (1, count))
    places = np.where(near % 5, near.astype(index), values(index, (1, count), seed)).astype(index)
    data, updates = values(dtype, (rows, width), seed), values(dtype, (count, width), seed + 1)
    mod = scattered(shapes, dtype, index, mode, places if known else None)
    held = {"data": data, "places": places, "updates": updates}
    names = [param.name_hint for param in mod["main"].params]
    inputs = {name: held[name] for name in names}
    wanted = one_by_one(data, places[0].astype("int64"), updates, mode)
    np.testing.assert_array_equal(compiler.evaluate(mod, inputs)[0], wanted)
    if index != "uint32":
        engine = EngineExecutor(mod, isa="generic")
        np.testing.assert_array_equal(engine.run([*inputs.values()])[0], wanted)
    model = to_integer_onnx(mod)
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    np.testing.assert_array_equal(session.run(None, inputs)[0], wanted)


@pytest.mark.parametrize("mode", [*MODES, "mul"])
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32"])
def test_generated_c_scatters_as_the_reference(dtype: str, mode: str) -> None:
    mod = scattered((5, 3, 11), dtype, "int64", mode, None)
    rng = np.random.default_rng(0)
    data, updates = (rng.integers(-9, 9, (n, 3)).astype(dtype) for n in (5, 11))
    for places in (rng.integers(-3, 8, (1, 11)), values("int64", (1, 11))):
        inputs = [data, places, updates]
        np.testing.assert_array_equal(
            CExecutor(mod).run(inputs)[0], compiler.evaluate(mod, inputs)[0]
        )


@pytest.mark.parametrize("mode", MODES)
def test_scatters_of_tuples_are_scatters_of_rows(mode: str) -> None:
    data = values("int16", (4, 5, 3))
    x, rng = relay.var("x", (4, 5, 3), "int16"), np.random.default_rng(1)
    for named in (1, 2, 3):
        index = rng.integers(-2, 7, (named, 2, 4))
        updates = values("int16", (2, 4, *data.shape[named:]), named)
        u = relay.var("u", updates.shape, "int16")
        i = relay.var("i", index.shape, "int64")
        check(op.scatter_nd(x, relay.const(index), u, mode=mode), {x: data, u: updates})
        check(op.scatter_nd(x, i, u, mode=mode), {x: data, i: index, u: updates})


@pytest.mark.parametrize("mode", MODES)
def test_floats_are_scattered_in_onnx_too(mode: str) -> None:
    mod = scattered((5, 3, 11), "float32", "int64", mode, None)
    rng = np.random.default_rng(0)
    inputs = {
        "data": rng.normal(size=(5, 3)).astype("f4"),
        "places": rng.integers(0, 5, (1, 11)),
        "updates": rng.normal(size=(11, 3)).astype("f4"),
    }
    session = onnxruntime.InferenceSession(to_onnx(mod).SerializeToString())
    np.testing.assert_allclose(
        session.run(None, inputs)[0], compiler.evaluate(mod, inputs)[0], rtol=1e-6
    )


def bounds_of_sums(places: Array | None, count: int) -> tuple[int, int]:
    """Bounds of sums of int8 at rows, as the proof finds them."""
    updates = relay.var("updates", (count, 2), "int8")
    at = relay.var("places", (1, count), "int64") if places is None else relay.const(places)
    zeros = relay.const(np.zeros((4, 2), "int32"))
    wide = op.cast(updates, dtype="int32")
    mod = relay.module(op.scatter_nd(zeros, at, wide, mode="add"))
    (found,) = ranges_of(dataflow(mod)).intermediates
    assert "updates" in found.what
    return found.low, found.high


def test_a_sum_is_bounded_by_the_updates_that_can_meet() -> None:
    assert bounds_of_sums(None, 6) == (6 * -128, 6 * 127)
    assert bounds_of_sums(np.array([[0, 1, 1, 3, 1, 0]]), 6) == (3 * -128, 3 * 127)
    # Indices outside meet at the ends.
    assert bounds_of_sums(np.array([[-7, 0, -1, 9, 3, 2]]), 6) == (3 * -128, 3 * 127)


def test_a_sum_that_may_overflow_is_named() -> None:
    at, updates = relay.var("at", (1, 300), "int64"), relay.var("u", (300, 1), "int8")
    zeros = relay.const(np.zeros((4, 1), "int16"))
    call = op.scatter_nd(zeros, at, op.cast(updates, dtype="int16"), mode="add")
    (finding,) = ranges_of(dataflow(relay.module(call))).findings
    assert finding.bound == 300 * -128
    assert "the sum of 300 updates may reach -38400, int16 ends at -32768" in finding.what


def test_a_tensor_without_rows_takes_no_updates() -> None:
    data, updates = relay.var("x", (0, 2), "int8"), relay.var("u", (3, 2), "int8")
    with pytest.raises(TypeInferenceError, match="have no place"):
        relay.module(op.scatter_nd(data, relay.var("i", (1, 3), "int32"), updates))


def test_time_and_memory_are_those_of_data_and_updates() -> None:
    """All pairs of these would be 2^36."""
    rows = 1 << 18
    mod = scattered((rows, 1, rows), "int8", "int32", "add", None)
    rng = np.random.default_rng(0)
    inputs = [
        rng.integers(-9, 9, (rows, 1)).astype("int8"),
        rng.integers(0, rows, (1, rows)).astype("int32"),
        rng.integers(-9, 9, (rows, 1)).astype("int8"),
    ]
    engine = EngineExecutor(mod, isa="generic")
    assert engine.plan.arena_bytes < 32 * math.prod((rows,))
    np.testing.assert_array_equal(engine.run(inputs)[0], compiler.evaluate(mod, inputs)[0])
