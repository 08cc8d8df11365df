"""Single steps of every form, run on operands that no input of the module reaches."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ops.evaluate import evaluate_step
from compiler.pipeline import C_LOWERING
from compiler.proof import steps
from compiler.proof.derive import derive_static
from compiler.proof.steps import CHECK, built_in_c, check_forms
from compiler.quantize import Calibration, QConfig, prerequisite_optimize
from compiler.targets.engine.stepwise import SteppedEngine
from tests.benchmarks.unseen_networks import Network
from tests.compiler.inner_values import ENGINE, ONNX, Case, whole_module
from tests.compiler.mends import DEFECTS, put_back
from tests.compiler.proof import chains
from tests.needs import NEEDS_C

CASES: Mapping[str, Case] = {**ENGINE, **ONNX}
ROUNDS = 16
QUICK_FLAGS = ("-O0", "-ffp-contract=off")


def findings(mod: IRModule, rounds: int = ROUNDS) -> list[str]:
    return [str(finding) for finding in check_forms(mod, rounds, seed=0)[1]]


@pytest.mark.parametrize("what", DEFECTS)
def test_a_defect_on_values_that_no_input_meets_is_found(what: str) -> None:
    mod = CASES[what].mod
    with put_back(DEFECTS[what]):
        tested, found = check_forms(mod, ROUNDS, seed=0)
    assert [one.without for one in tested] == ["", ""]
    assert found
    assert {finding.check for finding in found} == {CHECK}
    assert {", from <text>:" in one.node or "in its body" in one.node for one in found} == {True}


@pytest.mark.parametrize("what", CASES)
def test_an_honest_module_has_no_finding(what: str) -> None:
    assert findings(CASES[what].mod) == []


def test_random_chains_have_no_finding() -> None:
    """The operators of ``chains`` with their dtypes and inner limits."""
    checked = 0
    for index in range(60):
        try:
            mod = chains.module(np.random.default_rng([5, index]))
        except CompilerError:
            continue
        if derive_static(mod).holds:
            checked += 1
            assert findings(mod, 4) == [], index
    assert checked > 25


def test_a_border_that_a_producer_leaves_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The convolution reads around its operand what the step before it wrote there."""
    weight = np.ones((2, 1, 3, 3), np.int8)
    mod = whole_module(
        """  %0 = clip(%q, a_min=-100f, a_max=100f);
  nn.conv2d(%0, WEIGHT, padding=[1, 1, 1, 1], out_dtype="int32")""",
        {"q": np.zeros((1, 1, 4, 4), np.int8)},
        {"WEIGHT": weight},
    )
    assert findings(mod, 2) == []
    run = SteppedEngine.kernels

    def without_borders(engine, span, batch, arena):  # type: ignore[no-untyped-def]
        if engine.plan.infos[span[0]].kind != "fill":
            run(engine, span, batch, arena)

    monkeypatch.setattr(SteppedEngine, "kernels", without_borders)
    found = findings(mod, 2)
    assert any("nn.conv2d" in one and "the engine computes other" in one for one in found)


def test_every_form_is_compared_with_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a reference that computes something else, the step is found in each of them."""
    mod = CASES["ties along an axis that is not the channels'"].mod
    tested, found = check_forms(mod, 2, 0, built_in_c(mod, QUICK_FLAGS, C_LOWERING))
    assert found == ()
    assert [one.form for one in tested] == ["engine", "integer ONNX", "generated C"]
    assert [(one.steps, one.of) for one in tested] == [(4, 4), (4, 4), (3, 3)]

    def shifted(step, args):  # type: ignore[no-untyped-def]
        (result,) = evaluate_step(step, args)
        return [result + 1 if step.name == "qnn.requantize" else result]

    monkeypatch.setattr(steps, "evaluate_step", shifted)
    found = check_forms(mod, 2, 0, built_in_c(mod, QUICK_FLAGS, C_LOWERING))[1]
    for form in ("engine", "integer ONNX", "generated C"):
        assert any(f"the {form} computes other numbers" in one.what for one in found), form
    assert all("qnn.requantize" in one.node or "cast" in one.node for one in found)


def test_what_has_no_such_form_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_given: object) -> None:
        raise CompilerError("there is no compiler")

    monkeypatch.setattr(SteppedEngine, "__init__", refused)
    tested, found = check_forms(CASES["a sum of a batch in front of a window"].mod, 1, seed=0)
    assert found == ()
    assert str(tested[0]) == "steps of the engine: none, there is no compiler"
    assert tested[1].steps == tested[1].of == 4


def test_rows_that_bounds_decide_are_written_in_every_form() -> None:
    """The index of the best of one group is 0, so no place is masked."""
    graph = Network(0)
    x = graph("Reshape", graph.input(1, 6, 8), graph.weight([6, 8], np.int64))
    scores = graph.dense(x, 8, 4)
    best = graph("ReduceSum", scores, graph.weight([-1], np.int64))
    _, group = graph("TopK", best, graph.weight([1], np.int64), outputs=2)
    zeros, ones = graph.weight(np.zeros((6, 1))), graph.weight(np.ones((6, 1)))
    chosen = graph("Cast", graph("ScatterElements", zeros, group, ones, axis=1), to=9)
    kept = graph("Where", chosen, scores, graph.weight(-np.inf))
    model = graph.model(graph.dense(graph("Softmax", kept, axis=-1), 4, 3))
    mod = prerequisite_optimize(*load(model.SerializeToString()), 3)
    data = [{"x": np.random.default_rng(0).normal(0, 1, (1, 6, 8)).astype(np.float32)}]
    assert findings(Calibration(mod, data).candidate(QConfig.recommended()).module) == []


def test_a_float_that_is_computed_from_a_later_integer_is_not_computed_twice() -> None:
    """Positions are a running sum of the mask, and features are multiplied by it: RoBERTa, OPT."""
    graph = Network(0)
    mask = graph.input(1, 8, dtype=7)
    places = graph("CumSum", mask, graph.weight(1, np.int64))
    rows = graph("Gather", graph.random(9, 4, fan=4), places)
    kept = graph("Cast", mask, to=1)
    column = graph("Unsqueeze", kept, graph.weight([2], np.int64))
    rows = graph("Mul", graph.dense(rows, 4, 4, "Relu"), column)
    total = graph("ReduceSum", rows, graph.weight([1], np.int64), keepdims=0)
    count = graph("ReduceSum", kept, graph.weight([1], np.int64))
    model = graph.model(graph.dense(graph("Div", total, count), 4, 3))
    mod = prerequisite_optimize(*load(model.SerializeToString()), 3)
    data = [{"x": (np.arange(8) < n)[None].astype(np.int64)} for n in (3, 5, 8)]
    assert findings(Calibration(mod, data).candidate(QConfig.recommended()).module) == []


def test_what_a_row_with_scratch_memory_computes_is_given_to_its_readers() -> None:
    weight = np.ones((8, 8, 3, 3), np.int8)
    narrow = """fixed_point_multiply(%{0}, multiplier=1073741824, shift=-9);
  %{2} = cast(clip(%{1}, a_min=-128f, a_max=127f), dtype="int8");"""
    mod = whole_module(
        f"""  %0 = nn.conv2d(%q, WEIGHT, padding=[1, 1, 1, 1], out_dtype="int32");
  %1 = {narrow.format(0, 1, 2)}
  %3 = nn.conv2d(%2, WEIGHT, padding=[1, 1, 1, 1], out_dtype="int32");
  %4 = {narrow.format(3, 4, 5)}
  nn.conv2d(%5, WEIGHT, padding=[1, 1, 1, 1], out_dtype="int32")""",
        {"q": np.zeros((1, 8, 12, 12), np.int8)},
        {"WEIGHT": weight},
    )
    tested, found = check_forms(mod, 2, seed=0)
    assert found == ()
    assert tested[0].given >= 3


def test_an_operand_that_is_prepared_long_before_it_is_read_is_given_in_time() -> None:
    """Unsigned factors are split in front of the table, whose result the product's step reads."""
    mod = whole_module(
        """  %0 = clip(%q, a_min=0f, a_max=255f);
  %1 = cast(%0, dtype="uint8");
  %2 = nn.batch_matmul(%p, %1, out_dtype="int32", transpose_b=False);
  %3 = lookup(%r, TABLE);
  multiply(%2, %3)""",
        {
            "q": np.zeros((1, 24, 24), np.int32),
            "p": np.zeros((1, 24, 24), np.uint8),
            "r": np.zeros((1, 24, 1), np.uint8),
        },
        {"TABLE": np.arange(256, dtype=np.int32)},
    )
    assert findings(mod, 4) == []


@NEEDS_C
def test_a_value_that_a_word_of_another_operator_equals_is_not_given() -> None:
    """Half of the sum is a result, and the first word of a quarter of it."""
    mod = whole_module(
        """  %0 = sum(cast(%q, dtype="int32"), axis=[1], keepdims=True);
  %1 = qnn.requantize(%0, shift=0, rounding="tflm", compute_dtype="int32", out_dtype="int32");
  %2 = qnn.requantize(%0, shift=-3, rounding="tflm", compute_dtype="int32", out_dtype="int32");
  subtract(clip(%1, a_min=-9f, a_max=9f), clip(%2, a_min=-9f, a_max=9f))""",
        {"q": np.zeros((24, 32), np.int8)},
        {},
    )
    assert findings(mod) == []


def test_the_c_of_a_loop_without_a_state_is_stepped() -> None:
    mod = infer_module(
        parse("""
#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(4, 3), float32]) {
  let %q = cast(clip(round(multiply(%x, 2f)), a_min=-127f, a_max=127f), dtype="int8");
  (%q,)
}
def @quantized_main(%q: Tensor[(4, 3), int8]) {
  %0 = fn (%s: Tensor[(3), int8]) { (negative(cast(%s, dtype="int32")),) };
  %1 = scan(%0, (), (%q,), (), length=4, reverse_inputs=[1], reverse_outputs=[0]);
  %1.0
}
def @dequantize_outputs(%r: Tensor[(4, 3), int32]) { multiply(cast(%r, dtype="float32"), 0.5f) }
def @main(%x: Tensor[(4, 3), float32]) {
  let %a = @quantize_inputs(%x);
  let %b = @quantized_main(%a.0);
  @dequantize_outputs(%b)
}
""")
    )
    tested, found = check_forms(mod, 2, 0, built_in_c(mod, QUICK_FLAGS, C_LOWERING))
    assert found == ()
    assert [one.without for one in tested] == ["", "", ""]


def test_what_the_c_picks_from_a_packed_table_is_given_packed() -> None:
    table = np.random.default_rng(0).integers(0, 16, (91, 7)).astype("int8")
    core = "  negative(take(TABLE, %x, axis=0))"
    mod = whole_module(core, {"x": np.zeros(2, "int32")}, {"TABLE": table})
    tested, found = check_forms(mod, 2, 0, built_in_c(mod, QUICK_FLAGS, C_LOWERING))
    assert found == ()
    assert tested[2].steps == tested[2].of > 0


def test_forms_that_a_large_module_has_not_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is compared as ever."""
    mod = CASES[min(CASES)].mod
    monkeypatch.setattr("compiler.proof.steps.MOST_C_BYTES", 0)
    monkeypatch.setattr("compiler.export.to_onnx.integer.model.MOST_BYTES", 0)
    tested, found = check_forms(mod, 2, 0, built_in_c(mod, QUICK_FLAGS, C_LOWERING))
    assert found == ()
    engine, exact, in_c = tested
    assert engine.steps == engine.of
    assert "a message has at most 0" in exact.without
    assert "bytes of constants as text" in in_c.without
