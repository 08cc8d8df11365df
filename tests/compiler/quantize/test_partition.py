"""QuantizePartition: where regions begin and end."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from compiler import assert_structural_equal
from compiler.ir.module import IRModule
from compiler.quantize import partition, qconfig

Graph = Callable[..., IRModule]

D1 = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (3,2,3,3) float32>);
  %1 = add(%0, const<b0 (3,1,1) float32>);
  %2 = nn.relu(%1);
  %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2]);
  %4 = nn.conv2d(%3, const<W1 (2,3,1,1) float32>);
  %4
}
"""

D1_PARTITIONED = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<W0 (3,2,3,3) float32>);
  %1 = add(%0, const<b0 (3,1,1) float32>);
  %2 = nn.relu(%1);
  %3 = nn.max_pool2d(%2, pool_size=[2, 2], strides=[2, 2]);
  %4 = annotation.cast_hint(%3, dtype=int8);
  %5 = annotation.stop_fusion(%4);
  %6 = nn.conv2d(%5, const<W1 (2,3,1,1) float32>);
  %7 = annotation.cast_hint(%6, dtype=int8);
  %8 = annotation.stop_fusion(%7);
  %8
}
"""

ADD_CASES = {
    "both partitioned": (
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = nn.conv2d(%x, const<Wb (2,2,1,1) float32>);
  %2 = add(%0, %1);
  %3 = nn.relu(%2);
  %3
}
""",
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = nn.conv2d(%x, const<Wb (2,2,1,1) float32>);
  %4 = annotation.cast_hint(%3, dtype=int8);
  %5 = annotation.stop_fusion(%4);
  %6 = add(%2, %5);
  %7 = nn.relu(%6);
  %8 = annotation.cast_hint(%7, dtype=int8);
  %9 = annotation.stop_fusion(%8);
  %9
}
""",
    ),
    "right only": (
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = add(%y, %0);
  %2 = nn.relu(%1);
  %2
}
""",
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = add(%y, %2);
  %4 = nn.relu(%3);
  %4
}
""",
    ),
    "left, right constant": (
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = add(%0, const<k (2,1,1) float32>);
  %2 = nn.relu(%1);
  %2
}
""",
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = add(%0, const<k (2,1,1) float32>);
  %2 = nn.relu(%1);
  %3 = annotation.cast_hint(%2, dtype=int8);
  %4 = annotation.stop_fusion(%3);
  %4
}
""",
    ),
    "left, right not constant": (
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = add(%0, %y);
  %2 = nn.relu(%1);
  %2
}
""",
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = add(%2, %y);
  %4 = nn.relu(%3);
  %4
}
""",
    ),
    "neither": (
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = add(%x, %y);
  %1 = nn.relu(%0);
  %1
}
""",
        """
def @main(%x: (1,2,6,6) float32, %y: (1,2,6,6) float32) {
  %0 = add(%x, %y);
  %1 = nn.relu(%0);
  %1
}
""",
    ),
}

D3 = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = multiply(%0, const<k (2,1,1) float32>);
  %2 = nn.relu(%1);
  %2
}
"""

D3_PARTITIONED = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = multiply(%2, const<k (2,1,1) float32>);
  %4 = nn.relu(%3);
  %5 = annotation.cast_hint(%4, dtype=int8);
  %6 = annotation.stop_fusion(%5);
  %6
}
"""


def check(graph: Graph, before: str, after: str) -> None:
    mod = partition()(graph(before))
    assert_structural_equal(mod, graph(after))


RNG = np.random.default_rng(0)
VALUES = {
    "W0": RNG.normal(size=(3, 2, 3, 3)).astype(np.float32),
    "b0": RNG.normal(size=(3, 1, 1)).astype(np.float32),
    "W1": RNG.normal(size=(2, 3, 1, 1)).astype(np.float32),
    "Wa": RNG.normal(size=(2, 2, 1, 1)).astype(np.float32),
    "Wb": RNG.normal(size=(2, 2, 1, 1)).astype(np.float32),
    "k": RNG.normal(size=(2, 1, 1)).astype(np.float32),
}


@pytest.fixture
def bound(graph: Graph) -> Graph:
    return lambda text: graph(text, **VALUES)


def test_a_border_follows_the_last_operator_of_a_region(bound: Graph) -> None:
    check(bound, D1, D1_PARTITIONED)


@pytest.mark.parametrize("case", ADD_CASES)
def test_add_meets_regions(bound: Graph, case: str) -> None:
    check(bound, *ADD_CASES[case])


def test_multiply_has_a_border_in_front(bound: Graph) -> None:
    check(bound, D3, D3_PARTITIONED)


def test_multiply_by_a_quantized_right_side_is_the_mirror_image(bound: Graph) -> None:
    swap = "multiply(%0, const<k (2,1,1) float32>)", "multiply(const<k (2,1,1) float32>, %0)"
    swapped = "multiply(%2, const<k (2,1,1) float32>)", "multiply(const<k (2,1,1) float32>, %2)"
    check(bound, D3.replace(*swap), D3_PARTITIONED.replace(*swapped))


def test_multiply_of_two_regions_has_two_borders(bound: Graph) -> None:
    check(
        bound,
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = multiply(%0, %0);
  %1
}
""",
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = annotation.cast_hint(%0, dtype=int8);
  %4 = annotation.stop_fusion(%3);
  %5 = multiply(%2, %4);
  %6 = annotation.cast_hint(%5, dtype=int8);
  %7 = annotation.stop_fusion(%6);
  %7
}
""",
    )


def test_global_average_pool_always_has_a_border_in_front(bound: Graph) -> None:
    check(
        bound,
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.global_avg_pool2d(%x);
  %0
}
""",
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = annotation.cast_hint(%x, dtype=int8);
  %1 = annotation.stop_fusion(%0);
  %2 = nn.global_avg_pool2d(%1);
  %2
}
""",
    )


def test_an_operator_without_a_rule_gets_borders_on_its_operands(bound: Graph) -> None:
    check(
        bound,
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = concatenate((%0, %x), axis=1);
  %1
}
""",
        """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = annotation.cast_hint(%0, dtype=int8);
  %2 = annotation.stop_fusion(%1);
  %3 = concatenate((%2, %x), axis=1);
  %3
}
""",
    )


def test_the_border_has_the_dtype_of_inputs(bound: Graph) -> None:
    with qconfig(dtype_input="int16", nbit_input=12):
        check(bound, D1, D1_PARTITIONED.replace("int8", "int16"))


def test_a_wide_output_has_no_border(bound: Graph) -> None:
    text, _ = ADD_CASES["left, right constant"]
    with qconfig(keep_output_wide=True):
        check(bound, text, text)


def test_every_field_of_a_tuple_result_stays_wide(bound: Graph) -> None:
    text = """
def @main(%x: (1,2,6,6) float32) {
  %0 = nn.conv2d(%x, const<Wa (2,2,1,1) float32>);
  %1 = nn.relu(%0);
  (%0, %1)
}
"""
    with qconfig(keep_output_wide=True):
        check(bound, text, text)


def test_a_chain_of_five_thousand_operators_is_partitioned() -> None:
    from compiler import relay
    from compiler.ir.inference.infer_type import infer_module

    x = relay.var("x", shape=(1, 2, 2, 2))
    expr = relay.op.nn.conv2d(x, relay.const(VALUES["Wa"]))
    for _ in range(5_000):
        expr = relay.op.nn.relu(expr)
    mod = partition()(infer_module(IRModule.from_expr(relay.Function([x], expr))))
    assert mod["main"].body.op.name == "annotation.stop_fusion"
