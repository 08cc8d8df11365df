from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay
from compiler.ir.analysis import post_order
from compiler.ir.expr import Expr, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ops.tensor.formula import COMPARISONS, MAX_WORDS, words
from compiler.passes.outline_formulas import OutlineFormulas
from tests.each import each

op = relay.op
UNARY = ("sigmoid", "tanh", "erf", "exp", "abs", "negative", "nn.relu", "floor")
BINARY = ("add", "subtract", "multiply", "maximum", "minimum")


def call(name: str, *args: Expr) -> Expr:
    function = op
    for part in name.split("."):
        function = getattr(function, part)
    return function(*args)  # type: ignore[no-any-return, operator]


def number(value: float) -> Expr:
    return relay.const(np.float32(value))


@given(st.integers(0, 1 << 20), st.integers(1, 25))
@settings(max_examples=60, deadline=None)
def test_random_elementwise_graphs_keep_their_values(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = [relay.var("x", (2, 3)), relay.var("y", (2, 3))]
    values: list[Expr] = list(inputs)
    for _ in range(size):
        if rng.random() < 0.4:
            made = call(str(rng.choice(UNARY)), values[rng.integers(len(values))])
        elif rng.random() < 0.1:
            made = op.clip(values[-1], a_min=-1.0, a_max=float(rng.integers(0, 4)))
        elif rng.random() < 0.2:
            above = op.greater(values[rng.integers(len(values))], number(rng.normal()))
            above = op.logical_not(above) if rng.random() < 0.5 else above
            made = op.cast(above, dtype="float32")
        elif rng.random() < 0.1:
            compared = op.abs(values[rng.integers(len(values))])
            compare = str(rng.choice(COMPARISONS))
            inside = call(compare, compared, number(rng.normal()))
            made = op.where(inside, values[-1], values[rng.integers(len(values))])
        else:
            other = (
                number(rng.normal()) if rng.random() < 0.5 else values[rng.integers(len(values))]
            )
            sides = [values[rng.integers(len(values))], other]
            rng.shuffle(sides)
            made = call(str(rng.choice(BINARY)), *sides)
        values.append(made)
    body = relay.Tuple(tuple(values[-3:]))
    mod = infer_module(IRModule.from_expr(relay.Function(tuple(inputs), body)))
    new = OutlineFormulas()(mod)
    data = [rng.standard_normal((2, 3)).astype("float32") for _ in inputs]
    for wanted, got in each(zip(evaluate(mod, data), evaluate(new, data), strict=True)):
        np.testing.assert_array_equal(got, wanted)
    for node in each(post_order(new["main"].body)):
        if is_op_call(node, "unary_formula"):
            assert len(words(node.attrs.formula)) <= MAX_WORDS  # type: ignore[attr-defined]


def test_a_chain_of_five_thousand_is_cut_into_formulas() -> None:
    x = relay.var("x", (2, 3))
    y: Expr = x
    for _ in range(5_000):
        y = op.tanh(y)
    new = OutlineFormulas()(infer_module(IRModule.from_expr(relay.Function((x,), y))))
    left = [node for node in post_order(new["main"].body) if not is_op_call(node, "unary_formula")]
    assert len(left) < 10


def test_a_value_that_a_tuple_reads_as_well_is_outlined_by_itself() -> None:
    x = relay.var("x", (2, 3))
    inner = op.tanh(x)
    body = relay.Tuple((op.sigmoid(inner), op.concatenate((x, inner), axis=1)))
    new = OutlineFormulas()(infer_module(IRModule.from_expr(relay.Function((x,), body))))
    made = [node for node in post_order(new["main"].body) if is_op_call(node, "unary_formula")]
    assert len(made) == 2
    assert not any(is_op_call(node, "tanh") for node in post_order(new["main"].body))


def test_branches_that_truth_values_choose_by_products_are_one_formula() -> None:
    """As converters from TensorFlow Lite write selu and elu."""
    x = relay.var("x", (2, 3))
    above = op.greater(x, number(0))
    right = op.multiply(op.cast(above, dtype="float32"), op.multiply(x, number(1.05)))
    left = op.multiply(op.cast(op.logical_not(above), dtype="float32"), op.exp(x))
    mod = infer_module(IRModule.from_expr(relay.Function((x,), op.add(right, left))))
    new = OutlineFormulas()(mod)
    assert is_op_call(new["main"].body, "unary_formula")
    data = [np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)]
    np.testing.assert_array_equal(evaluate(new, data)[0], evaluate(mod, data)[0])


def test_a_branch_that_is_filled_with_one_number_is_part_of_a_formula() -> None:
    """As softshrink is exported, whose zeros have the shape of the data."""
    x = relay.var("x", (2, 3))
    shrunk = op.subtract(x, op.multiply(op.sign(x), number(0.5)))
    zeros = relay.const(np.zeros((2, 3), np.float32))
    body = op.where(op.greater(op.abs(x), number(0.5)), shrunk, zeros)
    mod = infer_module(IRModule.from_expr(relay.Function((x,), body)))
    new = OutlineFormulas()(mod)
    assert is_op_call(new["main"].body, "unary_formula")
    data = [np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)]
    np.testing.assert_array_equal(evaluate(new, data)[0], evaluate(mod, data)[0])
