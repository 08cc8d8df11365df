"""What FoldConstant folds and what it leaves."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

import compiler
from compiler import relay, transform
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple
from compiler.passes import fold_constant
from compiler.span import Span

op = relay.op

x = relay.var("x", (3, 4))
c = relay.const(np.arange(12, dtype=np.float32).reshape(3, 4))
c2 = relay.const(np.full((3, 4), 2.0, np.float32))


def fold(body: Expr, fold_qnn: bool = False) -> Expr:
    """Body of the function of x after the pass."""
    mod = relay.module(relay.Function((x,), body))
    main = transform.FoldConstant(fold_qnn=fold_qnn)(mod)["main"]
    assert isinstance(main, Function)
    return main.body


def unchanged(body: Expr) -> bool:
    mod = relay.module(relay.Function((x,), body))
    return bool(transform.FoldConstant()(mod)["main"] is mod["main"])


def folded(body: Expr) -> np.ndarray:
    result = fold(body)
    assert isinstance(result, Constant)
    return result.data


def test_a_call_on_constants_becomes_its_value() -> None:
    np.testing.assert_array_equal(folded(op.add(c, c2)), c.data + 2)


def test_a_chain_of_calls_folds_to_one_constant() -> None:
    np.testing.assert_array_equal(folded(op.negative(op.multiply(op.add(c, c), c2))), -4 * c.data)


def test_equal_calls_on_the_same_constants_become_one_constant() -> None:
    both = fold(Tuple((op.add(c, c2), op.add(c, c2), op.subtract(c, c2))))
    assert isinstance(both, Tuple)
    assert both.fields[0] is both.fields[1]
    assert both.fields[0] is not both.fields[2]


def test_equal_chains_become_one_constant_whatever_was_dropped_on_the_way() -> None:
    both = fold(Tuple(tuple(op.negative(op.add(op.multiply(c, c2), c)) for _ in range(2))))
    assert isinstance(both, Tuple)
    assert both.fields[0] is both.fields[1]
    read = fold(op.add(op.add(x, op.negative(op.add(c, c2))), op.negative(op.add(c, c2))))
    assert isinstance(read, Call)
    assert isinstance(read.args[0], Call)
    assert read.args[1] is read.args[0].args[1]


def test_a_chain_of_calls_holds_few_of_its_values() -> None:
    value = relay.const(np.ones((256, 1024), np.float32))
    for _ in range(30):
        value = op.add(value, relay.const(np.float32(1)))
    mod = relay.module(relay.Function((), value))
    tracemalloc.start()
    try:
        transform.FoldConstant()(mod)
        assert tracemalloc.get_traced_memory()[1] < 4 * 2**20
    finally:
        tracemalloc.stop()


def test_a_call_without_arguments_is_never_folded() -> None:
    zeros = op.zeros(shape=(3, 4), dtype="float32")
    assert unchanged(zeros)
    assert unchanged(op.add(zeros, c))


def test_a_tuple_of_constants_is_a_constant_argument() -> None:
    assert folded(op.concatenate([c, c2], axis=0)).shape == (6, 4)
    assert unchanged(op.concatenate([c, x], axis=0))


def test_a_tuple_valued_result_becomes_a_tuple_of_constants() -> None:
    result = fold(op.split(c, indices_or_sections=2, axis=1))
    assert isinstance(result, Tuple)
    assert all(isinstance(f, Constant) for f in result.fields)
    np.testing.assert_array_equal(
        folded(relay.TupleGetItem(op.split(c, indices_or_sections=2, axis=1), 1)), c.data[:, 2:]
    )


def test_an_item_of_a_tuple_literal_is_the_field() -> None:
    assert fold(relay.TupleGetItem(relay.Tuple((c, x)), 0)) is c
    result = fold(relay.TupleGetItem(relay.Tuple((c, x)), 1))
    assert isinstance(result, relay.Var)


def test_shapes_fold_from_the_type_alone() -> None:
    shape = folded(op.shape_of(x, dtype="int32"))
    assert shape.dtype == np.int32
    assert shape.tolist() == [3, 4]
    assert folded(op.ndarray_size(x, dtype="int32")) == 12
    scalar = relay.var("s", ())
    mod = relay.module(relay.Function((scalar,), op.ndarray_size(scalar)))
    assert transform.FoldConstant()(mod)["main"].body.data == 0


def test_a_stateful_operator_is_not_folded() -> None:
    assert unchanged(op.nn.dropout(c))


def test_marks_of_the_quantizer_are_ordinary_operators() -> None:
    np.testing.assert_array_equal(folded(op.annotation.stop_fusion(c)), c.data)
    np.testing.assert_array_equal(folded(op.annotation.cast_hint(c, dtype="int8")), c.data)
    sq = relay.call(
        "relay.op.annotation.simulated_quantize",
        c,
        relay.const(0.0625),
        relay.const(-127.0),
        relay.const(127.0),
        kind=1,
    )
    np.testing.assert_array_equal(folded(sq), np.minimum(c.data, 127 * 0.0625))


def test_a_device_mark_stays_but_counts_as_what_it_marks() -> None:
    assert unchanged(op.on_device(c))
    np.testing.assert_array_equal(folded(op.add(op.on_device(c), c2)), c.data + 2)


def test_a_let_of_a_constant_goes_away() -> None:
    v = relay.var("v")
    body = fold(relay.Let(v, op.add(c, c2), op.multiply(v, x)))
    want = op.multiply(relay.const(c.data + 2), x)
    assert compiler.structural_equal(body, want)


def test_a_let_of_something_else_stays() -> None:
    v = relay.var("v")
    assert unchanged(relay.Let(v, op.multiply(x, c), op.add(v, v)))


def test_a_long_chain_of_lets_folds() -> None:
    body: Expr = x
    last: Expr = relay.const(np.zeros((3, 4), np.float32))
    bindings = []
    for _ in range(2_000):
        v = relay.var("v", (3, 4))
        bindings.append((v, op.add(last, c2)))
        last = v
    body = op.add(x, last)
    for v, value in reversed(bindings):
        body = relay.Let(v, value, body)
    result = fold(body)
    assert compiler.structural_equal(result, op.add(x, relay.const(np.full((3, 4), 4000, "f"))))


@pytest.mark.parametrize("flag", [True, False])
def test_an_if_on_a_constant_is_the_branch_it_chooses(flag: bool) -> None:
    result = fold(relay.If(relay.const(flag), op.exp(x), op.tanh(x)))
    assert compiler.structural_equal(result, op.exp(x) if flag else op.tanh(x))


def test_nothing_inside_a_primitive_function_is_touched() -> None:
    p = relay.var("p", (3, 4))
    primitive = relay.Function((p,), op.add(p, op.add(c, c2))).with_attr("Primitive", 1)
    assert unchanged(relay.Call(primitive, (c,)))


def test_a_global_primitive_function_is_left_alone() -> None:
    p = relay.var("p", (3, 4))
    primitive = relay.Function((p,), op.add(p, op.add(c, c2))).with_attr("Primitive", 1)
    mod = relay.module({"main": relay.Function((x,), x), "kernel": primitive})
    assert transform.FoldConstant()(mod)["kernel"] is mod["kernel"]


def test_results_above_512_mib_are_not_folded() -> None:
    one = relay.const(1.0)
    assert unchanged(op.broadcast_to(one, shape=(8 * 4097, 4096)))


def test_results_that_are_no_larger_than_the_constants_of_the_function_are_folded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_constant, "MAX_RESULT_BYTES", 64)
    assert unchanged(op.broadcast_to(relay.const(1.0), shape=(17,)))
    np.testing.assert_array_equal(folded(op.negative(relay.const(np.ones(17, np.float32)))), -1)


def test_folding_stops_where_all_results_together_would_be_many_times_the_constants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fold_constant, "_MAX_TOTAL_BYTES", 4096)
    ends = [op.broadcast_to(relay.const(float(n)), shape=(256,)) for n in range(6)]
    kept = fold(relay.Tuple([op.add(x, op.sum(end)) for end in ends]))
    assert isinstance(kept, Tuple)
    folded = [isinstance(field.args[1], Constant) for field in kept.fields]
    assert folded == [True] * 4 + [False] * 2


def test_the_constant_takes_the_span_of_the_call() -> None:
    span = Span("onnx:fold")
    result = fold(op.add(c, c2).with_fields(span=span))
    assert result.span is span


def test_only_passes_enabled_by_the_level_run_in_a_sequence() -> None:
    mod = relay.module(relay.Function((x,), op.add(c, c2)))
    with transform.PassContext(opt_level=1):
        same = transform.Sequential([transform.FoldConstant()])(mod)
    assert same["main"] is mod["main"]


def test_a_tuple_is_looked_into_however_deep_it_is_nested() -> None:
    # Not through the whole pass: a type as deep as this is refused by InferType.
    nested: Expr = x
    for _ in range(10_000):
        nested = Tuple((c, nested))
    fn = Function((x,), relay.Call(Op.get("concatenate"), (nested,)))
    ctx = transform.PassContext.current()
    assert transform.FoldConstant().run(fn, compiler.IRModule({"main": fn}), ctx) is fn
