"""Random graphs over every operator: text, transport, passes and ONNX leave their meaning alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import HealthCheck, assume, given, note, settings
from hypothesis import strategies as st

import compiler
from compiler import transform
from compiler.errors import OnnxExportError, OnnxImportError
from compiler.export.to_onnx.emitter import FToOnnx
from compiler.export.to_onnx.float.model import to_onnx
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.blob import ModuleBlob
from compiler.ir.expr import Call, Op
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.well_formed import well_formed
from tests.compiler.random_graphs import RandomGraph, random_graph, usable_ops

OPS = usable_ops()
EXPORTED = [op for op in OPS if op in FToOnnx]
PASSES = (
    "CancelTransposes",
    "HoistEpilogues",
    "SimplifyInference",
    "FoldConstant",
    "FoldScaleAxis",
    "CanonicalizeOps",
    "CanonicalizeCast",
    "SimplifyExpr",
    "EliminateCommonSubexpr",
    "DeadCodeElimination",
    "FuseOps",
    "PlanDevices",
)

randoms = st.randoms(use_true_random=False)
sizes = st.integers(1, 16)
many = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


def agree(found: Sequence[Any], wanted: Sequence[Any], rtol: float = 1e-3) -> None:
    """Integers exactly; floats as far as another order of sums and float16 steps allow."""
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        if a.dtype.kind != "f":
            np.testing.assert_array_equal(a, b)
        else:
            tolerance = max(rtol, 4 * float(np.finfo(a.dtype).eps))
            floor = tolerance * float(np.abs(b).max(initial=0.0)) + 1e-6
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=floor)


@many
@given(randoms, sizes)
def test_the_executor_gives_what_each_operator_gave(rng: random.Random, size: int) -> None:
    graph = random_graph(rng, size, OPS)
    assert not well_formed(graph.mod)
    agree(compiler.evaluate(graph.mod, graph.inputs), graph.expected, rtol=0)


@many
@given(randoms, sizes)
def test_text_and_transport_give_the_module_back(rng: random.Random, size: int) -> None:
    mod = random_graph(rng, size, OPS).mod
    text = compiler.text(mod)
    again = infer_module(compiler.parse(text))
    compiler.assert_structural_equal(again, mod)
    assert compiler.structural_hash(again) == compiler.structural_hash(mod)
    assert compiler.text(again, show_spans=False) == compiler.text(mod, show_spans=False)
    blob = ModuleBlob.pack(mod)
    compiler.assert_structural_equal(blob.unpack(), mod)
    assert ModuleBlob.pack(blob.unpack()).sha256 == blob.sha256


@settings(many, max_examples=60)
@given(randoms, sizes)
def test_a_pass_keeps_values_and_types(rng: random.Random, size: int) -> None:
    graph = random_graph(rng, size, OPS)
    for name in PASSES:
        note(name)
        with transform.PassContext(opt_level=3, verify=True):
            new = getattr(transform, name)()(graph.mod)
        assert new["main"].checked_type == graph.mod["main"].checked_type
        agree(compiler.evaluate(new, graph.inputs), graph.expected)


@many
@given(randoms, sizes)
def test_lowered_graphs_have_the_same_values(rng: random.Random, size: int) -> None:
    graph = random_graph(rng, size, OPS)
    lowered = compiler.lower(graph.mod, target="reference")
    agree(lowered.run(graph.inputs), graph.expected)
    again = infer_module(compiler.parse(compiler.text(lowered.mod)))
    compiler.assert_structural_equal(again, lowered.mod)


@many
@given(randoms, sizes)
def test_onnx_gives_the_meaning_back(rng: random.Random, size: int) -> None:
    graph = random_graph(rng, size, EXPORTED)
    again, params, inputs = through_onnx(graph)
    agree(compiler.evaluate(again, {**inputs, **params}), graph.expected)


def through_onnx(graph: RandomGraph) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Exported and imported; what has no ONNX form is no example."""
    try:
        model = to_onnx(graph.mod)
    except OnnxExportError:
        assume(False)
        raise
    names = [info.name for info in model.graph.input]
    inputs = {name: value for name, value in graph.inputs.items() if name in names}
    try:
        shapes = {name: value.shape for name, value in inputs.items()}
        mod, params = load(model.SerializeToString(), input_shapes=shapes)
    except OnnxImportError as error:
        # The importer wants some inputs constant that our operators take as values, and refuses
        # constant indices outside the data, which ours clip.
        assume("must be constant" not in str(error))
        assume("an index is outside" not in str(error))
        raise
    return mod, params, inputs


def test_graphs_hold_most_operators() -> None:
    met: set[str] = set()
    for seed in range(150):
        mod = random_graph(random.Random(seed), 12, OPS).mod
        calls = [n.op for n in post_order(mod["main"]) if isinstance(n, Call)]
        met.update(op.name for op in calls if isinstance(op, Op))
    assert len(met) > 0.7 * len(OPS)
