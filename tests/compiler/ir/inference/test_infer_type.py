from __future__ import annotations

from collections.abc import Sequence
from typing import Any as Any_

import numpy as np
import pytest

import compiler
from compiler.errors import TypeInferenceError, TypeNotInferredError
from compiler.ir.adt import RefCreate, RefRead, RefWrite
from compiler.ir.analysis import post_order
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
    call_op,
)
from compiler.ir.inference.infer_type import infer_expr, infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import OpPattern, register_op
from compiler.ir.pass_infra import InferType
from compiler.ir.ty import Any, FuncType, RefType, TensorType, TupleType, Type, TypeVar
from compiler.ir.type_relation import result_rel
from tests.compiler.work import calls_of
from tests.each import each

F32 = "float32"

CONV = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 32, 32), float32], %w, %b: Tensor[(BIAS, 1, 1), float32]) {
  %0 = nn.conv2d(%x, %w, ATTRS, kernel_size=[3, 3]);
  add(%0, %b)
}
"""


def infer(text: str) -> IRModule:
    return InferType()(compiler.parse('#[version = "0.0.5"]\n' + text))


def main_of(mod: IRModule) -> Function:
    main = mod["main"]
    assert isinstance(main, Function)
    return main


def result_of(params: str, body: str) -> object:
    return main_of(infer(f"def @main({params}) {{ {body} }}")).body.checked_type


def conv(attrs: str, channels: int) -> Function:
    text = CONV.replace("ATTRS", attrs).replace("BIAS", str(channels))
    return main_of(InferType()(compiler.parse(text)))


class TestConvWithBias:
    def test_the_relation_assigns_the_weight_and_the_function_gets_its_type(self) -> None:
        fn = conv("strides=[2, 2], padding=[1, 1, 1, 1], channels=16", 16)
        assert fn.params[1].checked_type == TensorType((16, 3, 3, 3), F32)
        assert fn.params[1].type_annotation == TensorType((16, 3, 3, 3), F32)
        assert isinstance(fn.body, Call)
        assert fn.body.args[0].checked_type == TensorType((1, 16, 16, 16), F32)
        assert str(fn.checked_type) == (
            "fn (Tensor[(1, 3, 32, 32), float32], Tensor[(16, 3, 3, 3), float32], "
            "Tensor[(16, 1, 1), float32]) -> Tensor[(1, 16, 16, 16), float32]"
        )

    def test_groups_divide_the_input_channels_of_the_weight(self) -> None:
        fn = conv("strides=[2, 2], padding=[1, 1, 1, 1], groups=3, channels=6", 6)
        assert fn.params[1].checked_type == TensorType((6, 1, 3, 3), F32)
        assert fn.body.checked_type == TensorType((1, 6, 16, 16), F32)

    def test_two_paddings_mean_height_and_width(self) -> None:
        fn = conv("padding=[1, 2], channels=16", 16)
        assert fn.body.checked_type == TensorType((1, 16, 32, 34), F32)

    def test_inferring_twice_keeps_every_object(self) -> None:
        text = CONV.replace("ATTRS", "channels=16").replace("BIAS", "16")
        once = InferType()(compiler.parse(text))
        twice = InferType()(once)
        assert twice is once
        assert twice["main"] is once["main"]


class TestErrors:
    @pytest.mark.parametrize(
        ("params", "body", "parts"),
        [
            (
                "%x: Tensor[(2, 3), float32], %y: Tensor[(2, 4), float32]",
                "add(%x, %y)",
                ["add", "(2, 3)", "(2, 4)", "sizes 3 and 4"],
            ),
            (
                "%x: Tensor[(2), float32], %y: Tensor[(2), int32]",
                "add(%x, %y)",
                ["add", "float32", "int32"],
            ),
            ("", "nn.bias_add(1f, 2f, axis=0)", ["nn.bias_add", "rank"]),
            (
                "%x: Tensor[(2, 3), float32]",
                "reshape(%x, newshape=[4, -1])",
                ["reshape", "(2, 3)", "(4, -1)"],
            ),
            (
                "%x: Tensor[(4, 8), float32], %w: Tensor[(10, 7), float32]",
                "nn.dense(%x, %w)",
                ["nn.dense", "8", "7"],
            ),
            ("%x: Tensor[(2), float32]", "%x.0", ["not a tuple"]),
            ("%x: Tensor[(2), float32]", "(%x, %x).2", ["index 2"]),
            ("%x: Tensor[(2), float32]", "nn.relu(%x, %x)", ["nn.relu", "expects 1", "got 2"]),
            ("%x: Tensor[(2), float32]", "%x(%x)", ["%x", "called"]),
            ("%x: Tensor[(2), float32]", "if (%x) { 1f } else { 2f }", ["condition", "bool"]),
            ("%c: bool", "if (%c) { 1f } else { 2 }", ["branches", "float32", "int32"]),
            ("%x", "%x", ["could not infer", "%x"]),
            ("%x, %y", "add(%x, %y)", ["could not infer", "add"]),
            ("%x: float32", "let %y: int32 = %x; %y", ["let %y", "int32", "float32"]),
            ("%x: float32", "@nowhere(%x)", ["@nowhere"]),
        ],
    )
    def test_a_wrong_call_is_a_type_error_that_shows_its_types(
        self, params: str, body: str, parts: list[str]
    ) -> None:
        with pytest.raises(TypeInferenceError) as caught:
            result_of(params, body)
        for part in parts:
            assert part in str(caught.value)

    def test_independent_errors_of_one_function_come_together(self) -> None:
        params = "%x: Tensor[(2, 3), float32], %y: Tensor[(2, 4), float32], "
        params += "%a: Tensor[(2), float32], %b: Tensor[(2), int32]"
        with pytest.raises(TypeInferenceError) as caught:
            result_of(params, "(add(%x, %y), add(%a, %b))")
        message = str(caught.value)
        assert "2 type errors" in message
        assert "sizes 3 and 4" in message
        assert "int32" in message

    def test_a_consequence_of_an_error_is_not_reported_again(self) -> None:
        params = "%x: Tensor[(2, 3), float32], %y: Tensor[(2, 4), float32]"
        with pytest.raises(TypeInferenceError) as caught:
            result_of(params, "%0 = add(%x, %y); nn.relu(nn.relu(%0))")
        assert "type errors" not in str(caught.value)
        assert "nn.relu" not in str(caught.value)

    def test_a_message_shows_at_most_ten_type_errors(self) -> None:
        bad = ", ".join(["add(%x, %y)"] * 14)
        with pytest.raises(TypeInferenceError) as caught:
            result_of("%x: Tensor[(2), float32], %y: Tensor[(3), float32]", f"({bad})")
        assert "14 type errors" in str(caught.value)
        assert "and 4 more" in str(caught.value)

    def test_the_message_names_arguments_call_and_place(self) -> None:
        with pytest.raises(TypeInferenceError) as caught:
            result_of("%x: Tensor[(2), float32], %y: Tensor[(3), float32]", "add(%x, %y)")
        message = str(caught.value)
        assert "argument 0 (lhs): Tensor[(2), float32]" in message
        assert "add(%x, %y)" in message
        assert "InferType" in message
        assert caught.value.span is not None

    def test_an_unread_type_names_the_node(self) -> None:
        with pytest.raises(TypeNotInferredError, match=r"nn\.relu"):
            _ = call_op("nn.relu", Var("x")).checked_type


def _careless(types: Sequence[Any_], attrs: object) -> Type:
    return TensorType((types[0].shape[1],))


careless = register_op(
    "test.careless", arg_names=("data",), rel=result_rel(_careless), pattern=OpPattern.OPAQUE
)


@pytest.mark.parametrize("ty", [TensorType(()), TupleType()])
def test_a_relation_that_trips_is_still_a_type_error_naming_the_operator(ty: Type) -> None:
    with pytest.raises(TypeInferenceError, match=r"test\.careless: these argument types"):
        infer_expr(Call(careless, (Var("x", ty),)))


class TestUnknownDimensions:
    @pytest.mark.parametrize(
        ("op", "lhs", "rhs", "shape"),
        [
            ("add", "(?, 4)", "(1, 4)", (Any(), 4)),
            ("add", "(?, 4)", "(3, 1)", (3, 4)),
            ("add", "(?, 4)", "(?, 1)", (Any(), 4)),
            ("multiply", "(2, ?)", "(2, 5)", (2, 5)),
        ],
    )
    def test_shapes_are_broadcast(
        self, op: str, lhs: str, rhs: str, shape: tuple[object, ...]
    ) -> None:
        params = f"%x: Tensor[{lhs}, float32], %y: Tensor[{rhs}, float32]"
        assert result_of(params, f"{op}(%x, %y)") == TensorType(shape, F32)  # type: ignore[arg-type]

    @pytest.mark.parametrize("newshape", ["[-1, 64]", "[0, -1]"])
    def test_reshape_keeps_an_unknown_size(self, newshape: str) -> None:
        found = result_of("%x: Tensor[(?, 8, 8), float32]", f"reshape(%x, newshape={newshape})")
        assert found == TensorType((Any(), 64), F32)

    def test_conv2d_passes_the_batch_through(self) -> None:
        params = "%x: Tensor[(?, 3, 8, 8), float32], %w: Tensor[(5, 3, 3, 3), float32]"
        found = result_of(params, "nn.conv2d(%x, %w, channels=5, kernel_size=[3, 3])")
        assert found == TensorType((Any(), 5, 6, 6), F32)

    def test_branches_widen_and_arguments_refine(self) -> None:
        params = "%c: bool, %x: Tensor[(?, 4), float32], %y: Tensor[(3, 4), float32]"
        widened = result_of(params, "if (%c) { %x } else { %y }")
        assert widened == TensorType((Any(), 4), F32)
        text = "def @main(%y: Tensor[(3, 4), float32]) -> Tensor[(?, 4), float32] { %y }"
        fn = main_of(infer(text))
        assert fn.checked_type == FuncType((TensorType((3, 4)),), TensorType((3, 4)))


class TestKinds:
    def test_tuples_and_items(self) -> None:
        found = result_of("%x: float32", "let %t = (%x, (%x, 1)); %t.1")
        assert found == TupleType((TensorType((), F32), TensorType((), "int32")))
        assert result_of("", "()") == TupleType()

    def test_references_have_reference_types(self) -> None:
        x = Var("x", TensorType((2,)))
        cell = RefCreate(x)
        typed = infer_expr(Tuple((cell, RefRead(cell), RefWrite(cell, x))))
        assert typed.checked_type == TupleType(
            (RefType(TensorType((2,))), TensorType((2,)), TupleType())
        )

    def test_a_function_literal_may_call_itself_through_its_let(self) -> None:
        body = """
          let %f = fn (%n: int32, %x: float32) -> float32 {
            if (equal(%n, 0)) { %x } else { %f(subtract(%n, 1), add(%x, 1f)) }
          };
          %f(3, 0f)"""
        assert result_of("", body) == TensorType((), F32)

    def test_polymorphic_functions_are_instantiated_per_call(self) -> None:
        text = """
        def @id[A](%x: A) -> A { %x }
        def @main(%x: Tensor[(2), float32]) { (@id(%x), @id(1)) }
        """
        found = main_of(infer(text)).body.checked_type
        assert found == TupleType((TensorType((2,)), TensorType((), "int32")))

    def test_explicit_type_arguments_are_used(self) -> None:
        var = TypeVar("A")
        x = Var("x", var)
        fn = Function((x,), x, var, (var,))
        call = Call(fn, (Constant(np.float32(1)),), None, (TensorType((), "int32"),))
        with pytest.raises(TypeInferenceError, match="float32"):
            infer_expr(call)

    def test_functions_are_inferred_callees_first(self) -> None:
        text = """
        def @a(%x: Tensor[(2), float32]) { @z(%x) }
        def @main(%x: Tensor[(2), float32]) { @a(%x) }
        def @z(%x: Tensor[(2), float32]) { cast(%x, dtype="int8") }
        """
        assert main_of(infer(text)).body.checked_type == TensorType((2,), "int8")

    def test_recursion_needs_annotations(self) -> None:
        bad = "def @main(%x: Tensor[(2), float32]) { @main(%x) }"
        with pytest.raises(TypeInferenceError, match=r"@main is recursive.*the result"):
            infer(bad)
        good = "def @main(%x: Tensor[(2), float32]) -> Tensor[(2), float32] { @main(%x) }"
        assert main_of(infer(good)).body.checked_type == TensorType((2,))

    def test_a_parameter_is_typed_by_how_it_is_called(self) -> None:
        found = infer_expr(
            compiler.parse_expr("free_var %x: Tensor[(2), float32]; fn (%y) { nn.relu(%y) }(%x)")
        )
        assert found.checked_type == TensorType((2,))
        assert isinstance(found, Call)
        assert isinstance(found.op, Function)
        assert found.op.params[0].type_annotation == TensorType((2,))

    def test_a_relation_runs_again_when_its_argument_becomes_known(self) -> None:
        # %y is known only after the call of the function it belongs to has been seen.
        text = """
        def @main(%x: Tensor[(4, 8), float32]) {
          let %f = fn (%y, %w: Tensor[(3, 8), float32]) { nn.relu(nn.dense(%y, %w)) };
          fn (%w: Tensor[(3, 8), float32]) { %f(%x, %w) }
        }
        """
        fn = main_of(infer(text)).body.checked_type
        assert fn == FuncType((TensorType((3, 8)),), TensorType((4, 3)))


LIST = """#[version = "0.0.5"]
type List[A] { Cons(A, List[A]), Nil, }
def @main(%l: List[float32]) { BODY }
"""


class TestMatch:
    def infer(self, body: str) -> Type:
        return main_of(InferType()(compiler.parse(LIST.replace("BODY", body)))).body.checked_type

    def test_patterns_bind_typed_variables(self) -> None:
        found = self.infer("match (%l) { Cons(%h, _) => { %h }, Nil => { 0f } }")
        assert found == TensorType((), F32)

    def test_constructors_are_polymorphic_functions(self) -> None:
        assert compiler.text(self.infer("Cons(1f, %l)")) == "List[float32]"
        with pytest.raises(TypeInferenceError, match="int32"):
            self.infer("Cons(1, %l)")

    @pytest.mark.parametrize(
        ("clauses", "missing"),
        [
            ("Cons(%h, _) => { %h }", "Nil"),
            ("Nil => { 0f }", "Cons(_, _)"),
            ("Nil => { 0f }, Cons(%h, Nil) => { %h }", "Cons(_, Cons(_, _))"),
        ],
    )
    def test_a_complete_match_must_cover_every_case(self, clauses: str, missing: str) -> None:
        with pytest.raises(TypeInferenceError) as caught:
            self.infer(f"match (%l) {{ {clauses} }}")
        assert f"does not cover {missing}" in str(caught.value)
        assert self.infer(f"match? (%l) {{ {clauses} }}") == TensorType((), F32)

    def test_clauses_must_agree(self) -> None:
        with pytest.raises(TypeInferenceError, match="clauses"):
            self.infer("match (%l) { Cons(%h, _) => { %h }, Nil => { 0 } }")


class TestReuse:
    def test_typed_nodes_are_kept_under_new_ones(self) -> None:
        x = Var("x", TensorType((2,)))
        old = call_op("nn.relu", x)
        infer_expr(old)
        new = infer_expr(call_op("exp", old))
        assert isinstance(new, Call)
        assert new.args[0] is old

    def test_a_let_variable_of_another_type_retypes_its_users(self) -> None:
        v = Var("v")
        use = call_op("nn.relu", v)
        first = infer_expr(Let(v, Constant(np.zeros(2, F32)), use))
        assert first.checked_type == TensorType((2,), F32)
        second = infer_expr(Let(v, Constant(np.zeros(3, "int8")), use))
        assert second.checked_type == TensorType((3,), "int8")
        assert isinstance(second, Let)
        assert second.body is not use
        assert use.checked_type == TensorType((2,), F32)

    def test_a_changed_callee_retypes_its_callers(self) -> None:
        text = """
        def @f(%x: Tensor[(2), float32]) { %x }
        def @main(%x: Tensor[(2), float32]) { nn.relu(@f(%x)) }
        """
        mod = infer(text)
        x = Var("x", TensorType((2,)))
        attrs = compiler.parse_expr('cast(1f, dtype="int8")').attrs  # type: ignore[attr-defined]
        changed = infer_module(
            mod.with_function("f", Function((x,), call_op("cast", x, attrs=attrs)))
        )
        assert main_of(changed).body.checked_type == TensorType((2,), "int8")
        assert main_of(mod).body.checked_type == TensorType((2,), F32)

    def test_every_expression_has_a_type(self) -> None:
        mod = infer(
            "def @f(%x: float32) { %x } def @main(%c: bool) { if (%c) { @f(1f) } else { 2f } }"
        )
        for node in each(post_order(main_of(mod))):
            assert node.checked_type is not None

    def test_seven_hundred_nodes_with_types_are_not_typed_again(self) -> None:
        x = Var("x", TensorType((1, 8, 4, 4)))
        z: Expr = x
        for _ in range(350):
            z = call_op("nn.relu", z) + x
        untyped = IRModule({"main": Function((x,), z)})
        everything = calls_of(lambda: infer_module(untyped))
        mod = infer_module(untyped)
        new = Function(main_of(mod).params, call_op("exp", main_of(mod).body))
        added = calls_of(lambda: infer_module(IRModule({GlobalVar("main"): new})))
        assert 2 * added < everything


def test_if_with_shared_operand_and_item_of_a_tuple_valued_branch() -> None:
    c = Var("c", TensorType((), "bool"))
    pair = If(c, Tuple((c, Constant(np.int8(1)))), Tuple((c, Constant(np.int8(2)))))
    assert infer_expr(TupleGetItem(pair, 1)).checked_type == TensorType((), "int8")


def test_types_nested_beyond_the_stack_are_a_type_error() -> None:
    value: Expr = Var("x", TensorType(()))
    for _ in range(3000):
        value = Tuple((value,))
    with pytest.raises(TypeInferenceError, match="nested more than 100 deep"):
        infer_expr(value)


def test_negative_channels_are_a_type_error() -> None:
    with pytest.raises(TypeInferenceError, match=r"nn\.conv2d.*-4"):
        conv("channels=-4", 4)


@pytest.mark.parametrize(
    ("params", "body", "shown"),
    [
        ("%x: Tensor[(2), float32]", "add(%x, 1)", "in add(%x, 1)"),
        ("%x: Tensor[(2), float32]", "if (%x) { 1f } else { 2f }", "in if (%x) {…} else {…}"),
        ("%x: Tensor[(2), float32]", "ref_read(%x)", "in ref_read(%x)"),
        ("%x: Tensor[(2), float32]", "ref_write(ref(%x), 1f)", "in ref_write(ref(%x), 1f)"),
        ("%x: Tensor[(2), float32]", "let %y: int32 = %x; %y", "in let %y = %x"),
    ],
)
def test_errors_show_the_expression_as_it_is_written(params: str, body: str, shown: str) -> None:
    with pytest.raises(TypeInferenceError) as caught:
        result_of(params, body)
    assert shown in str(caught.value)
