"""Every output channel of a product with a constant has a scale of its own, in every spelling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.helper import make_node

from compiler import evaluate
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, prerequisite_optimize
from compiler.targets.engine.executor import EngineExecutor
from tests.compiler.quantize.candidates import assert_same_integers, calibrated

SAMPLES = 32
LEAST_DB = 33.0
"""Least SQNR of the smallest channel: 8 bits of data and of weights give some 38."""
K, UNITS = 64, 72  # more elements than the importer folds
Array = np.ndarray[Any, np.dtype[Any]]


class Case(NamedTuple):
    nodes: list[onnx.NodeProto]
    held: dict[str, Array]
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    """Axes of the result along which the channels lie."""


def drawn(*shape: int) -> Array:
    """A weight."""
    return np.random.default_rng(len(shape)).normal(0, 1, shape).astype(np.float32)


def steps(*shape: int) -> Array:
    """Powers from 1 to 1e-3, as many as channels."""
    return np.logspace(0, -3, int(np.prod(shape)), dtype=np.float32).reshape(shape)


def behind(kind: str) -> Callable[[str, tuple[int, ...]], Case]:
    """A product whose weight a node computes."""
    weight = drawn(K, UNITS) * steps(UNITS)
    node, held = {
        "Identity": (make_node("Identity", ["w"], ["v"]), {"w": weight}),
        "Cast": (make_node("Cast", ["w"], ["v"], to=1), {"w": weight.astype(np.float64)}),
        "Transpose": (make_node("Transpose", ["w"], ["v"]), {"w": weight.T}),
        "Reshape": (make_node("Reshape", ["w", "s"], ["v"]), {"w": weight.ravel()}),
        "Mul": (make_node("Mul", ["w", "s"], ["v"]), {"w": drawn(K, UNITS), "s": steps(UNITS)}),
    }[kind]
    if kind == "Reshape":
        held["s"] = np.array([K, UNITS])

    def case(product: str, shape: tuple[int, ...], **attrs: Any) -> Case:
        last = make_node(product, ["x", "v"], ["y"], **attrs)
        return Case([node, last], held, shape, (len(shape) - 1,))

    return case


def product(kind: str, weight: Array, shape: Sequence[int], *axes: int, **attrs: Any) -> Case:
    """One node with a weight behind the data, or in front of them."""
    inputs = ["w", "x"] if kind == "left" else ["x", "w"]
    node = make_node("MatMul" if kind == "left" else kind, inputs, ["y"], **attrs)
    return Case([node], {"w": weight}, tuple(shape), axes)


def transposed(groups: int, spatial: int) -> Case:
    """A ConvTranspose of 4 channels to 8 with a bias."""
    scale = steps(8)
    taps = drawn(4, 8 // groups, *(3,) * spatial).reshape(groups, 4 // groups, 8 // groups, -1)
    weight = taps * scale.reshape(groups, 1, -1, 1)
    node = make_node("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2] * spatial, group=groups)
    held = {"w": weight.reshape(4, 8 // groups, *(3,) * spatial), "b": drawn(8) * scale}
    return Case([node], held, (1, 4, *(5, 4, 3)[:spatial]), (1,))


HEADS = drawn(4, 16, 12) * steps(4, 1, 12)
ROWS = drawn(40, K) * steps(40, 1)
CASES = {
    **{f"MatMul behind {kind}": behind(kind)("MatMul", (1, 6, K)) for kind in ("Cast", "Mul")},
    "MatMul behind Identity": behind("Identity")("MatMul", (4, K)),
    "Gemm behind Transpose": behind("Transpose")("Gemm", (4, K), alpha=0.5),
    "Einsum behind Reshape": behind("Reshape")("Einsum", (1, 6, K), equation="bmk,kn->bmn"),
    "Conv 1-D": product("Conv", drawn(40, 32, 5) * steps(40, 1, 1), (1, 32, 20), 1),
    "Conv 3-D": product(
        "Conv", drawn(8, 2, 3, 3, 3) * steps(8, 1, 1, 1, 1), (1, 4, 5, 5, 5), 1, group=2
    ),
    **{f"ConvTranspose {n}-D, {g} groups": transposed(g, n) for n, g in ((1, 1), (2, 2), (3, 4))},
    "heads": product("MatMul", HEADS, (4, 6, 16), 0, 2),
    "heads of two samples": product("MatMul", HEADS, (2, 4, 6, 16), 1, 3),
    "experts": product("MatMul", HEADS, (1, 6, 16), 0, 2),
    "Einsum of heads": product("Einsum", HEADS, (1, 6, 4, 16), 2, 3, equation="bmhk,hkn->bmhn"),
    "heads with a bias": Case(
        [make_node("MatMul", ["x", "w"], ["p"]), make_node("Add", ["p", "b"], ["y"])],
        {"w": HEADS, "b": drawn(4, 1, 12) * steps(4, 1, 12)},
        (4, 6, 16),
        (0, 2),
    ),
    "factors behind a product": Case(
        [make_node("MatMul", ["x", "w"], ["p"]), make_node("Mul", ["p", "s"], ["y"])],
        {"w": drawn(K, UNITS), "s": steps(UNITS)},
        (1, 6, K),
        (2,),
    ),
    "constant on the left": product("left", ROWS, (K, 9), 0),
    "constant left of a batch": product("left", ROWS, (2, K, 9), 1),
    "heads on the left": product("left", HEADS.swapaxes(1, 2), (4, 16, 9), 0, 1),
}


def imported(case: Case) -> IRModule:
    """The float module of a case."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, case.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(np.ascontiguousarray(v), name) for name, v in case.held.items()]
    graph = helper.make_graph(case.nodes, "g", [x], [y], held)
    opset = [helper.make_opsetid("", 17)]
    mod, params = load(helper.make_model(graph, opset_imports=opset).SerializeToString())
    return prerequisite_optimize(mod, params, 3, simplify=True)


@pytest.mark.parametrize("name", CASES)
def test_the_smallest_channel_keeps_its_bits_in_every_form(name: str) -> None:
    case, rng = CASES[name], np.random.default_rng(1)
    data = [{"x": rng.normal(0, 1, case.shape).astype(np.float32)} for _ in range(SAMPLES)]
    mod = imported(case)
    module = calibrated(mod, QConfig.recommended(), data).partitioned
    assert module is not None
    wanted, found = (np.stack([evaluate(m, one)[0] for one in data]) for m in (mod, module))
    axes = [axis + 1 for axis in case.axes]

    def power(values: Array) -> Array:
        others = tuple(axis for axis in range(values.ndim) if axis not in axes)
        return (values.astype(np.float64) ** 2).sum(axis=others)

    assert (10 * np.log10(power(wanted) / power(wanted - found))).min() > LEAST_DB
    assert_same_integers(module, data[:2])
    for one in data[:2]:
        np.testing.assert_array_equal(EngineExecutor(module).run(one)[0], evaluate(module, one)[0])
