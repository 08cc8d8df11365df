"""States that a function takes and gives are found in one pass over it."""

from __future__ import annotations

from compiler import relay
from compiler.ir.expr import Expr
from compiler.ops.annotation.wide_point import first_states, last_states
from compiler.ops.op_call import op_call


def loop() -> tuple[relay.Var, Expr]:
    """The first state of a loop, and its last one."""
    first, marks = relay.var("h", (1, 4)), {"loop": "a", "length": 2}
    state = op_call("scan.state", first, **marks)
    groups = (state,), (op_call("tanh", state),), ()
    end = op_call("scan.end", *map(relay.Tuple, groups), **marks)
    return first, relay.TupleGetItem(end, 0)


def test_states_are_found_behind_long_chains_of_moves() -> None:
    first, last = loop()
    for _ in range(1000):
        last = op_call("reshape", last, newshape=(1, 4))
    fn = relay.Function([first], last)
    assert len(last_states(fn)) == 1000
    assert first in first_states(fn)


def test_results_that_are_named_many_times_are_read_once() -> None:
    first, last = loop()
    moved: Expr = op_call("reshape", last, newshape=(4,))
    result = moved
    for _ in range(60):
        result = relay.Tuple((result, result))
    assert last_states(relay.Function([first], result)) == {moved}


def test_what_is_computed_of_a_state_is_no_state() -> None:
    first, last = loop()
    fn = relay.Function([first], op_call("reshape", op_call("tanh", last), newshape=(4,)))
    assert last_states(fn) == frozenset()
    assert last_states(relay.Function([first], op_call("tanh", first))) == frozenset()
