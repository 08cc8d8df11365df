from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import ParseError
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Tuple, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.structural import assert_structural_equal, structural_equal, structural_hash
from compiler.ir.text.parser import MissingVersionWarning, parse, parse_expr
from compiler.ir.text.printer import text
from compiler.ir.ty import Any, TensorType
from tests.each import each

HEAD = '#[version = "0.0.5"]\n'

MODULES = {
    "metadata": """
        def @main(%x: Tensor[(1, 3, 8, 8), float32]) -> Tensor[(1, 3, 8, 8), float32] {
          %0 = add(%x, meta[relay.Constant][0]);
          nn.relu(%0)
        }
        #[metadata]
        {"relay.Constant":[{"dtype":"float32","shape":[1],"b64":"AACAPw=="}]}""",
    "helper, function attributes, module attributes": """
        def @helper(%x: Tensor[(2), float32], Primitive=1, name="a\\"b\\nc", n=[1, 2.5f, None]) {
          add(%x, 1f)
        }
        def @main(%x: Tensor[(2), float32]) { @helper(%x) }
        attributes { "k" = [1, 2.5f, None], "map" = {"a"=True, "b"=@helper}, }""",
    "an if inside a let": """
        def @main(%c: bool, %x: Tensor[(2), float32]) {
          %0 = add(%x, 1f);
          let %y = if (%c) { let %z = multiply(%0, %0); subtract(%z, %0) } else { %0 };
          let %w: Tensor[(2), float32] = add(%y, %y);
          (%w, %0)
        }""",
    "a data type with a match": """
        type List[A] { Cons(A, List[A]), Nil, }
        type Pair[A, B] { MakePair(A, B), }
        def @length[A](%l: List[A]) -> int32 {
          match (%l) { Cons(_, %rest) => { add(1, @length(%rest)) }, Nil => { 0 } }
        }
        def @main(%p: Pair[float32, (float32, float32)]) {
          %0 = match? (%p) { MakePair(%a, (%b, _)) => { %c = 1f; add(%a, %b) } };
          (%0, @length(Cons(1f, Cons(2f, Nil))))
        }""".replace("%c = 1f; ", ""),
    "references": """
        def @main(%x: Tensor[(2), float32]) {
          let %r = ref(%x);
          let %u = ref_write(%r, add(%x, %x));
          ref_read(%r)
        }""",
    "a tuple of one and the unit": "def @main(%x: float32) { ((%x,), (), (%x, 1)) }",
    "shapes with ?": """
        def @main(%x: Tensor[(?, 4), float32], %y: (Tensor[(?), int8], ref(bool))) {
          (add(%x, %x), %y.1)
        }""",
    "closures, recursion, polymorphism": """
        def @id[A](%x: A) -> A { %x }
        def @main(%x: float32) {
          let %f = fn (%n: int32, %a: float32) -> float32 {
            if (equal(%n, 0)) { %a } else { %f(subtract(%n, 1), add(%a, %x)) }
          };
          %0 = fn [B](%b: B) { (%b, %x) };
          (%f(3, 0f), %0(1), %0(2f), @id(%f))
        }""",
    "quoted names": """
        def @"g.1"(%"input:0": float32) { %"input:0" }
        def @main(%"a b": float32) { @"g.1"(%"a b") }""",
    "shared nodes below two scopes": """
        def @main(%c: bool, %x: float32) {
          %0 = exp(%x);
          %1 = if (%c) { %2 = add(%0, 1f); if (%c) { multiply(%2, %2) } else { %0 } } else { %x };
          %3 = fn (%y: float32) { multiply(%y, %0) };
          (%1, %3(%1), %3)
        }""",
}


@pytest.mark.parametrize("source", MODULES.values(), ids=MODULES)
def test_every_module_comes_back(source: str) -> None:
    mod = parse(HEAD + source)
    shown = text(mod)
    back = parse(shown)
    assert_structural_equal(back, mod)
    assert text(back) == shown
    assert structural_hash(back) == structural_hash(mod)
    typed = infer_module(mod)
    assert_structural_equal(infer_module(parse(text(typed))), typed)
    assert text(infer_module(parse(text(typed)))) == text(typed)


def test_a_free_expression_comes_back_with_its_free_variables_mapped() -> None:
    x, y = Var("x", TensorType((2,))), Var("x", TensorType((2,), "int8"))
    expr = Tuple((x + x, y, x))
    assert structural_equal(parse_expr(text(expr)), expr, map_free_vars=True)
    assert text(parse_expr(text(expr))) == text(expr)


class TestLanguage:
    def test_comments_are_skipped_also_nested_ones(self) -> None:
        source = """
        // one line "
        def /* a /* b */ c */ @main(/* %y */ %x: float32 /* ty=int8 */) { // end
          add(%x/**/, 1f) /* } */
        }"""
        plain = "def @main(%x: float32) { add(%x, 1f) }"
        assert structural_equal(parse(HEAD + source), parse(HEAD + plain))

    @pytest.mark.parametrize(
        ("infix", "call"),
        [
            ("%x + %x * %x", "add(%x, multiply(%x, %x))"),
            ("%x - %x - %x", "subtract(subtract(%x, %x), %x)"),
            ("%x * (%x + %x)", "multiply(%x, add(%x, %x))"),
            ("%x / 2f < -1f", "less(divide(%x, 2f), -1f)"),
            ("%x + %x == %x", "equal(add(%x, %x), %x)"),
            ("%x >= -%x != True", "not_equal(greater_equal(%x, negative(%x)), True)"),
        ],
    )
    def test_infix_operators_bind_as_in_relay(self, infix: str, call: str) -> None:
        head = "free_var %x: float32; "
        assert structural_equal(parse_expr(head + infix), parse_expr(head + call), True)

    @pytest.mark.parametrize(
        ("written", "dtype", "value"),
        [
            ("42", "int32", 42),
            ("42i16", "int16", 42),
            ("-42i64", "int64", -42),
            ("3f", "float32", 3),
            ("1e11f", "float32", 1e11),
            ("0.5f16", "float16", 0.5),
            ("-inff", "float32", -np.inf),
            ("False", "bool", False),
        ],
    )
    def test_a_number_has_the_dtype_of_its_suffix(
        self, written: str, dtype: str, value: float
    ) -> None:
        constant = parse_expr(written)
        assert isinstance(constant, Constant)
        assert constant.data.dtype == dtype
        assert constant.data == np.asarray(value, dtype)

    @pytest.mark.parametrize("shape", ["(10)", "(10,)", "(10i64)"])
    def test_a_shape_of_rank_one_may_have_a_trailing_comma(self, shape: str) -> None:
        var = parse_expr(f"free_var %x: Tensor[{shape}, float32]; %x")
        assert isinstance(var, Var)
        assert var.type_annotation == TensorType((10,))

    def test_scalar_types_are_dtypes(self) -> None:
        fn = parse_expr("fn (%x: int8, %y: Tensor[(), int8], %z: Tensor[(?,), int8]) { %x }")
        assert isinstance(fn, Function)
        assert [p.type_annotation for p in fn.params] == [
            TensorType((), "int8"),
            TensorType((), "int8"),
            TensorType((Any(),), "int8"),
        ]

    def test_items_of_items(self) -> None:
        assert text(parse_expr("free_var %t: ((int8, int8), int8); %t.0.1"), show_types=False) == (
            "free_var %t: ((int8, int8), int8);\n%0 = %t.0;\n%0.1"
        )

    def test_a_shadowing_variable_ends_with_its_scope(self) -> None:
        fn = parse_expr("fn (%x: int8) { (fn (%x: bool) { %x }, %x) }")
        assert isinstance(fn, Function)
        pair = fn.body
        assert isinstance(pair, Tuple)
        inner, outer = pair.fields
        assert isinstance(inner, Function)
        assert inner.body is inner.params[0]
        assert outer is fn.params[0]

    def test_one_global_var_object_per_name(self) -> None:
        mod = parse(HEAD + "def @f() { @g() } def @g() { 1 } def @main() { (@f(), @g()) }")
        nodes = [node for fn in mod.functions.values() for node in post_order(fn)]
        for node in each(node for node in nodes if isinstance(node, GlobalVar)):
            assert node is mod.get_global_var(node.name_hint)

    def test_a_metadata_reference_is_one_object(self) -> None:
        source = """(meta[relay.Constant][0], meta[relay.Constant][0])
        #[metadata]
        {"relay.Constant":[{"dtype":"int8","shape":[2],"b64":"AQI="}]}"""
        pair = parse_expr(source)
        assert isinstance(pair, Tuple)
        assert pair.fields[0] is pair.fields[1]

    def test_braces_around_a_clause_may_be_left_out(self) -> None:
        head = HEAD + "type Option { Some(int32), None_, }\ndef @main(%o: Option) "
        bare = "{ match (%o) { Some(%x) => 1 + %x, None_ => if (True) { 0 } else { 1 } } }"
        braced = (
            "{ match (%o) { Some(%x) => { 1 + %x }, None_ => { if (True) { 0 } else { 1 } } } }"
        )
        assert structural_equal(parse(head + bare), parse(head + braced))

    def test_an_expression_alone_becomes_main(self) -> None:
        mod = parse(HEAD + "free_var %x: float32; add(%x, 1f)")
        assert [p.name_hint for p in mod["main"].params] == ["x"]

    def test_nodes_carry_the_place_they_were_written_at(self) -> None:
        mod = parse(HEAD + "def @main(%x: float32) {\n  add(%x,\n    1f)\n}", source_name="f.relay")
        span = mod["main"].body.span
        assert (span.source_name, span.line, span.column, span.end_line, span.end_column) == (
            "f.relay",
            3,
            3,
            4,
            8,
        )

    def test_a_missing_version_is_a_warning(self) -> None:
        with pytest.warns(MissingVersionWarning, match=r"0\.0\.5"):
            parse("def @main() { 1 }")


class TestErrors:
    @pytest.mark.parametrize(
        ("source", "place", "parts"),
        [
            ("def @main(%x: int8) {\n  %1 = %0;\n  %1\n}", "2:8", ["%0"]),
            ("def @main(%x: int8, %x: int8) { %x }", "1:21", ["%x", "twice"]),
            ("def @main(%x: int8) {\n nn.conv2dd(%x)\n}", "2:2", ["nn.conv2dd", "nn.conv2d"]),
            ("def @main() { %y }", "1:15", ["%y", "free_var"]),
            ("def @main(%val: int8) { %vla }", "1:25", ["did you mean %val"]),
            ("def @main() { let %x = 1; { let %y = %x; %y }; %y }", "1:48", ["%y is not defined"]),
            ("def @main() { 1 } def @main() { 2 }", "1:23", ["@main", "twice"]),
            ("def @main() { meta[relay.Constant][3] }", "1:15", ["meta[relay.Constant][3]"]),
            ("def @main(%x: Tensor[(2), float23]) { %x }", "1:27", ["float23", "float32"]),
            ("def @main(%x: Tenser[(2), float32]) { %x }", "1:15", ["Tenser", "Tensor"]),
            ("def @main(%x: int8) { add(%x, 1f, axis=3) }", "1:35", ["axis", "no attributes"]),
            ('def @main(%x: int8) { cast(%x, dtyp="int8") }', "1:32", ["dtyp", "dtype"]),
            ("def @main() { 99999999999 }", "1:15", ["99999999999", "int32"]),
            ("def @main() { 1q }", "1:16", ["'}'"]),
            ("def @main() { 1", "1:16", ["'}'", "end of the text"]),
            ("def @main() { 1 } }", "1:19", ["def"]),
            ("def @main() { 1 $ }", "1:17", ["'$'"]),
            ("def @main() { /* 1 }", "1:15", ["comment"]),
            ("def @main() { match (1) { Foo => { 1 } } }", "1:27", ["Foo"]),
            ("def @main() { 1 }\n#[metadata]\n{oops", "2:12", ["JSON"]),
        ],
    )
    def test_a_parse_error_shows_line_column_and_caret(
        self, source: str, place: str, parts: list[str]
    ) -> None:
        with pytest.raises(ParseError) as caught:
            parse('#[version = "0.0.5"]' + source)
        line, column = map(int, place.split(":"))
        place = f"{line}:{column + (len(HEAD) - 1 if line == 1 else 0)}"
        message = str(caught.value)
        assert message.startswith(place + ":")
        assert "^" in message
        for part in parts:
            assert part in message

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(ParseError, match=r"0\.0\.4"):
            parse('#[version = "0.0.4"]\ndef @main() { 1 }')

    def test_nesting_without_end_is_an_error_not_a_crash(self) -> None:
        with pytest.raises(ParseError, match="nested"):
            parse_expr("(" * 5000 + "1" + ")" * 5000)


class TestExternalData:
    def test_large_arrays_go_to_the_sidecar_and_come_back(self, tmp_path: Path) -> None:
        big = Constant(np.arange(400_000, dtype="float32"))
        small = Constant(np.arange(3, dtype="int8"))
        mod = IRModule({"main": Function((), Tuple((small, big)))})
        path = tmp_path / "arrays.npz"
        shown = text(mod, external_data=path)
        assert len(shown) < 1000
        assert '{"npz":"k1"}' in shown
        assert_structural_equal(parse(shown, external_data=path), mod)
        with pytest.raises(ParseError, match="external_data"):
            parse(shown)


def test_five_thousand_calls_print_and_parse_at_the_default_recursion_limit() -> None:
    assert sys.getrecursionlimit() <= 1000
    x = Var("x", TensorType((2,)))
    expr: Expr = x
    for _ in range(5_000):
        expr = Call(compiler.relay.op.add(x, x).op, (expr, Constant(np.float32(1e11))))
    mod = IRModule({"main": Function((x,), expr)})
    shown = text(mod)
    back = parse(shown)
    assert structural_equal(back, mod)
    assert text(back) == shown


@pytest.mark.parametrize(
    "text",
    [
        f"def @main(%x: {'(' * 3000}int32{',)' * 3000}) {{ %x }}",
        f"def @main(%x: {'ref(' * 3000}int32{')' * 3000}) {{ %x }}",
        f"def @main(%x: {'fn () -> ' * 3000}int32) {{ %x }}",
        f"def @main(%x: int32, a={'[' * 3000}{']' * 3000}) {{ %x }}",
        f"type L {{ C(L), N, }} def @main(%x: L) "
        f"{{ match? (%x) {{ {'C(' * 3000}N{')' * 3000} => {{ 1 }}, }} }}",
        f"def @main(%x: int32) {{ {'(' * 3000}%x{')' * 3000} }}",
        "def @main(%x: int32) { %x }\n#[metadata]\n" + "[" * 100_000,
    ],
    ids=["tuple type", "ref type", "function type", "value", "pattern", "parentheses", "metadata"],
)
def test_nesting_beyond_the_stack_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError, match=r"nested|not JSON"):
        parse(HEAD + text)


def test_the_warning_about_a_missing_version_points_at_the_caller() -> None:
    with pytest.warns(MissingVersionWarning) as caught:
        parse("def @main() { 1f }")
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("call", "column"),
    [("nn.softmax(%x, axis=1, axes=2)", 62), ("nn.relu(%x, alpha=1f)", 51)],
)
def test_the_caret_stands_under_the_unknown_attribute(call: str, column: int) -> None:
    with pytest.raises(ParseError) as caught:
        parse(f"{HEAD}def @main(%x: Tensor[(2), float32]) {{ {call} }}")
    assert f"2:{column}:" in str(caught.value)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("nn.relu(%x); exp(%x)", "let %_ = nn.relu(%x); exp(%x)"),
        ("(let %a = exp(%x); %a)", "let %a = exp(%x); %a"),
        (
            "add((let %a = exp(%x); add(%a, %a)), %x)",
            "%0 = {let %a = exp(%x); add(%a, %a)}; add(%0, %x)",
        ),
    ],
)
def test_lets_without_a_name_and_in_parentheses_are_relays(written: str, meant: str) -> None:
    head = '#[version = "0.0.5"]\ndef @main(%x: Tensor[(2), float32]) {'
    assert structural_equal(parse(f"{head}{written}}}"), parse(f"{head}{meant}}}"))


def test_a_line_without_a_result_is_an_error() -> None:
    with pytest.raises(ParseError):
        parse_expr("(let %a = 1f; )")


@pytest.mark.parametrize("part", ["a/", "a", "a.", "/**/ ", " "])
def test_what_repeats_for_long_takes_no_memory_for_places_to_go_back_to(part: str) -> None:
    written = part * (1 << 18) + "a"
    tracemalloc.start()
    try:
        with pytest.raises(ParseError):
            parse_expr(written + " $")
        assert tracemalloc.get_traced_memory()[1] < 16 * len(written) + (1 << 24)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("bare", "dtype"), [("int", "int32"), ("uint", "uint32"), ("float", "float32")]
)
def test_a_dtype_without_bits_has_32(bare: str, dtype: str) -> None:
    head = '#[version = "0.0.5"]\ndef @main'
    for ty, meant in ((bare, dtype), (f"Tensor[(2), {bare}]", f"Tensor[(2), {dtype}]")):
        written = parse(f"{head}(%x: {ty}) {{ add(%x, %x) }}")
        assert structural_equal(written, parse(f"{head}(%x: {meant}) {{ add(%x, %x) }}"))


def test_a_match_reads_a_tuple_that_is_written_in_its_parentheses() -> None:
    head = '#[version = "0.0.5"]\ndef @main(%a: float32, %b: float32) { match '
    clause = " { (%x, %y) => subtract(%x, %y), } }"
    written = parse(f"{head}(%a, %b){clause}")
    assert structural_equal(written, parse(f"{head}((%a, %b)){clause}"))
    assert structural_equal(written, parse(text(written)))


def test_a_scale_and_a_zero_point_are_printed_behind_a_value_and_parsed() -> None:
    written = (
        f"{HEAD}def @main(%x: Tensor[(2), int8] : quant(0.1f, -3)) {{\n"
        "  %0 = nn.relu(%x) : quant(1e-30f);\n"
        '  %1 = cast(%0, dtype="int8") : quant(2f, 0, 12);\n'
        "  add(%0, %1) : quant(0.5f, 7)\n}\n"
    )
    mod = infer_module(parse(written))
    main = mod["main"]
    assert isinstance(main, Function)
    assert main.params[0].quant == (float(np.float32(0.1)), -3, 0)
    assert main.body.quant == (0.5, 7, 0)
    assert main.body.operands()[-1].quant == (2.0, 0, 12)
    assert "%x: Tensor[(2), int8] : quant(0.1f, -3)" in text(mod, show_types=False)
    again = parse(text(mod, show_types=False))
    assert text(infer_module(again)) == text(mod)
    plain = parse(written.replace(" : quant(0.5f, 7)", ""))
    assert structural_equal(infer_module(plain), mod)


@pytest.mark.parametrize(
    "wrong",
    [
        *("quant(0f)", "quant(-1f)", "quant(inff)", "quant(1f, 0.5f)", "quant()"),
        *("quant(1f, 1, 8)", "quant(1f, 1, 17)", "quant(1f, 1, 9.5f)", "quant(1f, 1, 9, 9)"),
    ],
)
def test_a_scale_that_is_no_finite_number_above_zero_is_refused(wrong: str) -> None:
    with pytest.raises(ParseError, match="a quant holds a scale, a zero point"):
        parse(f"{HEAD}def @main(%x: Tensor[(2), int8]) {{ nn.relu(%x) : {wrong} }}")
