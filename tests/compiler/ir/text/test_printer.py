from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import CompilerError
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    If,
    Let,
    TempExpr,
    Tuple,
    Var,
    call_op,
)
from compiler.ir.module import IRModule
from compiler.ir.op import Op
from compiler.ir.text.printer import astext, text
from compiler.ir.ty import Any, FuncType, RefType, TensorType, TupleType, TypeVar
from compiler.ir.virtual_device import VirtualDevice
from compiler.span import Span


def plain(expr: Expr | IRModule) -> str:
    return text(expr, show_types=False)


def scalar(value: float, dtype: str) -> Constant:
    return Constant(np.asarray(value, dtype))


def conv_add_relu() -> IRModule:
    x = Var("x", TensorType((1, 3, 8, 8)))
    w = Var("w", TensorType((4, 3, 3, 3)))
    op = Op.get("nn.conv2d")
    assert op.attrs_type is not None
    attrs = op.attrs_type.make(padding=(1, 1, 1, 1), channels=4, kernel_size=(3, 3))
    conv = Call(op, (x, w), attrs)
    bias = Constant(np.arange(4, dtype="float32").reshape(4, 1, 1))
    body = call_op("nn.relu", conv + bias)
    return IRModule({"main": Function((x, w), body, TensorType((1, 4, 8, 8)))})


class TestExactText:
    def test_without_types_and_metadata(self) -> None:
        assert text(conv_add_relu(), show_types=False, show_meta=False) == (
            '#[version = "0.0.5"]\n'
            "def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32])"
            " -> Tensor[(1, 4, 8, 8), float32] {\n"
            "  %0 = nn.conv2d(%x, %w, padding=[1, 1, 1, 1], channels=4, kernel_size=[3, 3]);\n"
            "  %1 = add(%0, meta[relay.Constant][0]);\n"
            "  nn.relu(%1)\n"
            "}\n"
        )

    def test_types_are_comments_after_calls_and_constants(self) -> None:
        shown = text(compiler.infer_module(conv_add_relu()))
        assert "kernel_size=[3, 3]) /* ty=Tensor[(1, 4, 8, 8), float32] */;\n" in shown
        assert "meta[relay.Constant][0] /* ty=Tensor[(4, 1, 1), float32] */)" in shown
        assert "def @main(%x: Tensor[(1, 3, 8, 8), float32] /* ty=Tensor[" in shown

    def test_metadata_is_the_last_section_and_documented_json(self) -> None:
        mod = IRModule({"main": Function((), Constant(np.array([1, 2], "int8")))})
        assert plain(mod).endswith(
            '\n\n#[metadata]\n{"relay.Constant":[{"dtype":"int8","shape":[2],"b64":"AQI="}]}\n'
        )

    def test_constants_in_brief_are_told_apart_without_their_bytes(self) -> None:
        few, many = Constant(np.array([1, 2], "int8")), Constant(np.arange(9, dtype="int8"))
        x = Var("x", TensorType((2,)), virtual_device=VirtualDevice("c", 1))
        fn = Function((x,), Tuple((few, many, few)))
        lines = text(fn, show_types=False, brief_constants=True).splitlines()
        assert lines[-5:-2] == [
            "// constants in brief; all their bytes: qsearch show --full, or compiler.text",
            "// meta[relay.Constant][0]: int8 (2,), sha256 a12871fee210, values 1 2",
            "// meta[relay.Constant][1]: int8 (9,), sha256 "
            f"{hashlib.sha256(many.data.tobytes()).hexdigest()[:12]}"
            ", values 0 1 2 3 4 5 6 7 … of 9",
        ]
        assert lines[-2] == "#[metadata]"
        assert "VirtualDevice" in lines[-1]

    def test_a_text_with_constants_in_brief_says_how_to_get_the_whole(self) -> None:
        shown = text(conv_add_relu(), brief_constants=True)
        assert "#[metadata]" not in shown
        with pytest.raises(CompilerError, match="qsearch show --full"):
            compiler.parse(shown)

    def test_without_large_constants_the_brief_text_is_the_text(self) -> None:
        x = Var("x", TensorType((2,)))
        mod = IRModule({"main": Function((x,), x + scalar(1, "float32"))})
        assert text(mod, brief_constants=True) == text(mod)

    def test_one_metadata_entry_per_object(self) -> None:
        one, other = Constant(np.zeros(2, "int8")), Constant(np.zeros(2, "int8"))
        assert plain(Tuple((one, other, one))).startswith(
            "(meta[relay.Constant][0], meta[relay.Constant][1], meta[relay.Constant][0])"
        )

    def test_only_named_spans_are_shown(self) -> None:
        x = Var("x", TensorType((2,)))
        call = call_op("nn.relu", x, span=Span("onnx:Relu_3*/"))
        shown = text(compiler.infer_expr(Function((x,), call)))
        assert "/* ty=Tensor[(2), float32] span=onnx:Relu_3* /:0:0 */" in shown
        assert "span=" not in text(compiler.infer_module(compiler.parse(plain(conv_add_relu()))))

    def test_astext_adds_the_version_line(self) -> None:
        assert astext(scalar(1, "int32"), show_types=False) == '#[version = "0.0.5"]\n1'


@pytest.mark.parametrize(
    ("value", "dtype", "shown"),
    [
        (42, "int16", "42i16"),
        (42, "int32", "42"),
        (42, "int64", "42i64"),
        (-7, "int32", "-7"),
        (3, "float16", "3f16"),
        (3, "float32", "3f"),
        (3, "float64", "3f64"),
        (True, "bool", "True"),
        (0.1, "float32", "0.1f"),
        (0.1, "float16", "0.1f16"),
        (0.1, "float64", "0.1f64"),
        (np.nextafter(np.float32(1), np.float32(2)), "float32", "1.0000001f"),
        (1e11, "float32", "1e+11f"),
        (-0.0, "float32", "-0f"),
        (np.inf, "float32", "inff"),
        (-np.inf, "float32", "-inff"),
        (np.nan, "float32", "nanf"),
        (np.inf, "float64", "inff64"),
        (5, "int8", "meta[relay.Constant][0]"),
    ],
)
def test_scalars_are_literals_that_keep_their_bits(value: float, dtype: str, shown: str) -> None:
    constant = scalar(value, dtype)
    assert text(constant, show_types=False, show_meta=False) == shown
    back = compiler.parse_expr(text(constant))
    assert isinstance(back, Constant)
    assert back.data.dtype == constant.data.dtype
    assert back.data.tobytes() == constant.data.tobytes()


def test_a_nan_with_other_bits_goes_to_the_metadata() -> None:
    bits = np.array(0x7FC00001, "uint32").view("float32")
    assert "meta[relay.Constant][0]" in plain(Constant(bits))


def test_a_temporary_expression_is_told_by_its_kind() -> None:
    mod = IRModule({"main": Function((), Tuple((TempExpr(),)))})
    assert "%0 = <TempExpr>;\n  (%0,)" in text(mod)


def test_a_callee_is_numbered_after_its_arguments() -> None:
    x, y = Var("x"), Var("y")
    inner = Call(Function((y,), y), (scalar(1, "int32"),))
    assert plain(Call(Function((x,), x), (inner,))) == (
        "%0 = fn (%y) {\n  %y\n};\n%1 = %0(1);\n%2 = fn (%x) {\n  %x\n};\n%2(%1)"
    )


def test_a_value_used_twice_gets_a_line_and_a_single_use_does_not() -> None:
    x = Var("x")
    pair = Tuple((scalar(0, "int32"), scalar(0, "int32")))
    assert plain(Let(x, pair, pair)) == "%0 = (0, 0);\nlet %x = %0;\n%0"
    assert plain(Let(x, pair, x)) == "let %x = (0, 0);\n%x"


@pytest.mark.parametrize("data", [np.int32(0), np.int8(5), np.arange(3)], ids=["0", "5", "array"])
def test_a_constant_with_several_uses_comes_back_as_one_and_equal_ones_stay_apart(
    data: np.generic,
) -> None:
    shared, alone = Constant(np.asarray(data)), Constant(np.asarray(data))
    body = Tuple((shared, Tuple((shared, alone))))
    other = Function((), shared)
    mod = IRModule({"main": Function((), body), "other": other})
    back = compiler.parse(text(mod))
    outer = back["main"].body
    assert isinstance(outer, Tuple)
    inner = outer.fields[1]
    assert isinstance(inner, Tuple)
    assert inner.fields[0] is outer.fields[0]
    assert back["other"].body is outer.fields[0]
    assert inner.fields[1] is not outer.fields[0]
    assert text(back) == text(mod)


class TestNames:
    def test_equal_hints_are_numbered_and_other_names_are_quoted(self) -> None:
        params = (Var("x"), Var("x"), Var("1"), Var("x1"), Var(""))
        shown = plain(Function(params, Tuple(params)))
        assert shown == 'fn (%x, %x1, %"1", %x11, %v) {\n  (%x, %x1, %"1", %x11, %v)\n}'

    @pytest.mark.parametrize(
        "hint", ["0", "/a", "_a", "input:0", "a b", 'say "hi"', "a//b", "a/*b", "end/", "é"]
    )
    def test_other_characters_are_quoted_and_come_back(self, hint: str) -> None:
        fn = Function((Var(hint),), scalar(1, "int32"))
        back = compiler.parse_expr(plain(fn))
        assert isinstance(back, Function)
        assert back.params[0].name_hint in (hint, "v" + hint)
        assert plain(back) == plain(fn)

    def test_each_definition_starts_at_zero_with_fresh_names(self) -> None:
        def function() -> Function:
            x = Var("x")
            return Function((x,), (x + 1.0) + 2.0)

        shown = plain(IRModule({"f": function(), "main": function()}))
        assert shown.count("%0 = add(%x, 1f);") == 2

    def test_free_variables_are_declared_at_first_use(self) -> None:
        x, y = Var("x", TensorType((2,))), Var("y")
        assert plain((x + x) * y) == (
            "free_var %x: Tensor[(2), float32];\n%0 = add(%x, %x);\nfree_var %y;\nmultiply(%0, %y)"
        )


class TestScopes:
    def test_a_node_used_in_both_branches_is_bound_before_the_if(self) -> None:
        x, c = Var("x"), Var("c")
        t = x + 1.0
        shown = plain(Function((c, x), If(c, t * t, t - x)))
        assert shown == (
            "fn (%c, %x) {\n"
            "  %0 = add(%x, 1f);\n"
            "  if (%c) {\n    multiply(%0, %0)\n  } else {\n    subtract(%0, %x)\n  }\n"
            "}"
        )

    def test_a_node_used_in_one_branch_stays_there(self) -> None:
        x, c = Var("x"), Var("c")
        t = x + 1.0
        shown = plain(Function((c, x), If(c, t * t, x)))
        assert "  if (%c) {\n    %0 = add(%x, 1f);\n    multiply(%0, %0)\n" in shown

    def test_a_node_used_by_a_closure_and_outside_is_bound_first(self) -> None:
        x, y = Var("x"), Var("y")
        t = x + 1.0
        shown = plain(Function((x,), Tuple((Function((y,), y * t), t))))
        lines = [line.strip() for line in shown.splitlines()]
        assert lines.index("%0 = add(%x, 1f);") < lines.index("%1 = fn (%y) {")
        assert lines[-2] == "(%1, %0)"

    def test_a_let_that_is_no_result_is_a_braced_block(self) -> None:
        x, v = Var("x"), Var("v")
        expr = Function((x,), Let(v, x, v + 1.0) * x)
        block = "  %0 = {\n    let %v = %x;\n    add(%v, 1f)\n  };\n  multiply(%0, %x)"
        assert block in plain(expr)
        assert compiler.structural_equal(compiler.parse_expr(plain(expr)), expr)

    def test_temporaries_go_on_counting_inside(self) -> None:
        x, y = Var("x"), Var("y")
        inner = Function((y,), (y + 1.0) + 2.0)
        shown = plain(Function((x,), Call(inner, (x + 3.0,))))
        assert "%0 = add(%y, 1f);" in shown
        assert "%1 = add(%x, 3f);" in shown
        assert "%2 = fn (%y) {" in shown


class TestAttributes:
    def test_only_values_that_differ_from_the_default(self) -> None:
        expr = compiler.parse_expr("free_var %x: Tensor[(2, 3), float32]; sum(%x, axis=[1])")
        assert plain(expr).endswith("sum(%x, axis=[1])")

    def test_function_attributes_follow_the_parameters(self) -> None:
        x = Var("x")
        attrs = {"Primitive": 1, "relay.reshape_only": 1, "a b": (1, 2.5, None), "s": 'q"\n'}
        fn = Function((x,), x, attrs=attrs)  # type: ignore[arg-type]
        assert plain(fn).splitlines()[0] == (
            'fn (%x, Primitive=1, relay.reshape_only=1, "a b"=[1, 2.5f, None], s="q\\"\\n") {'
        )

    def test_floats_are_doubles_with_the_shortest_digits(self) -> None:
        mod = IRModule(attrs={"a": 0.1, "b": 1e-05, "c": 1 / 3, "d": float("inf"), "e": -0.0})
        shown = plain(mod)
        for item in ('"a"=0.1f', '"b"=1e-05f', '"c"=0.3333333333333333f', '"d"=inff', '"e"=-0f'):
            assert item in shown

    def test_a_device_of_a_parameter_goes_to_the_metadata(self) -> None:
        x = Var("x", TensorType((2,)), virtual_device=VirtualDevice("c", 1))
        fn = Function((x,), x)
        assert plain(fn).startswith(
            "fn (%x {virtual_device=meta[VirtualDevice][0]}: Tensor[(2), float32])"
        )
        assert compiler.structural_equal(compiler.parse_expr(plain(fn)), fn)

    def test_a_value_without_text_is_an_error(self) -> None:
        with pytest.raises(CompilerError, match="object"):
            plain(IRModule(attrs={"a": object()}))


def test_types() -> None:
    a = TypeVar("A")
    cell = FuncType((TensorType(()), a), RefType(TupleType((a,))), (a,))
    assert text(cell) == "fn [A](float32, A) -> ref((A,))"
    assert text(TensorType((Any(), 2), "int8")) == "Tensor[(?, 2), int8]"
    assert text(TupleType()) == "()"
    assert text(FuncType((), TensorType((3,)))) == "fn () -> Tensor[(3), float32]"


PROGRAM = """
import compiler
source = '''#[version = "0.0.5"]
def @f(%x: float32, b=1, a=2) { exp(%x) }
def @main(%c: bool, %x: float32) {
  %0 = exp(%x);
  %1 = tanh(%0);
  %2 = if (%c) { add(%0, %1) } else { subtract(%1, %0) };
  %3 = fn (%y: float32) { multiply(%y, add(%0, %1)) };
  (%2, %3(%2), @f(%x))
}'''
mod = compiler.transform.InferType()(compiler.parse(source))
print(compiler.text(compiler.transform.EliminateCommonSubexpr()(mod)))
"""


def test_the_same_bytes_in_every_interpreter() -> None:
    found = set()
    for seed in ("1", "2"):
        ran = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).resolve().parents[4],
            capture_output=True,
            text=True,
            check=True,
        )
        found.add(ran.stdout)
    assert len(found) == 1
    assert "%0 = exp(%x)" in found.pop()


class TestPrint:
    """What ``print`` shows of a module and of its functions."""

    def test_a_module_and_its_functions_print_as_text(self) -> None:
        x = Var("x", TensorType((2,)))
        mod = IRModule.from_expr(Function((x,), call_op("nn.relu", x)))
        assert str(mod).startswith('#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32])')
        assert "nn.relu(%x)" in str(mod["main"])
        assert str(mod["main"]).startswith("fn (%x")
        assert "relu" in f"{call_op('nn.relu', x)}"
        assert compiler.structural_equal(compiler.parse(str(mod)), mod)

    def test_large_constants_are_described(self) -> None:
        weights = Constant(np.zeros((1000, 1000), np.float32))
        shown = str(IRModule.from_expr(call_op("exp", weights)))
        assert len(shown) < 1000
        assert "float32 (1000, 1000), sha256" in shown

    def test_repr_stays_one_short_line(self) -> None:
        x = Var("x", TensorType((2,)))
        mod = IRModule.from_expr(Function((x,), call_op("nn.relu", x)))
        assert repr(mod) == "<IRModule @main>"
        assert repr(mod["main"]) == "<Function>"

    def test_what_has_no_text_prints_as_its_repr(self) -> None:
        x = Var("x", TensorType((2,)))
        odd = Function((x,), x, attrs={"made_by": object()})
        with pytest.raises(CompilerError):
            text(odd)
        assert str(odd) == repr(odd) == "<Function>"
