"""@main joins the three parts by their results, in order; outputs that are copies are declared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.ir.expr import Constant, Expr, Function, Let, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.proof.derive import derive, derive_static
from compiler.proof.wiring import check_wiring, passed_through

TEXT = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(4), float32], %y: Tensor[(4), int32]) {
  %0 = clip(round(multiply(%x, 16f)), a_min=-127f, a_max=127f);
  let %qx = cast(%0, dtype="int8");
  let %qy = clip(%y, a_min=-9f, a_max=9f);
  (%qx, %qy)
}
def @quantized_main(%a: Tensor[(4), int8], %b: Tensor[(4), int32]) {
  %0 = cast(%a, dtype="int32");
  (maximum(%0, %b), %0)
}
def @dequantize_outputs(%r: Tensor[(4), int32], %s: Tensor[(4), int32]) {
  %0 = cast(%r, dtype="float32");
  (multiply(%0, 0.5f), cast(%s, dtype="float32"))
}
def @main(%x: Tensor[(4), float32], %y: Tensor[(4), int32]) {
  let %q = @quantize_inputs(%x, %y);
  let %r = @quantized_main(%q.0, %q.1);
  let %d = @dequantize_outputs(%r.0, %r.1);
  %d
}
"""


def module(old: str = "", new: str = "", **passthrough: str) -> IRModule:
    assert old in TEXT
    mod = infer_module(parse(TEXT.replace(old, new)))
    named = {key.removeprefix("output"): value for key, value in passthrough.items()}
    return mod.with_attr("passthrough", named) if named else mod


def whats(mod: IRModule) -> list[str]:
    found = check_wiring(mod)
    assert not derive(mod, []).holds or not found
    return [f"{f.node}: {f.what}" for f in found]


def test_results_in_order_are_the_one_wiring() -> None:
    assert whats(module()) == []
    assert whats(module("  %d\n", "  (%d.0, %d.1)\n")) == []
    assert passed_through(module()) == ()


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("(%q.0, %q.1);", "(%q.0, %y);", "@quantized_main is given %y as argument 1"),
        ("  %d\n", "  nn.relu(%d.0)\n", "@main, call of nn.relu: stands outside the three parts"),
        ("  %d\n", "  %r\n", "@dequantize_outputs is called, and its result is not used"),
        ("  %d\n", "  (%r.0, %d.0, %d.1).0\n", "returns result 0 of @quantized_main as output 0"),
        (
            "  let %d = @dequantize_outputs(%r.0, %r.1);\n  %d\n",
            "  %r\n",
            "calls @quantize_inputs, @quantized_main instead of",
        ),
        ("(%r.0, %r.1);", "(%r.1, %r.0);", "is given result 1 of @quantized_main as argument 0"),
        ("(%r.0, %r.1);", "(%r.0, %r.0);", "is given result 0 of @quantized_main as argument 1"),
        ("  %d\n", "  (%d.1, %d.0)\n", "returns result 1 of @dequantize_outputs as output 0"),
        ("  %d\n", "  (%d.0, %x)\n", "returns %x as output 1"),
        ("  %d\n", "  (%d.0, %d.1, %x)\n", "returns %x as output 2"),
        ("  %d\n", "  (%d.0, %d.0)\n", "returns result 0 of @dequantize_outputs as output 1"),
        ("  %d\n", "  %d.0\n", "returns 1 of the 2 results of @dequantize_outputs"),
        ("  %d\n", "  (%d.0, 1f)\n", "returns a constant as output 1"),
        ("  %d\n", "  let %e = @quantized_main(%q.0, %y);\n  %d\n", "calls @quantize_inputs, @qu"),
    ],
)
def test_every_other_wiring_is_named(old: str, new: str, what: str) -> None:
    mod = module(old, new)
    assert any(what in found for found in whats(mod)), whats(mod)


def returning_also(other: Callable[[Var], Expr], bind: Callable[[Expr], Expr]) -> IRModule:
    """@main that returns one value more, with what ``bind`` puts around its body."""
    mod = module()
    main = mod["main"]
    body = bind(Tuple((main.body, other(main.params[0]))))
    return mod.with_function("main", Function(main.params, body))


def test_variables_that_no_value_can_be_found_for_are_named() -> None:
    a, b = Var("a", None), Var("b", None)

    def found(other: Callable[[Var], Expr], bind: Callable[[Expr], Expr] = lambda e: e) -> str:
        (finding,) = check_wiring(returning_also(other, bind))
        return finding.what

    assert found(lambda x: b) == "%b is used before it is bound"
    assert "is used before it is bound" in found(lambda x: a, lambda e: Let(a, b, Let(b, a, e)))
    twice = found(
        lambda x: a, lambda e: Let(a, Constant(np.float32(1)), Let(a, Constant(np.float32(2)), e))
    )
    assert twice == "binds %a twice"


def test_tuples_of_tuples_that_hold_more_tensors_than_memory_are_refused() -> None:
    def doubled(x: Var) -> Expr:
        made: Expr = x
        for _ in range(17):
            made = Tuple((made, made))
        return made

    (finding,) = check_wiring(returning_also(doubled, lambda e: e))
    assert finding.what == "handles tuples of more than 65536 tensors"


def test_raw_integers_that_pass_the_clip_by_are_found() -> None:
    """The core is given what the conversion was given; the clipped integers are thrown away."""
    forged = """#[version = "0.0.5"]
def @quantize_inputs(%y: Tensor[(4), int32]) {
  (clip(%y, a_min=-127f, a_max=127f),)
}
def @quantized_main(%a: Tensor[(4), int32]) {
  multiply(%a, 1000000)
}
def @dequantize_outputs(%r: Tensor[(4), int32]) {
  cast(%r, dtype="float32")
}
def @main(%y: Tensor[(4), int32]) {
  %0 = (@quantize_inputs(%y), %y);
  %1 = @quantized_main(%0.1);
  @dequantize_outputs(%1)
}
"""
    proof = derive_static(infer_module(parse(forged)))
    assert [f.check for f in proof.findings] == ["wiring"]
    assert {claim.name: claim.holds for claim in proof.claims}["no overflow"] is False
    assert "is given %y as argument 0" in proof.findings[0].what


def test_a_float_input_that_is_returned_is_found() -> None:
    mod = module("  %d\n", "  (%d, %x).1\n")
    assert any("returns %x as output 0" in found for found in whats(mod))


def test_copies_that_are_declared_are_said_and_proved() -> None:
    mod = module("  %d\n", "  (%x, %d.0, %y, %d.1, 7f)\n")
    declared = {"0": "input:x", "2": "input:y", "4": "constant"}
    mod = infer_module(parse(text(mod.with_attr("passthrough", declared))))
    assert whats(mod) == []
    assert passed_through(mod) == (
        "output 0 is input 0 (%x), copied; not computed",
        "output 2 is input 1 (%y), copied; not computed",
        "output 4 is a constant, copied; not computed",
    )
    proof = derive_static(mod)
    assert proof.holds
    assert proof.to_dict()["passthrough"] == list(passed_through(mod))


@pytest.mark.parametrize(
    ("returned", "passthrough", "what"),
    [
        ("(%d.0, %d.1, %x)", {"output2": "input:y"}, "returns %x as output 2, declared is input:y"),
        ("(%d.0, %d.1, %x)", {"output2": "constant"}, "declared is constant"),
        ("(%d.0, %d.1, %x)", {"output2": "input:z"}, "no one parameter %z"),
        ("(%d.0, %d.1, 3f)", {"output2": "input:x"}, "returns a constant as output 2"),
        ("(%d.0, %d.1)", {"output1": "input:x"}, "result 1 of @dequantize_outputs as output 1"),
        ("(%d.0, %d.1)", {"output2": "input:x"}, "'2' names no output"),
        ("(%d.0, %d.1, %x)", {"output02": "input:x"}, "'02' names no output"),
        ("(%d.0, %d.1, %x)", {"output2": "copy:x"}, "'copy:x' is neither"),
        ("(%x, %d.0)", {"output0": "input:x"}, "returns 1 of the 2 results"),
        ("(%r.0, %d.0, %d.1)", {"output0": "constant"}, "result 0 of @quantized_main as output 0"),
    ],
)
def test_a_declaration_that_is_not_what_main_does_is_refused(
    returned: str, passthrough: dict[str, str], what: str
) -> None:
    mod = module("  %d\n", f"  {returned}\n", **passthrough)
    assert any(what in found for found in whats(mod)), whats(mod)


def test_parameters_that_are_tuples_are_counted_by_their_tensors() -> None:
    pair = "%x: (Tensor[(4), float32], Tensor[(4), int32]), %y: Tensor[(4), int32]"
    source = TEXT.replace("%x: Tensor[(4), float32], %y: Tensor[(4), int32]", pair)
    source = source.replace("multiply(%x,", "multiply(%x.0,")
    source = source.replace("  %d\n", "  (%d.0, %d.1, %x.1)\n")
    mod = infer_module(parse(source)).with_attr("passthrough", {"2": "input:y"})
    assert any("returns %x.1 as output 2, declared is input:y" in found for found in whats(mod))
    mod = mod.with_attr("passthrough", {"2": "input:x.1"})
    assert whats(mod) == []
    assert passed_through(mod) == ("output 2 is input 1 (%x.1), copied; not computed",)


@pytest.mark.parametrize("declared", [{}, "constant", 3, {"1": 1}, ["0"]])
def test_a_declaration_of_another_form_is_refused(declared: Any) -> None:
    mod = module().with_attr("passthrough", declared)
    assert any("passthrough" in found for found in whats(mod))


def test_two_parameters_of_one_name_cannot_be_copied_by_it() -> None:
    source = TEXT.replace("  %d\n", "  (%d.0, %d.1, %x)\n")
    mod = infer_module(parse(source))
    main = mod["main"]
    renamed = tuple(p.with_fields(name_hint="x") for p in main.params)
    from compiler.ir.rebuild import substitute

    body = substitute(main.body, dict(zip(main.params, renamed)))
    other = infer_module(mod.with_function("main", main.with_fields(params=renamed, body=body)))
    found = whats(other.with_attr("passthrough", {"2": "input:x"}))
    assert any("no one parameter %x" in one for one in found)
