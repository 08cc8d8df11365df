"""The planned matcher: never worse than the greedy one, and better where order misleads that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compiler import evaluate, relay, transform
from compiler.fusion.hardware.cost import hardware_cost
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.dfg import Node
from compiler.fusion.hardware.graph_match_fuser import GraphMatchFuser, partition
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import Stage
from compiler.ir.expr import Expr
from compiler.ir.module import IRModule
from compiler.testing import hw_groups

nn = relay.op.nn
SHAPE = (1, 4, 6, 6)


def conv(data: Expr, seed: int) -> Expr:
    weight = np.random.default_rng(seed).standard_normal((4, 4, 1, 1)).astype("float32")
    return nn.conv2d(data, relay.const(weight), kernel_size=(1, 1), channels=4)


def bias(data: Expr) -> Expr:
    return relay.op.add(data, relay.const(np.ones((4, 1, 1), "float32")))


def shortcut_visited_last() -> IRModule:
    """A residual block whose shortcut, its compare unit used, comes last in post-order."""
    x = relay.var("x", SHAPE)
    trunk = bias(conv(x, 0))
    shortcut = nn.relu(conv(x, 1))
    return relay.module(nn.relu(relay.op.add(trunk, shortcut)))


def stages(mod: IRModule, matcher: str) -> list[list[str]]:
    return [units for units, _, _ in hw_groups(transform.FuseOpHW("opu", matcher)(mod), "opu")]


def test_a_residual_sum_joins_the_operand_that_leaves_room_for_its_relu() -> None:
    mod = shortcut_visited_last()
    assert stages(mod, "greedy") == [["ipa", "add"], ["ipa", "compare", "res_add"], ["compare"]]
    assert stages(mod, "optimal") == [["ipa", "add", "res_add", "compare"], ["ipa", "compare"]]


def test_fewer_groups_move_fewer_bytes() -> None:
    opu = load_hdfg("opu")
    mod = shortcut_visited_last()
    greedy, optimal = (hardware_cost(mod, opu, m) for m in ("greedy", "optimal"))
    tensor = 4 * int(np.prod(SHAPE))
    assert greedy.num_groups - optimal.num_groups == 1
    # The sum is neither written nor read back.
    assert greedy.traffic_bytes - optimal.traffic_bytes == 2 * tensor


def test_a_nearer_unit_is_left_free_for_a_later_call() -> None:
    """``both`` is nearer, but the second call needs it."""
    hdfg = HDFG(
        name="two",
        root="entry",
        stages=[
            Stage("entry", {"abs": None}),
            Stage("both", {"nn.relu": None, "exp": None}),
            Stage("relu_only", {"nn.relu": None}),
        ],
        links=[("entry", "both"), ("entry", "relu_only"), ("relu_only", "both")],
    )
    mod = relay.module(relay.op.exp(nn.relu(relay.var("x", SHAPE))))
    greedy, optimal = (transform.FuseOpHW(hdfg, m)(mod) for m in ("greedy", "optimal"))
    assert [g[0] for g in hw_groups(greedy, "two")] == [["both"], ["both"]]
    assert [g[0] for g in hw_groups(optimal, "two")] == [["relu_only", "both"]]


def test_a_chain_too_long_for_one_group_is_cut_where_the_tensor_is_small() -> None:
    pool = Stage("pool", {"nn.max_pool2d": None}, max_uses=None)
    act = Stage("act", {"nn.relu": None}, max_uses=2)
    links = [("act", "act"), ("act", "pool"), ("pool", "act"), ("pool", "pool")]
    hdfg = HDFG(name="cut", root="act", stages=[act, pool], links=links)
    small = nn.max_pool2d(nn.relu(relay.var("x", SHAPE)), pool_size=(3, 3), strides=(3, 3))
    mod = relay.module(nn.relu(nn.relu(small)))
    greedy, optimal = (transform.FuseOpHW(hdfg, m)(mod) for m in ("greedy", "optimal"))
    assert len(hw_groups(greedy, "cut")) == len(hw_groups(optimal, "cut")) == 2
    assert [g[0] for g in hw_groups(optimal, "cut")] in (
        [["act", "pool"], ["act", "act"]],
        [["act", "pool", "act"], ["act"]],
    )
    costs = [hardware_cost(m, hdfg).traffic_bytes for m in (greedy, optimal)]
    assert costs[1] <= costs[0]


UNARY: dict[str, Callable[[Expr], Expr]] = {
    "conv": lambda e: conv(e, 3),
    "bias": bias,
    "relu": nn.relu,
    "sigmoid": relay.op.sigmoid,
    "pool": lambda e: nn.max_pool2d(e, pool_size=(3, 3), strides=(1, 1), padding=1),
    "reshape": lambda e: relay.op.reshape(e, newshape=SHAPE),
    "scale": lambda e: relay.op.multiply(e, relay.const(np.float32(0.5))),
}


@st.composite
def graphs(draw: st.DrawFn, max_calls: int = 7) -> IRModule:
    """Small networks with residual sums, fan-out, tuples and operators no unit takes."""
    values: list[Expr] = [relay.var("x", SHAPE)]
    for _ in range(draw(st.integers(2, max_calls))):
        kind = draw(st.sampled_from([*UNARY, "sum", "sum", "join"]))
        one = values[draw(st.integers(max(0, len(values) - 3), len(values) - 1))]
        two = values[draw(st.integers(0, len(values) - 1))]
        if kind == "sum":
            values.append(relay.op.add(one, two))
        elif kind == "join":
            joined = relay.op.concatenate([one, two], axis=1)
            values.append(relay.op.strided_slice(joined, begin=(0, 0), end=(1, 4), axes=(0, 1)))
        else:
            values.append(UNARY[kind](one))
    return relay.module(values[-1])


def sum_of_a_value_and_its_reshape() -> IRModule:
    """A graph that hypothesis found: both operands of the sum are one value, one is reshaped."""
    value = nn.relu(relay.op.reshape(nn.relu(relay.var("x", SHAPE)), newshape=SHAPE))
    return relay.module(relay.op.add(relay.op.reshape(value, newshape=SHAPE), value))


@settings(max_examples=60, deadline=None)
@given(graphs(max_calls=12))
@example(mod=sum_of_a_value_and_its_reshape())
def test_meaning_is_kept_groups_are_legal_and_planning_is_never_worse(
    check_groups: Callable[[IRModule, str], int],
    description_text: Callable[[str], str],
    mod: IRModule,
) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    opu = load_hdfg("opu")
    wanted = evaluate(mod, [x])[0]
    ranks = []
    for matcher in ("greedy", "optimal"):
        new = transform.FuseOpHW(opu, matcher)(mod)
        np.testing.assert_array_equal(evaluate(new, [x])[0], wanted)
        cost = hardware_cost(new, opu)
        assert check_groups(new, description_text("opu")) == cost.num_groups
        ranks.append((cost.host_calls, cost.num_groups))
    assert ranks[1] <= ranks[0]


@settings(max_examples=40, deadline=None)
@given(graphs(max_calls=7))
def test_no_other_distribution_has_fewer_groups(mod: IRModule) -> None:
    """Against every way to continue groups and to choose units, by enumeration."""
    opu = load_hdfg("opu")
    _, groups = partition(mod["main"], opu, "optimal")
    calls = [n for group in groups for n in group.calls]
    assert (len(calls), -len(groups)) == max(_distributions(opu, mod))


def _distributions(hdfg: HDFG, mod: IRModule) -> Iterator[tuple[int, int]]:
    """(calls covered, minus groups) of every legal distribution."""
    dfg, _ = partition(mod["main"], hdfg)
    fuser = GraphMatchFuser(hdfg, dfg)
    # Every unit of the OPU can be bypassed, so a call that some unit accepts has a group.
    calls = [
        n for n in fuser.mapped_calls() if any(s.refusal(n) is None for s in hdfg.op_map[n.op_name])
    ]
    before = [[None, *(c for c in calls if fuser.only_user.get(c) is n)] for n in calls]
    for choice in product(*before):
        used = [c for c in choice if c is not None]
        if len(set(used)) < len(used):
            continue
        chains = _chains(calls, dict(zip(calls, choice)))
        if all(_fits(hdfg, chain) for chain in chains):
            yield len(calls), -len(chains)


def _chains(calls: list[Node], before: dict[Node, Node | None]) -> list[list[Node]]:
    chain_of: dict[Node, list[Node]] = {}
    for node in calls:
        previous = before[node]
        chain = chain_of[previous] if previous is not None else []
        chain.append(node)
        chain_of[node] = chain
    return list({id(chain): chain for chain in chain_of.values()}.values())


def _fits(hdfg: HDFG, chain: list[Node]) -> bool:
    ways: list[list[Stage]] = [[]]
    for node in chain:
        following = []
        for used in ways:
            for stage in hdfg.search_order(used[-1] if used else None):
                has_room = stage.max_uses is None or used.count(stage) < stage.max_uses
                if has_room and stage.refusal(node) is None:
                    following.append([*used, stage])
        ways = following
    return bool(ways)


def test_an_unknown_matcher_names_the_known_ones() -> None:
    with pytest.raises(Exception, match="matcher 'optimum'") as caught:
        transform.FuseOpHW("opu", "optimum")(shortcut_visited_last())
    assert "did you mean 'optimal'" in str(caught.value)


def test_a_description_whose_units_all_lead_to_each_other_is_planned_too() -> None:
    names = [f"unit{k}" for k in range(12)]
    stages_ = [Stage(name, {"nn.relu": None}) for name in names]
    links = [(a, b) for a in names for b in names]
    value: Expr = relay.var("x", SHAPE)
    for _ in range(60):
        value = nn.relu(value)
    hdfg = HDFG("mesh", names[0], stages_, links)
    planned = transform.FuseOpHW(hdfg, "optimal")(relay.module(value))
    assert [len(ops) for _, ops, _ in hw_groups(planned, "mesh")] == [12] * 5
