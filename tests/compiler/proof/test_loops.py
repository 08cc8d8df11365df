"""Verification of loops: bodies are stepped, and the loops around them are run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.pipeline import C_LOWERING
from compiler.proof.derive import derive
from compiler.runtime.artifact import QModule
from tests.compiler.inner_values import whole_module
from tests.compiler.mends import Defect, put_back
from tests.each import each
from tests.needs import NEEDS_C

ENGINE, ONNX, C = "compiler.targets.engine", "compiler.export.to_onnx", "compiler.targets.c"
STEPS = 4


def loop(dtype: str = "uint16", inside: int = 40_000) -> IRModule:
    """States exchange their values; one is large only where a square is 14,400."""
    core = f"""  %0 = fn (%h: Tensor[(3), {dtype}], %g: Tensor[(3), {dtype}],
           %s: Tensor[(3), int8], %w: Tensor[(3), int32]) {{
    %1 = cast(%s, dtype="int32");
    %2 = equal(multiply(%1, %1), RARE);
    %3 = where(%2, INSIDE, %g);
    %4 = right_shift(cast(%h, dtype="int64"), SHIFT);
    %7 = clip(%4, a_min=-1000000f, a_max=1000000f);
    %5 = add(cast(%7, dtype="int32"), clip(%w, a_min=-100f, a_max=100f));
    (%3, %h, add(%5, %1))
  }};
  %6 = scan(%0, (FIRST, OTHER), (%q,), (%w,), length={STEPS}, reverse_inputs=[1],
            reverse_outputs=[1]);
  %8 = subtract(right_shift(cast(%6.0, dtype="int64"), SHIFT),
                right_shift(cast(%6.1, dtype="int64"), SHIFT));
  add(%6.2, cast(clip(%8, a_min=-1000f, a_max=1000f), dtype="int32"))"""
    constants = {
        "RARE": np.array(14_400, np.int32),
        "INSIDE": np.array(inside, dtype),
        "SHIFT": np.array(1, np.int64),
        "FIRST": np.arange(3).astype(dtype),
        "OTHER": np.arange(3, 6).astype(dtype),
    }
    return whole_module(
        core, {"q": np.zeros((STEPS, 3), np.int8), "w": np.zeros(3, np.int32)}, constants
    )


@NEEDS_C
@pytest.mark.parametrize(
    ("dtype", "inside"),
    [
        ("uint16", 40_000),
        ("uint32", 3_000_000_000),
        ("int16", -30_000),
        ("int8", -100),
        ("uint8", 200),
        ("int64", 1 << 40),
        ("bool", 1),
    ],
)
def test_states_of_every_dtype_are_exact_in_every_form(dtype: str, inside: int) -> None:
    proof = derive(loop(dtype, inside), (), C_LOWERING)
    assert proof.findings == ()
    assert [one.without for one in proof.steps] == ["", "", ""]
    assert all(one.steps >= 9 for one in proof.steps), "the bodies are among them"


HONEST = {
    "states are views of each other, and an operand is copied into another order": """
    %1 = transpose(%g, axes=[1, 0]);
    %2 = where(equal(%s, RARE), add(clip(%1, a_min=-100f, a_max=100f), ONE), %1);
    (%2, reshape(%h, newshape=[3, 2]), reverse(%h, axis=1))""",
    "one program computes a value and what is made of it": """
    %1 = clip(cast(%s, dtype="int64"), a_min=-70f, a_max=70f);
    (%h, %g, %1, cast(clip(%1, a_min=0f, a_max=50f), dtype="uint8"))""",
}


@pytest.mark.parametrize("what", HONEST)
def test_an_honest_loop_has_no_finding(what: str) -> None:
    outputs = 1 + what.startswith("one program")
    results = (f'reshape(cast(%3.{n}, dtype="int64"), newshape=[-1])' for n in range(2 + outputs))
    parts = ", ".join(results)
    core = f"""  %0 = fn (%h: Tensor[(2, 3), int16], %g: Tensor[(3, 2), int16],
           %s: Tensor[(2, 3), int8]) {{{HONEST[what]}
  }};
  %3 = scan(%0, (FIRST, OTHER), (%q,), (), length=5, reverse_inputs=[1],
            reverse_outputs={[0] * outputs});
  concatenate(({parts}), axis=0)"""
    constants = {
        "RARE": np.array(-77, np.int8),
        "ONE": np.array(1, np.int16),
        "FIRST": np.arange(6, dtype=np.int16).reshape(2, 3),
        "OTHER": np.arange(6, dtype=np.int16).reshape(3, 2),
    }
    mod = whole_module(core, {"q": np.zeros((5, 2, 3), np.int8)}, constants)
    assert derive(mod, ()).findings == ()


def test_an_input_that_no_turn_reads_is_written_nowhere() -> None:
    core = """  %0 = fn (%h: Tensor[(3), int16], %s: Tensor[(3), int8]) { (reverse(%h, axis=0),) };
  %1 = scan(%0, (FIRST,), (%q,), (), length=5, reverse_inputs=[1], reverse_outputs=[]);
  nn.relu(%1.0)"""
    first = np.arange(3, dtype=np.int16)
    mod = whole_module(core, {"q": np.zeros((5, 3), np.int8)}, {"FIRST": first})
    assert derive(mod, ()).findings == ()


def _scan(before: Mapping[str, str]) -> Defect:
    return Defect(f"{ENGINE}.loops", "scan", before)


def _onnx(before: Mapping[str, str]) -> Defect:
    return Defect(f"{ONNX}.emitter", "emit_loop", before)


def _c(before: Mapping[str, str]) -> Defect:
    return Defect(f"{C}.package", "_Writer._loop_lines", before)


DEFECTS = {
    "engine: states as wide as their dtype, with a sign": _scan(
        {"compact(whole.storage, whole.shape)": 'compact(("S16", 0), whole.shape)'}
    ),
    "engine: a state is written while others read it": _scan(
        {"inner.write(item, after)": "inner.write(item, state)"}
    ),
    "engine: a state stays as it was": _scan(
        {"for after, state in following:": "for after, state in following[1:]:"}
    ),
    "engine: bounds of a state are those of one byte": _scan(
        {"bounds_of(value.type.dtype) if place < states": "(0, 255) if place < states"}
    ),
    "engine: inputs are read forwards": _scan(
        {"attrs.length, back, takes=True": "attrs.length, 0, takes=True"}
    ),
    "engine: outputs are written forwards": _scan(
        {"back = attrs.reverse_outputs[place - states]": "back = 0"}
    ),
    "engine: the last states are exchanged": _scan(
        {"dict(enumerate(held))": "dict(enumerate(held[::-1]))"}
    ),
    "engine: the first states are exchanged": _scan(
        {"for item, state in zip(args, held):": "for item, state in zip(args[1::-1], held):"}
    ),
    "engine: another number is compared": Defect(
        f"{ENGINE}.rules",
        "elementwise",
        {
            "_ELEMENTWISE[step.name], args)": "_ELEMENTWISE[step.name], "
            "[planner.item(step.args[0]), type(args[1])((), 14399, 14399, "
            'data=args[1].data - 1)] if step.name == "equal" and planner.in_loop else args)'
        },
    ),
    "onnx: inputs are read forwards": _onnx({"list(step.attrs.reverse_inputs) or None": "None"}),
    "onnx: outputs are written forwards": _onnx(
        {"list(step.attrs.reverse_outputs) or None": "None"}
    ),
    "onnx: a state stays as it was": _onnx(
        {"for value in body.outputs:": "for value in (body.inputs[0], *body.outputs[1:]):"}
    ),
    "onnx: the first states are exchanged": _onnx(
        {"for arg in step.args[:moving]]": "for arg in (*step.args[1::-1], *step.args[2:moving])]"}
    ),
    "onnx: another number is compared": Defect(
        f"{ONNX}.integer.emitter",
        "IntegerEmitter.widened",
        {"value.data.astype(dtype))": "value.data.astype(dtype) - (value.data == 14_400))"},
    ),
    "c: a step too few": _c({"t < {loop.length}": "t < {loop.length - 1}"}),
    "c: inputs are read and outputs written forwards": _c(
        {'f"({loop.length - 1} - t)" if back else "t"': '"t"'}
    ),
    "c: a state is written while others read it": _c({"*following,": "*made[:states],"}),
    "c: a state stays as it was": _c(
        {"moved(made, following)]": "moved(made[:1], following[:1])]"}
    ),
    "c: the first states are left out": _c({"*moved(made, given),": ""}),
    "c: half of a state is kept": _c({"{value.nbytes}": "{value.nbytes // 2}"}),
}


@NEEDS_C
@pytest.mark.parametrize("what", DEFECTS)
def test_a_defect_of_a_loop_is_found(what: str) -> None:
    with put_back(DEFECTS[what]):
        proof = derive(loop(), (), C_LOWERING)
    assert proof.findings


@NEEDS_C
def test_next_states_of_a_type_that_nothing_else_in_the_arena_has_compile() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(3, 8), int32], %h0: Tensor[(8), int32]) {
  %0 = fn (%h: Tensor[(8), int32], %s: Tensor[(8), int32]) {
    %1 = minimum(maximum(add(%h, %s), 0), 100);
    (subtract(%1, %s), %1)
  };
  scan(%0, (%h0,), (%x,), (), length=3, reverse_inputs=[0], reverse_outputs=[0])
}"""
    module = QModule(infer_module(parse(text)))
    given = {"x": np.ones((3, 8), np.int32), "h0": np.zeros(8, np.int32)}
    wanted, found = (module.run(given, executor=name) for name in ("reference", "c"))
    for ours, theirs in each(zip(found, wanted, strict=True)):
        np.testing.assert_array_equal(ours, theirs)
