from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import compiler
from compiler.errors import AttrError
from compiler.ir.adt import (
    Clause,
    Constructor,
    Match,
    PatternConstructor,
    PatternVar,
    RefCreate,
)
from compiler.ir.attrs import DictAttrs
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
from compiler.ir.module import IRModule
from compiler.ir.structural import assert_structural_equal, structural_equal, structural_hash
from compiler.ir.ty import Any, FuncType, GlobalTypeVar, TensorType, TupleType, TypeVar
from compiler.ir.virtual_device import VirtualDevice
from compiler.span import Span
from tests.each import each

VECTOR = TensorType((2,))


def const(value: float, dtype: str = "float32") -> Constant:
    return Constant(np.asarray(value, dtype))


def var(name: str, dtype: str = "float32") -> Var:
    return Var(name, TensorType((2,), dtype))


def both_ways(a: Expr, b: Expr, map_free_vars: bool = False) -> bool:
    """Equality, after checking that it is symmetric and that the hashes agree with it."""
    equal = structural_equal(a, b, map_free_vars)
    assert structural_equal(b, a, map_free_vars) is equal
    hashes = structural_hash(a, map_free_vars), structural_hash(b, map_free_vars)
    assert (hashes[0] == hashes[1]) is equal
    return equal


def test_a_constant_is_its_values_however_memory_holds_them() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(2, 3)
    transposed = np.asfortranarray(rows)
    transposed.flags.writeable = False
    columns = Constant(transposed)
    assert columns.data is transposed
    assert both_ways(Constant(rows), columns)
    assert not both_ways(Constant(rows + 1), columns)
    assert not both_ways(const(0.0), const(-0.0))
    assert both_ways(const(np.nan), const(np.nan))


class TestVariables:
    def test_bound_variables_are_compared_by_their_place(self) -> None:
        x, a = var("x"), var("a")
        assert both_ways(Function((x,), x + 1.0), Function((a,), a + 1.0))
        n = var("n", "int32")
        assert not both_ways(Function((x,), x + const(1)), Function((n,), n + const(1)))

    def test_a_free_variable_equals_only_itself_unless_mapped(self) -> None:
        x, y, a, b = var("x"), var("y"), var("a"), var("b")
        assert both_ways(x + 1.0, x + 1.0)
        assert not both_ways(x + 1.0, a + 1.0)
        assert both_ways(x + 1.0, a + 1.0, map_free_vars=True)
        assert both_ways(x + y, a + b, map_free_vars=True)
        assert not both_ways(x + x, a + b, map_free_vars=True)
        assert not both_ways(x + y, a + a, map_free_vars=True)
        assert not both_ways(x + x, var("n", "int32") + a, map_free_vars=True)

    def test_the_same_variables_in_another_order_are_another_function(self) -> None:
        x, y = var("x"), var("y")
        assert not both_ways(Function((x, y), x - y), Function((y, x), x - y))
        assert both_ways(Function((x, y), x - y), Function((y, x), y - x))

    def test_a_let_binds_its_variable(self) -> None:
        x, a = Var("x"), Var("a")
        assert both_ways(Let(x, const(1), x), Let(a, const(1), a))
        assert not both_ways(Let(x, const(1), x), Let(x, const(1), a))

    def test_a_variable_on_another_device_differs(self) -> None:
        plain = var("x")
        placed = Var("x", VECTOR, virtual_device=VirtualDevice("c"))
        assert not both_ways(Function((plain,), plain), Function((placed,), placed))

    def test_function_attributes_and_result_types_count(self) -> None:
        x = var("x")
        fn = Function((x,), x)
        assert not both_ways(fn, fn.with_attr("Primitive", 1))
        assert not both_ways(fn, Function((x,), x, VECTOR))

    def test_spans_and_checked_types_do_not_count(self) -> None:
        x = var("x")
        assert both_ways(
            call_op("nn.relu", x), call_op("nn.relu", x, span=Span("model.onnx", 3, 3, 1, 9))
        )
        typed = compiler.infer_expr(call_op("nn.relu", x))
        assert both_ways(typed, call_op("nn.relu", x))


class TestSharing:
    def test_a_shared_node_is_not_two_equal_ones(self) -> None:
        x = var("x")
        t = x + x
        assert not both_ways(t * t, (x + x) * (x + x))

    def test_constants_and_items_are_compared_by_content(self) -> None:
        c = const(1)
        assert both_ways(c + c, const(1) + const(1))
        t = Tuple((const(1), const(2)))
        item = TupleGetItem(t, 0)
        assert both_ways(item + item, TupleGetItem(t, 0) + TupleGetItem(t, 0))

    @pytest.mark.parametrize(
        ("a", "b", "equal"),
        [
            (const(0.0), const(-0.0), False),
            (const(1, "int32"), const(1, "int64"), False),
            (const(float("nan")), const(float("nan")), True),
            (Constant(np.zeros((1, 2))), Constant(np.zeros((2, 1))), False),
            (Constant(np.zeros((0, 2))), Constant(np.zeros((0, 2))), True),
            (Tuple(()), Tuple(()), True),
            (Tuple((const(1),)), const(1), False),
            (GlobalVar("f"), GlobalVar("f"), True),
            (GlobalVar("f"), GlobalVar("g"), False),
        ],
    )
    def test_content(self, a: Expr, b: Expr, equal: bool) -> None:
        assert both_ways(a, b) is equal

    def test_two_functions_of_a_module_may_hold_the_same_node(self) -> None:
        x = var("x")
        body = call_op("nn.relu", x)
        one = IRModule({"f": Function((x,), body), "main": Function((x,), body)})
        y, z = var("y"), var("z")
        two = IRModule(
            {
                "f": Function((y,), call_op("nn.relu", y)),
                "main": Function((z,), call_op("nn.relu", z)),
            }
        )
        assert structural_equal(one, two)
        assert structural_hash(one) == structural_hash(two)


class TestTypes:
    def test_types_by_content_and_type_variables_by_place(self) -> None:
        a, b = TypeVar("A"), TypeVar("B")
        assert structural_equal(FuncType((a,), a, (a,)), FuncType((b,), b, (b,)))
        assert not structural_equal(a, b)
        assert structural_equal(TensorType((Any(), 2)), TensorType((Any(), 2)))
        assert not structural_equal(TupleType((VECTOR,)), TupleType((VECTOR, VECTOR)))
        assert structural_hash(FuncType((a,), a, (a,))) == structural_hash(FuncType((b,), b, (b,)))

    def test_type_arguments_count_for_functions_and_not_for_operators(self) -> None:
        x = var("x")
        f = GlobalVar("f")
        assert not both_ways(Call(f, (x,), None, (VECTOR,)), Call(f, (x,)))
        relu = call_op("nn.relu", x)
        assert both_ways(Call(relu.op, (x,), relu.attrs, (VECTOR,)), relu)


class TestPath:
    def test_the_first_difference_is_named_by_its_path(self) -> None:
        text = """#[version = "0.0.5"]
        def @main(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32]) {{
          nn.relu(nn.conv2d(%x, %w, padding=[1, 1, {}, 1], channels=4, kernel_size=[3, 3]))
        }}"""
        a, b = compiler.parse(text.format(1)), compiler.parse(text.format(2))
        with pytest.raises(AssertionError) as caught:
            assert_structural_equal(a, b)
        assert 'functions["main"].body.args[0]\n' in str(caught.value)
        assert re.search(r"left: .*\[1, 1, 1, 1\].*\n.*right: .*\[1, 1, 2, 1\]", str(caught.value))

    def test_modules_differ_by_names_and_attributes(self) -> None:
        mod = IRModule({"main": Function((), const(1))})
        with pytest.raises(AssertionError, match="functions"):
            assert_structural_equal(mod, IRModule({"other": Function((), const(1))}))
        with pytest.raises(AssertionError, match="attrs"):
            assert_structural_equal(mod.with_attr("k", (1, 2.5)), mod.with_attr("k", (1, 2.0)))
        assert_structural_equal(mod.with_attr("k", {"a": 1}), mod.with_attr("k", {"a": 1}))


CASE = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 3, 32, 32), float32], %w, %b: Tensor[(16, 1, 1), float32]) {
  %0 = nn.conv2d(%x, %w, strides=[2, 2], padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3]);
  add(%0, %b)
}
"""

PROGRAM = f"import compiler; print(compiler.structural_hash(compiler.parse({CASE!r})))"


class TestHash:
    def test_the_hash_is_the_same_in_every_interpreter(self) -> None:
        found = set()
        for seed in ("1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            ran = subprocess.run(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                cwd=Path(__file__).resolve().parents[3],
                capture_output=True,
                text=True,
                check=True,
            )
            found.add(ran.stdout.strip())
        mod = compiler.parse(CASE)
        found |= {structural_hash(mod), structural_hash(compiler.parse(compiler.text(mod)))}
        assert len(found) == 1
        assert len(found.pop()) == 32

    @pytest.mark.parametrize(
        ("old", "new", "changes"),
        [
            ("padding=[1, 1, 1, 1]", "padding=[1, 1, 1, 0]", True),
            ("(16, 1, 1), float32", "(16, 1, 1), float16", True),
            ("channels=16, ", "", True),
            ("%b", "%bias", False),
            ("\n", "\n\n", False),
        ],
    )
    def test_what_changes_it(self, old: str, new: str, changes: bool) -> None:
        text = CASE.split("\n", 1)[1]
        head = '#[version = "0.0.5"]\n'
        before = structural_hash(compiler.parse(head + text))
        after = structural_hash(compiler.parse(head + text.replace(old, new)))
        assert (before != after) is changes

    def test_one_byte_of_a_weight_changes_it(self) -> None:
        data = np.arange(1000, dtype="float32")
        before = structural_hash(Constant(data))
        data.view("uint8")[77] ^= 1
        assert structural_hash(Constant(data)) != before

    def test_free_variables_make_it_local_to_the_process(self) -> None:
        x = var("x")
        assert structural_hash(x + 1.0).startswith("local:")
        assert not structural_hash(x + 1.0, map_free_vars=True).startswith("local:")


@st.composite
def graphs(draw: st.DrawFn) -> Expr:
    """Small graphs with sharing, over two fixed parameters."""
    x, y = Var("x", VECTOR), Var("y", VECTOR)
    nodes: list[Expr] = [x, y, const(1), const(2)]
    pick = st.integers(0, 30)
    for _ in range(draw(st.integers(1, 5))):
        a, b = (nodes[draw(pick) % len(nodes)] for _ in range(2))
        kind = draw(st.integers(0, 5))
        if kind == 0:
            nodes.append(Tuple((a, b)))
        elif kind == 1:
            nodes.append(TupleGetItem(Tuple((a, b)), draw(st.integers(0, 1))))
        elif kind == 2:
            v = Var("v")
            nodes.append(Let(v, a, call_op("add", v, b)))
        elif kind == 3:
            nodes.append(If(const(1, "bool"), a, RefCreate(b)))
        else:
            nodes.append(call_op("add" if kind == 4 else "subtract", a, b))
    return Function((x, y), Tuple((nodes[-1], nodes[draw(pick) % len(nodes)])))


@settings(max_examples=200, deadline=None)
@given(graphs(), graphs())
def test_hash_agrees_with_equality_on_random_pairs(a: Expr, b: Expr) -> None:
    both_ways(a, b)
    assert both_ways(a, a)


def test_a_constructor_is_its_name_and_type_whatever_its_number() -> None:
    """The number is a place in the definition; a function that builds a value does not show it."""
    header = GlobalTypeVar("Maybe")
    payload = TensorType((2,), "int32")

    def built(tag: int) -> Function:
        x = Var("x", payload)
        some = Constructor("Some", (payload,), header, tag)
        clause = Clause(PatternConstructor(some, (PatternVar(Var("y", payload)),)), x)
        return Function((x,), Match(Call(some, (x,)), (clause,)))

    assert structural_equal(built(0), built(7))
    assert structural_hash(built(0)) == structural_hash(built(7))
    names = [Constructor(name, (payload,), header) for name in ("Some", "Other")]
    assert not structural_equal(names[0], names[1])


@pytest.mark.parametrize("key", [Var("v"), 3, 1.5, (1, 2)])
def test_a_key_of_an_attribute_that_has_no_text_is_named(key: object) -> None:
    def made() -> Function:
        return Function((), Constant(np.float32(1)), attrs=DictAttrs({"table": {key: 1}}))

    actions = (
        lambda: structural_hash(made()),
        lambda: structural_equal(made(), made()),
        lambda: compiler.text(made()),
    )
    for action in each(actions):
        with pytest.raises(AttrError, match=rf"\({type(key).__name__}\) is a key"):
            action()
