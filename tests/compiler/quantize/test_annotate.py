"""QuantizeAnnotate: where quantize points stand and of which kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler import assert_structural_equal, relay
from compiler.errors import QuantizeError
from compiler.ir.expr import Call, Constant, Expr, Op, Var
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.ops.rules.annotate import FQAnnotateRewrite
from compiler.qtypes.errors import WeightNotConstantError
from compiler.quantize import (
    QAnnotateExpr,
    QAnnotateKind,
    QConfig,
    QuantizeContext,
    attach_simulated_quantize,
    diagnose,
    mark,
    qconfig,
    quantize,
    quantize_points,
)

Graph = Callable[..., IRModule]

RESIDUAL = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, const<W1 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = nn.conv2d(%3, const<W2 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %5 = add(%4, %1);
  %6 = nn.relu(%5);
  %6
}
"""

RESIDUAL_ANNOTATED = """
def @main(%x: (1,2,6,6) float32) {
  %0 = simulated_quantize(%x, kind=input);
  %1 = simulated_quantize(const<W0 (2,2,3,3) float32>, kind=weight);
  %2 = nn.conv2d(%0, %1, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = simulated_quantize(%3, kind=input);
  %5 = annotation.cast_hint(%4, dtype=int8);
  %6 = annotation.stop_fusion(%5);
  %7 = simulated_quantize(const<W1 (2,2,3,3) float32>, kind=weight);
  %8 = nn.conv2d(%6, %7, padding=[1, 1, 1, 1]);
  %9 = nn.relu(%8);
  %10 = simulated_quantize(%9, kind=input);
  %11 = annotation.cast_hint(%10, dtype=int8);
  %12 = annotation.stop_fusion(%11);
  %13 = simulated_quantize(const<W2 (2,2,3,3) float32>, kind=weight);
  %14 = nn.conv2d(%12, %13, padding=[1, 1, 1, 1]);
  %15 = simulated_quantize(%14, kind=input);
  %16 = annotation.cast_hint(%15, dtype=int8);
  %17 = annotation.stop_fusion(%16);
  %18 = annotation.cast_hint(%4, dtype=int8);
  %19 = annotation.stop_fusion(%18);
  %20 = add(%17, %19);
  %21 = nn.relu(%20);
  %22 = simulated_quantize(%21, kind=input);
  %23 = annotation.cast_hint(%22, dtype=int8);
  %24 = annotation.stop_fusion(%23);
  %24
}
"""

SKIP_FIRST = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.relu(%0);
  %2 = annotation.stop_fusion(%1);
  %3 = simulated_quantize(%2, kind=input);
  %4 = simulated_quantize(const<W1 (2,2,3,3) float32>, kind=weight);
  %5 = nn.conv2d(%3, %4, padding=[1, 1, 1, 1]);
  %6 = simulated_quantize(%5, kind=input);
  %7 = annotation.cast_hint(%6, dtype=int8);
  %8 = annotation.stop_fusion(%7);
  %8
}
"""

SKIP_SECOND = """
def @main(%x: (1,2,6,6) float32) {
  %0 = simulated_quantize(%x, kind=input);
  %1 = simulated_quantize(const<W0 (2,2,3,3) float32>, kind=weight);
  %2 = nn.conv2d(%0, %1, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = simulated_quantize(%3, kind=input);
  %5 = annotation.cast_hint(%4, dtype=int8);
  %6 = annotation.stop_fusion(%5);
  %7 = nn.conv2d(%6, const<W1 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %8 = annotation.stop_fusion(%7);
  %8
}
"""

CHAIN = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.relu(%0);
  %2 = nn.conv2d(%1, const<W1 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %2
}
"""

CONCATENATE = """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>, padding=[1, 1, 1, 1]);
  %1 = nn.relu(%0);
  %2 = sigmoid(%y);
  %3 = concatenate((%1, %2), axis=1);
  %3
}
"""

CONCATENATE_ANNOTATED = """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = simulated_quantize(%x, kind=input);
  %1 = simulated_quantize(const<W0 (2,2,3,3) float32>, kind=weight);
  %2 = nn.conv2d(%0, %1, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = simulated_quantize(%3, kind=input);
  %5 = annotation.cast_hint(%4, dtype=int8);
  %6 = annotation.stop_fusion(%5);
  %7 = sigmoid(%y);
  %8 = simulated_quantize(%7, kind=activation);
  %9 = concatenate((%6, %8), axis=1);
  %9
}
"""

RNG = np.random.default_rng(0)
WEIGHTS = {n: RNG.normal(size=(2, 2, 3, 3)).astype(np.float32) for n in ("W0", "W1", "W2")}


@pytest.fixture
def bound(graph: Graph) -> Graph:
    return lambda text: graph(text, **WEIGHTS)


def annotated(mod: IRModule, **config: Any) -> IRModule:
    return mark(mod, QConfig(**{"skip_conv_layers": [], **config}))[0]


def test_a_residual_block_shares_the_point_of_the_value_used_twice(bound: Graph) -> None:
    result = annotated(bound(RESIDUAL))
    assert_structural_equal(result, bound(RESIDUAL_ANNOTATED))
    assert len(quantize_points(result)) == 8


def test_a_skipped_first_convolution_takes_its_border_along(bound: Graph) -> None:
    assert_structural_equal(annotated(bound(CHAIN), skip_conv_layers=[0]), bound(SKIP_FIRST))


def test_a_skipped_second_convolution_reads_dequantized_values(bound: Graph) -> None:
    assert_structural_equal(annotated(bound(CHAIN), skip_conv_layers=[1]), bound(SKIP_SECOND))


def test_with_all_convolutions_skipped_nothing_is_quantized(bound: Graph) -> None:
    assert quantize_points(annotated(bound(CHAIN), skip_conv_layers=[0, 1])) == []


@pytest.mark.parametrize("skipped", [None, []])
def test_none_and_the_empty_list_skip_nothing(bound: Graph, skipped: list[int] | None) -> None:
    assert len(quantize_points(annotated(bound(CHAIN), skip_conv_layers=skipped))) == 5


def test_a_plain_field_of_a_concatenate_is_quantized_finely(bound: Graph) -> None:
    assert_structural_equal(annotated(bound(CONCATENATE)), bound(CONCATENATE_ANNOTATED))


def test_only_enabled_operators_are_annotated(bound: Graph) -> None:
    result = annotated(bound(CHAIN), debug_enabled_ops=["nn.conv2d"])
    expected = """
def @main(%x: (1,2,6,6) float32) {
  %0 = simulated_quantize(%x, kind=input);
  %1 = simulated_quantize(const<W0 (2,2,3,3) float32>, kind=weight);
  %2 = nn.conv2d(%0, %1, padding=[1, 1, 1, 1]);
  %3 = nn.relu(%2);
  %4 = annotation.cast_hint(%3, dtype=int8);
  %5 = annotation.stop_fusion(%4);
  %6 = simulated_quantize(%5, kind=input);
  %7 = simulated_quantize(const<W1 (2,2,3,3) float32>, kind=weight);
  %8 = nn.conv2d(%6, %7, padding=[1, 1, 1, 1]);
  %9 = annotation.cast_hint(%8, dtype=int8);
  %10 = annotation.stop_fusion(%9);
  %10
}
"""
    assert_structural_equal(result, bound(expected))


def test_a_module_without_enabled_operators_still_runs(bound: Graph) -> None:
    with qconfig(skip_conv_layers=[], debug_enabled_ops=["nn.dense"]):
        result = quantize(bound(CHAIN))
    assert quantize_points(result) == []


# The rules in isolation: p plain, c constant, A and I annotated with that kind.
TYPE = TensorType((1, 2, 4, 4), "float32")
KIND = {"A": QAnnotateKind.ACTIVATION, "I": QAnnotateKind.INPUT, None: None}


def operand(letter: str) -> Expr:
    if letter == "c":
        return Constant(np.ones((2, 1, 1), np.float32))
    value = Var("v", TYPE)
    kind = KIND.get(letter)
    return value if kind is None else QAnnotateExpr(value, kind)


def apply(op: str, letters: str, **attrs: Any) -> tuple[Expr | None, tuple[Expr, ...]]:
    args = tuple(operand(letter) for letter in letters)
    plain = tuple(getattr(arg, "expr", arg) for arg in args)
    record = Op.get(op).attrs_type
    ref_call = Call(Op.get(op), plain, record(**attrs) if record else None)
    rule = FQAnnotateRewrite.require(Op.get(op))
    return rule(ref_call, args, QuantizeContext(QConfig(skip_conv_layers=[]))), plain


def seen(expr: Expr, before: Expr) -> str:
    """ "same" for an operand as it was, else the kind of its new point."""
    if expr is before:
        return "same"
    assert isinstance(expr, Call)
    assert expr.args[0] is before
    return {1: "input", 2: "weight", 3: "activation"}[expr.attrs.kind]


@pytest.mark.parametrize(
    ("op", "letters", "lhs", "rhs", "kind"),
    [
        ("add", "pp", None, None, None),
        ("add", "Ac", "same", "weight", "A"),
        ("add", "Ic", "same", "weight", "A"),
        ("add", "Ap", "same", "input", "A"),
        ("add", "Ip", "same", "input", "A"),
        ("add", "pA", "input", "same", "A"),
        ("add", "pI", "input", "same", "A"),
        ("add", "cA", "weight", "same", "A"),
        ("add", "II", "same", "same", "A"),
        ("add", "AA", "same", "input", "A"),
        ("add", "AI", "same", "same", "A"),
        ("add", "IA", "same", "same", "A"),
        ("multiply", "Ac", "input", "weight", "A"),
        ("multiply", "Ic", "same", "weight", "A"),
        ("multiply", "Ap", "input", "input", "A"),
        ("multiply", "Ip", "same", "input", "A"),
        ("multiply", "pp", None, None, None),
        ("multiply", "pA", "input", "input", "A"),
        ("multiply", "cA", "weight", "input", "A"),
        ("multiply", "cI", "weight", "same", "A"),
        ("multiply", "AA", "input", "input", "A"),
        ("multiply", "IA", "same", "input", "A"),
    ],
)
def test_binary_annotate_rules_give_the_listed_kinds(
    op: str, letters: str, lhs: str | None, rhs: str | None, kind: str | None
) -> None:
    result, before = apply(op, letters)
    if kind is None:
        assert result is None
        return
    assert isinstance(result, QAnnotateExpr)
    assert result.kind == KIND[kind]
    call = result.expr
    assert isinstance(call, Call)
    assert [seen(a, b) for a, b in zip(call.args, before)] == [lhs, rhs]


@pytest.mark.parametrize(
    ("op", "letter", "attrs", "arg", "kind"),
    [
        ("nn.max_pool2d", "A", {"pool_size": (2, 2)}, "input", "I"),
        ("nn.max_pool2d", "I", {"pool_size": (2, 2)}, "same", "I"),
        ("nn.avg_pool2d", "A", {"pool_size": (2, 2)}, "same", "A"),
        ("nn.avg_pool2d", "I", {"pool_size": (2, 2)}, "same", "I"),
        ("annotation.cast_hint", "A", {"dtype": "int8"}, "input", "I"),
        ("nn.relu", "A", {}, "same", "A"),
        ("nn.relu", "I", {}, "same", "I"),
        ("clip", "p", {"a_min": 0.0, "a_max": 6.0}, None, None),
    ],
)
def test_unary_annotate_rules_give_the_listed_kinds(
    op: str, letter: str, attrs: dict[str, Any], arg: str | None, kind: str | None
) -> None:
    result, (before,) = apply(op, letter, **attrs)
    if kind is None:
        assert result is None
        return
    assert isinstance(result, QAnnotateExpr)
    assert result.kind == KIND[kind]
    assert seen(result.expr.args[0], before) == arg


def test_cast_hint_of_a_plain_value_disappears() -> None:
    result, (before,) = apply("annotation.cast_hint", "p", dtype="int8")
    assert result is before


def test_a_value_is_attached_once_per_run_and_kind() -> None:
    context, value = QuantizeContext(QConfig()), Var("v", TYPE)
    first = attach_simulated_quantize(value, QAnnotateKind.INPUT, context=context)
    assert attach_simulated_quantize(value, QAnnotateKind.INPUT, context=context) is first
    assert attach_simulated_quantize(first, QAnnotateKind.INPUT, context=context) is first
    other = attach_simulated_quantize(value, QAnnotateKind.ACTIVATION, context=context)
    assert other is not first
    fresh = QuantizeContext(QConfig())
    assert attach_simulated_quantize(value, QAnnotateKind.INPUT, context=fresh) is not first


def test_a_constant_is_always_a_weight() -> None:
    point = attach_simulated_quantize(operand("c"), QAnnotateKind.INPUT)
    assert point.attrs.kind == QAnnotateKind.WEIGHT  # type: ignore[attr-defined]


def test_a_scalar_constant_can_be_quantized(bound: Graph) -> None:
    mod = bound("""
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (2,2,3,3) float32>);
  %1 = add(%0, 3f);
  %2 = multiply(%1, 0.16666667f);
  %2
}
""")
    with qconfig(skip_conv_layers=[], partition_conversions="fully_integral"):
        assert "quantized_main" in quantize(mod)


def test_a_kernel_that_is_an_input_is_refused_by_name(graph: Graph) -> None:
    mod = graph("""
def @main(%x: (1,2,6,6) float32, %w: (2,2,3,3) float32) {
  %0 = nn.conv2d(%x, %w);
  %0
}
""")
    with qconfig(skip_conv_layers=[]), pytest.raises(WeightNotConstantError, match=r"nn\.conv2d"):
        quantize(mod)


def test_a_kernel_computed_by_another_region_is_refused(bound: Graph) -> None:
    mod = bound("""
def @main(%x: (1,2,6,6) float32, %y: (2,2,5,5) float32) {
  %0 = nn.conv2d(%y, const<W0 (2,2,3,3) float32>);
  %1 = nn.conv2d(%x, %0);
  %1
}
""")
    with qconfig(skip_conv_layers=[]), pytest.raises(AssertionError, match="kernel"):
        quantize(mod)


def test_a_convolution_whose_kernel_an_integer_operator_computes_stays_float(bound: Graph) -> None:
    mod = bound("""
def @main(%x: (1,2,6,6) float32, %z: (1,4) float32) {
  %0 = nn.dense(%z, const<D (36,4) float32>);
  %1 = reshape(%0, newshape=[2, 2, 3, 3]);
  %2 = nn.conv2d(%x, %1);
  %2
}
""")
    found = diagnose(mod, QConfig.recommended())
    assert [(o.op, o.reason) for o in found.operators if o.reason] == [
        ("nn.conv2d", "rule_aborted")
    ]


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_other_floats_than_float32_are_refused_with_what_to_do(dtype: str) -> None:
    x = relay.var("x", (1, 4), dtype)
    weight = relay.const(np.ones((2, 4), dtype))
    mod = relay.module(relay.Function((x,), relay.op.nn.dense(x, weight)))
    with pytest.raises(QuantizeError, match=f"float32, not in {dtype}") as caught:
        quantize(mod, context=QuantizeContext(QConfig.recommended(calibrate_mode="global_scale")))
    assert "float32" in (caught.value.fix or "")
