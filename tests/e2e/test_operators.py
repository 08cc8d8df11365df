"""Every operator that a quantized module may hold, from ONNX to proof, C and ONNX.

A quantized module may hold an operator that has a rule of realization, an integer word and what has
a body in words. Each such operator needs a model in ``operator_cases`` or ``operator_texts``: a new
one without fails.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
import pytest

import qsearch
from compiler import infer_module, parse
from compiler.core.words import WORDS, FBody, Words
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import post_order
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Op
from compiler.ir.module import IRModule
from compiler.ir.op import OpPattern, register_op
from compiler.ops.rules.numpy_compute import FNumpyCompute, of_arrays
from compiler.ops.rules.realize import FQRealizeRewrite
from compiler.ops.tensor.number_rel import number_rel
from compiler.proof.derive import derive_static
from compiler.proof.ranges import analyse
from compiler.proof.record import record_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import QuantizeContext, mark, prerequisite_optimize, quantize
from compiler.runtime.artifact import QModule
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas
from qsearch.commands.verification import verify
from tests.e2e.operator_cases import CASES, SHAPE, Array, Case
from tests.e2e.operator_texts import CORES, FLOATS, core_text, float_text

MARKS = {"scan.state", "scan.step", "scan.end"}
"""Of loops that are open; a module holds ``scan``."""
HELD = sorted({*FQRealizeRewrite.names(), *WORDS, *FBody.names()} - MARKS | {"scan"})
FORMS = ("engine", "integer ONNX", "generated C")


@dataclass(frozen=True)
class Shipped:
    """A quantized module, inputs for it, and the operators it or its float model holds."""

    module: QModule
    inputs: list[Mapping[str, Array]]
    holds: frozenset[str]


def operators_of(mod: IRModule) -> Iterator[str]:
    for function in mod.functions.values():
        for node in post_order(function):
            if isinstance(node, Call) and isinstance(node.op, Op):
                yield node.op.name


@cache
def from_case(name: str) -> Shipped:
    case: Case = CASES[name]
    with TemporaryDirectory() as folder:
        path, data = Path(folder) / "model.onnx", Path(folder) / "calib.npz"
        onnx.save(case.model(), path)
        batches = case.batches()
        np.savez(data, **{n: a.reshape(-1, *a.shape[2:]) for n, a in batches.items()})
        module = qsearch.quantize(path, calib=str(data), qconfig=dict(case.qconfig))
        mod, params = load(path)
    prepared = prerequisite_optimize(mod, params, opt_level=3, simplify=True)
    annotated, _ = mark(prepared, QConfig.recommended(**case.qconfig))
    inputs = [{n: a[i] for n, a in batches.items()} for i in range(3)]
    holds = frozenset((*operators_of(annotated), *operators_of(module.module)))
    return Shipped(module, inputs, holds)


@cache
def from_text(name: str) -> Shipped:
    inputs: list[Mapping[str, Array]] = [
        {"x": np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)}
        for seed in range(3)
    ]
    holds: list[str] = []
    if name in CORES:
        mod = infer_module(parse(core_text(name)))
    else:
        read = infer_module(parse(float_text(name)))
        holds += operators_of(read)
        mod = quantize(read, None, inputs, QuantizeContext(QConfig.recommended()))
    samples = [(given, QModule(mod).run(given)) for given in inputs]
    shipped = QModule(mod, samples=samples, proof=record_of(derive_static(mod).to_dict()))
    return Shipped(shipped, inputs, frozenset((*holds, *operators_of(mod))))


def check(shipped: Shipped, folder: Path) -> None:
    """Proved from its file: C, the integer ONNX and the engine give the reference's bits, and so do
    the engine's other instruction sets."""
    shipped.module.save(folder / "m.qmod")
    found = verify(folder / "m.qmod")
    assert [str(finding) for finding in (*found.findings, *found.record_findings)] == []
    assert found.record == "agrees"
    assert found.proof is not None
    forms = [what.split(", ")[1] for c in found.proof.comparisons if "main, " in (what := c.what)]
    assert {f"reference and {form}" for form in FORMS} == set(forms)
    executors = {
        isa: EngineExecutor(shipped.module.module, isa=isa) for isa in available_isas()[1:]
    }
    for inputs in shipped.inputs:
        wanted = [(a.shape, a.dtype, a.tobytes()) for a in shipped.module.run(inputs)]
        for name, executor in executors.items():
            got = [(a.shape, a.dtype, a.tobytes()) for a in executor.run(inputs)]
            assert got == wanted, name


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_model_is_proved_and_its_exports_give_the_same_bits(name: str, tmp_path: Path) -> None:
    check(from_case(name), tmp_path)


@pytest.mark.parametrize("name", sorted((*CORES, *FLOATS)))
def test_a_text_is_proved_and_its_exports_give_the_same_bits(name: str, tmp_path: Path) -> None:
    check(from_text(name), tmp_path)


def test_an_operator_of_a_plugin_has_every_form_by_its_body(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "test.tripled"
    op = register_op(name, arg_names=("data",), rel=number_rel(name), pattern=OpPattern.ELEMWISE)
    FNumpyCompute.register(op)(of_arrays(lambda x: np.maximum(x * 3, -7)))

    @FBody.register(name)
    def body(step: Step, words: Words) -> Value:
        return words.maximum(words.multiply(step.args[0], 3), -7)

    monkeypatch.setitem(CORES, name, f"{name}(%w)")
    shipped = from_text(name)
    check(shipped, tmp_path)
    assert name in shipped.holds
    (row,) = (row for row in analyse(shipped.module.module).values if row.op == name)
    assert row.low == -7


@pytest.mark.parametrize("operator", HELD)
def test_every_operator_that_a_quantized_module_may_hold_has_a_case(operator: str) -> None:
    if operator in CORES or operator in FLOATS:
        assert operator in from_text(operator).holds
        return
    holders = (name for name in CASES if operator in from_case(name).holds)
    assert next(holders, None), f"write a model that holds {operator} in operator_cases.py"
