from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import EvaluationError
from compiler.ir.expr import Call, Constant, Expr, Var
from compiler.ir.ty import FuncType, TensorType
from compiler.relay import (
    Clause,
    Constructor,
    Function,
    GlobalTypeVar,
    GlobalVar,
    If,
    Let,
    Match,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    PatternWildcard,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    TypeCall,
    TypeData,
    var,
)
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.networks import residual_net
from tests.compiler.work import calls_of

I32 = TensorType((), "int32")
op = relay.op


def i32(value: int) -> Constant:
    return relay.const(value, "int32")


def run(main: Expr, *inputs: Any, tap: Any = None) -> list[Any]:
    """Results of @main as nested Python values."""
    return [r.tolist() for r in compiler.evaluate(relay.module(main), list(inputs), tap=tap)]


def test_a_shared_node_is_computed_once() -> None:
    x = var("x", (), "int32")
    t = op.add(x, i32(1))
    seen: list[Expr] = []
    assert run(Function((x,), op.multiply(t, t)), np.int32(4), tap=lambda n, v: seen.append(n)) == [
        25
    ]
    assert sum(isinstance(n, Call) for n in seen) == 2


def names_of_calls(seen: list[tuple[Expr, Any]]) -> list[str]:
    return [n.op.name for n, _ in seen if isinstance(n, Call)]  # type: ignore[attr-defined]


def test_only_the_taken_branch_runs_and_what_both_need_runs_before() -> None:
    c, x = var("c", (), "bool"), var("x", ())
    shared = op.exp(x)
    only_true, only_false = op.negative(shared), op.sqrt(shared)
    main = Function((c, x), If(c, only_true, only_false))
    for taken, name in ((True, "negative"), (False, "sqrt")):
        seen: list[tuple[Expr, Any]] = []
        compiler.evaluate(
            relay.module(main),
            [np.bool_(taken), np.float32(1)],
            tap=lambda n, v, seen=seen: seen.append((n, v)),
        )
        assert names_of_calls(seen) == ["exp", name]


def test_a_node_used_in_a_branch_and_outside_is_computed_once() -> None:
    c, x = var("c", (), "bool"), var("x", (), "int32")
    t = op.add(x, i32(1))
    main = Function((c, x), Tuple((If(c, op.multiply(t, i32(2)), x), t)))
    seen: list[tuple[Expr, Any]] = []
    got = run(main, np.bool_(True), np.int32(1), tap=lambda n, v: seen.append((n, v)))
    assert got == [4, 2]
    assert names_of_calls(seen) == ["add", "multiply"]


def test_a_recursive_closure_loops_without_python_recursion() -> None:
    i, n, total, loop = (var(s, (), "int32") for s in ("i", "n", "total", "loop"))
    loop = Var("loop", FuncType((I32, I32), I32))
    body = If(op.less(i, n), Call(loop, (op.add(i, i32(1)), op.add(total, i))), total)
    main = Function((n,), Let(loop, Function((i, total), body, I32), Call(loop, (i32(0), i32(0)))))
    assert run(main, np.int32(5000)) == [5000 * 4999 // 2]


def test_closures_keep_the_values_of_their_birth() -> None:
    x, y, f = var("x", (), "int32"), var("y", (), "int32"), var("f")
    make = Function((x,), Function((y,), op.subtract(x, y)))
    main = Let(f, Call(make, (i32(10),)), Tuple((Call(f, (i32(1),)), Call(f, (i32(2),)))))
    assert run(main) == [9, 8]


def test_a_function_literal_reads_values_of_every_enclosing_scope() -> None:
    a, b, c = (var(s, (), "int32") for s in "abc")
    t = op.add(a, i32(100))
    inner = Function((c,), op.add(op.add(t, b), c))
    outer = Function((b,), Call(inner, (i32(1),)))
    main = Function((a,), Tuple((Call(outer, (i32(10),)), t)))
    assert run(main, np.int32(1000)) == [1111, 1100]


def test_global_functions_call_each_other() -> None:
    x, y = var("x", (), "int32"), var("y", (), "int32")
    twice = GlobalVar("twice")
    functions = {
        "twice": Function((y,), op.add(y, y), I32),
        "main": Function((x,), Call(twice, (Call(twice, (x,)),)), I32),
    }
    mod = relay.module(functions)
    assert compiler.evaluate(mod, [np.int32(3)])[0].item() == 12
    assert compiler.evaluate(mod, [np.int32(3)], function="twice")[0].item() == 6


def test_let_values_are_computed_in_order_even_when_unused() -> None:
    r, u, v = var("r"), var("u"), var("v")
    write = RefWrite(r, op.add(RefRead(r), i32(5)))
    again = RefWrite(r, op.multiply(RefRead(r), i32(3)))
    main = Let(r, RefCreate(i32(1)), Let(u, write, Let(v, again, RefRead(r))))
    assert run(main) == [18]


def test_tuples_nest_and_come_out_flat() -> None:
    x = var("x", (), "int32")
    pair = Tuple((x, Tuple((op.add(x, i32(1)), x))))
    main = Function((x,), Tuple((TupleGetItem(TupleGetItem(pair, 1), 0), pair)))
    assert run(main, np.int32(1)) == [2, 1, 2, 1]


def test_tuple_results_of_operators_are_taken_apart() -> None:
    x = var("x", (4,))
    pieces = op.split(x, indices_or_sections=2)
    main = Function((x,), op.add(TupleGetItem(pieces, 0), TupleGetItem(pieces, 1)))
    assert run(main, np.arange(4, dtype=np.float32)) == [[2, 4]]


def list_type() -> tuple[TypeData, Constructor, Constructor]:
    name = GlobalTypeVar("IntList")
    nil = Constructor("Nil", (), name, 0)
    cons = Constructor("Cons", (I32, TypeCall(name)), name, 1)
    return TypeData(name, (), (nil, cons)), nil, cons


def test_match_takes_the_first_clause_that_fits_and_binds_its_variables() -> None:
    data, nil, cons = list_type()
    h, t, f, xs = var("h"), var("t"), var("f"), var("xs")
    items: Expr = Call(nil, ())
    for k in (3, 2, 1):
        items = Call(cons, (i32(k), items))
    f = Var("f", FuncType((TypeCall(data.header),), I32))
    total = Match(
        xs,
        (
            Clause(PatternConstructor(nil), i32(0)),
            Clause(
                PatternConstructor(cons, (PatternVar(h), PatternVar(t))), op.add(h, Call(f, (t,)))
            ),
        ),
    )
    xs_typed = Function((xs,), total, I32)
    main = Function((), Let(f, xs_typed, Call(f, (items,))))
    mod = relay.module(main, [data])
    assert compiler.evaluate(mod)[0].item() == 6


def test_no_matching_clause_is_an_error() -> None:
    data, nil, cons = list_type()
    only_cons = Clause(PatternConstructor(cons, (PatternWildcard(), PatternWildcard())), i32(1))
    main = Function((), Match(Call(nil, ()), (only_cons,), complete=False))
    with pytest.raises(EvaluationError, match="Nil"):
        compiler.evaluate(relay.module(main, [data]))


def test_tuple_patterns_look_inside() -> None:
    a, b = var("a"), var("b")
    clause = Clause(PatternTuple((PatternVar(a), PatternVar(b))), op.subtract(a, b))
    assert run(Function((), Match(Tuple((i32(5), i32(3))), (clause,)))) == [2]


def test_primitive_functions_are_evaluated_through_their_bodies() -> None:
    p, x = var("p", (2,)), var("x", (2,))
    kernel = Function((p,), op.exp(op.add(p, 1.0))).with_attr("Primitive", 1)
    got = compiler.evaluate(
        relay.module(Function((x,), Call(kernel, (x,)))), [np.zeros(2, np.float32)]
    )
    np.testing.assert_array_equal(got[0], np.exp(np.ones(2, np.float32)))


def test_a_chain_of_10_000_calls_runs_at_the_default_recursion_limit() -> None:
    x = var("x", (2,), "int32")
    value: Expr = x
    for _ in range(10_000):
        value = op.add(value, i32(1))
    assert run(Function((x,), value), np.zeros(2, np.int32)) == [[10_000] * 2]


def test_a_chain_of_3_000_lets_runs_at_the_default_recursion_limit() -> None:
    x = var("x", (), "int32")
    bindings, value = [], x
    for _ in range(3_000):
        bound = var("v")
        bindings.append((bound, op.add(value, i32(1))))
        value = bound
    body: Expr = value
    for bound, definition in reversed(bindings):
        body = Let(bound, definition, body)
    assert run(Function((x,), body), np.int32(0)) == [3_000]


def test_deeply_nested_ifs_take_linear_time() -> None:
    def evaluated(depth: int) -> None:
        c, x = var("c", (), "bool"), var("x", (), "int32")
        body: Expr = x
        for _ in range(depth):
            body = If(c, op.add(body, i32(1)), x)
        assert run(Function((c, x), body), np.bool_(True), np.int32(0)) == [depth]

    evaluated(10)
    assert calls_of(lambda: evaluated(300)) < 4 * calls_of(lambda: evaluated(100))


def test_values_are_dropped_after_their_last_use() -> None:
    x = var("x", (1 << 18,))
    value: Expr = x
    for _ in range(400):
        value = op.add(value, 1.0)
    mod = relay.module(Function((x,), value))
    data = np.zeros(1 << 18, np.float32)
    tracemalloc.start()
    compiler.evaluate(mod, [data])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * data.nbytes


def test_an_executor_runs_again_and_names_its_inputs() -> None:
    mod, params = residual_net()
    executor = ReferenceExecutor(mod)
    assert executor.input_names[0] == "x"
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
    first = executor.run({**params, "x": x})
    second = executor.run({**params, "x": x})
    np.testing.assert_array_equal(first[0], second[0])


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({}, ["'x'", "missing"]),
        ({"x": np.zeros(2, np.float32), "y": np.zeros(1)}, ["'y'", "x"]),
        ({"x": np.zeros(3, np.float32)}, ["(3)", "(2)"]),
        ({"x": np.zeros(2, np.float64)}, ["float64", "float32"]),
        ([], ["0 inputs", "1"]),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: Any, words: list[str]) -> None:
    x = var("x", (2,))
    with pytest.raises(EvaluationError) as caught:
        compiler.evaluate(relay.module(Function((x,), op.exp(x))), inputs)
    assert all(word in str(caught.value) for word in words)


def test_lists_and_scalars_are_taken_in_the_dtype_of_the_parameter() -> None:
    x = var("x", (2,))
    assert run(Function((x,), op.add(x, 1.0)), [1, 2]) == [[2, 3]]


def test_an_error_says_which_call_it_was() -> None:
    x = var("x", (), "int32")
    with pytest.raises(EvaluationError, match="right_shift"):
        run(Function((x,), op.right_shift(x, i32(40))), np.int32(1))


def test_a_result_that_is_a_closure_is_an_error() -> None:
    x = var("x", (), "int32")
    with pytest.raises(EvaluationError, match="Closure"):
        compiler.evaluate(relay.module(Function((), Function((x,), x))))


def test_the_result_may_be_a_parameter_or_a_constant() -> None:
    x = var("x", (), "int32")
    assert run(Function((x,), Tuple((x, i32(7), x))), np.int32(3)) == [3, 7, 3]
