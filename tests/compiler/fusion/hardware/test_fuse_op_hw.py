"""Groups in functions of every form: lets, branches, closures, tuples, escapes, deep graphs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from compiler import evaluate, parse, relay, transform
from compiler.fusion.hardware.conditions import Condition
from compiler.fusion.hardware.description import load_hdfg, parse_hdfg
from compiler.fusion.hardware.dfg import Creator, Node
from compiler.fusion.hardware.fuse_op_hw import FuseOpHW
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.stage import Group, Stage
from compiler.ir.expr import Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, create_pass
from compiler.testing import hw_groups, hw_host_ops

nn = relay.op.nn
SHAPE = (1, 4, 6, 6)


def conv(data: Expr) -> Expr:
    weight = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype("float32")
    return nn.conv2d(data, relay.const(weight), kernel_size=(1, 1), channels=4)


def x_var() -> relay.Var:
    return relay.var("x", SHAPE)


def same_meaning(mod: IRModule, new: IRModule) -> None:
    rng = np.random.default_rng(0)
    params = mod["main"].params
    inputs = [rng.standard_normal(p.tensor_type.concrete_shape).astype("float32") for p in params]
    for before, after in zip(evaluate(mod, inputs), evaluate(new, inputs), strict=True):
        np.testing.assert_array_equal(after, before)


def fuse(result: Expr, hdfg: HDFG | str = "opu") -> IRModule:
    mod = relay.module(result)
    new = FuseOpHW(hdfg)(mod)
    same_meaning(mod, new)
    return new


def stages(mod: IRModule) -> list[list[str]]:
    return [units for units, _, _ in hw_groups(mod, "opu")]


def test_a_let_ends_a_group() -> None:
    x, v = x_var(), relay.var("v")
    mod = fuse(relay.Function((x,), relay.Let(v, conv(x), nn.relu(v))))
    assert stages(mod) == [["ipa"], ["compare"]]


def test_branches_have_groups_of_their_own() -> None:
    x, c = x_var(), relay.var("c", (), "bool")
    body = relay.If(c, nn.relu(conv(x)), conv(nn.relu(x)))
    mod = relay.module(relay.Function((x, c), body))
    new = FuseOpHW("opu")(mod)
    # relu → conv: compare lies behind ipa, so a group does not go back to it.
    assert stages(new) == [["ipa", "compare"], ["compare"], ["ipa"]]
    data = np.random.default_rng(0).standard_normal(SHAPE).astype("float32")
    for chosen in (True, False):
        inputs = [data, np.array(chosen)]
        np.testing.assert_array_equal(evaluate(new, inputs)[0], evaluate(mod, inputs)[0])


def test_closures_are_partitioned_by_themselves() -> None:
    x, y, f = x_var(), relay.var("y", SHAPE), relay.var("f")
    closure = relay.Function((y,), nn.relu(conv(y)))
    body = relay.Let(f, closure, relay.Call(f, (nn.relu(relay.Call(f, (x,))),)))
    mod = fuse(relay.Function((x,), body))
    assert stages(mod) == [["ipa", "compare"], ["compare"]]


def test_symbols_are_unique_over_all_functions_of_a_module() -> None:
    functions = {name: relay.Function((v := x_var(),), conv(v)) for name in ("main", "other")}
    mod = FuseOpHW("opu")(relay.module(functions))
    symbols = [str(fn.body.op.get_attr("global_symbol")) for fn in mod.functions.values()]
    assert symbols == ["opu_0", "opu_1"]


def test_functions_of_other_compilers_and_kernels_are_left_alone() -> None:
    y = relay.var("y", SHAPE)
    kernel = relay.Function((y,), conv(y)).with_attr("Primitive", 1)
    x = x_var()
    mod = relay.module(relay.Function((x,), relay.Call(kernel, (x,))))
    assert FuseOpHW("opu")(mod) is mod


def test_a_value_that_is_a_result_too_ends_its_group() -> None:
    kept = conv(x_var())
    mod = fuse(relay.Tuple((kept, nn.relu(kept))))
    assert stages(mod) == [["ipa"], ["compare"]]


def test_stop_fusion_ends_a_group_and_is_no_host_operator() -> None:
    fence = relay.call("annotation.stop_fusion", conv(x_var()))
    mod = fuse(nn.relu(fence))
    assert stages(mod) == [["ipa"], ["compare"]]
    assert hw_host_ops(mod) == []


def test_a_tuple_used_by_two_groups_is_built_in_both() -> None:
    x = x_var()
    pair = relay.Tuple((nn.relu(x), relay.op.sigmoid(x)))
    concat = relay.op.concatenate
    mod = fuse(relay.op.add(concat(pair, axis=1), concat(pair, axis=1)))
    joined = [(units, params) for units, _, params in hw_groups(mod, "opu") if "concat" in units]
    assert [params for _, params in joined] == [2, 3]


def test_a_free_operator_with_other_users_stays_outside() -> None:
    flat = relay.op.reshape(conv(x_var()), newshape=(1, -1))
    mod = fuse(relay.Tuple((nn.relu(flat), relay.op.sigmoid(flat))))
    assert stages(mod) == [["ipa"], ["compare"]]
    assert hw_host_ops(mod) == ["reshape", "sigmoid"]


def test_computed_constants_are_weights_of_their_group() -> None:
    weight = relay.op.abs(relay.const(np.full((4, 4, 1, 1), -0.5, "float32")))
    product = nn.conv2d(x_var(), weight, kernel_size=(1, 1), channels=4)
    mod = fuse(relay.op.add(product, relay.op.negative(relay.const(np.ones((4, 1, 1), "float32")))))
    assert stages(mod) == [["ipa", "add"]]
    assert hw_host_ops(mod) == []


def test_absorb_unmapped_takes_what_no_unit_knows_as_the_note_does() -> None:
    opu = load_hdfg("opu")
    note = HDFG(opu.name, opu.root, opu.stages, opu.links, opu.free_ops, absorb_unmapped=True)
    result = nn.relu(relay.op.sigmoid(conv(x_var())))
    assert stages(fuse(result)) == [["ipa"], ["compare"]]
    assert stages(fuse(result, note)) == [["ipa", "compare"]]


def test_keep_if_gives_groups_back_to_the_host() -> None:
    def more_than_one_call(group: Group) -> bool:
        return len(group.calls) > 1

    opu = load_hdfg("opu")
    picky = HDFG(opu.name, opu.root, opu.stages, opu.links, keep_if=more_than_one_call)
    shared = nn.relu(x_var())
    mod = fuse(relay.op.add(nn.relu(conv(shared)), shared), picky)
    assert hw_groups(mod, "opu") == [
        (["ipa", "compare", "res_add"], ["nn.conv2d", "nn.relu", "add"], 1)
    ]
    assert hw_host_ops(mod) == ["nn.relu"]


def test_units_may_take_calls_by_a_function_of_one_s_own() -> None:
    def to_even_size(node: Node) -> bool:
        return node.call.tensor_type.num_elements % 2 == 0

    hdfg = HDFG("even", "act", [Stage("act", {"nn.relu": to_even_size})], links=[])
    assert hw_groups(FuseOpHW(hdfg)(relay.module(nn.relu(x_var()))), "even")
    odd = relay.module(nn.relu(relay.var("x", (1, 3))))
    assert FuseOpHW(hdfg)(odd) is odd


def test_a_unit_one_may_not_bypass_keeps_what_lies_behind_it_on_the_host(
    description_text: Callable[[str], str],
) -> None:
    text = description_text("opu").replace('name = "ipa"\n', 'name = "ipa"\noptional = false\n')
    mod = fuse(nn.relu(conv(nn.relu(x_var()))), parse_hdfg(text))
    assert stages(mod) == [["ipa", "compare"]]
    assert hw_host_ops(mod) == ["nn.relu"]


def test_one_line_makes_the_pool_s_pad_unit_a_second_pad_unit(
    description_text: Callable[[str], str],
) -> None:
    def padded(data: Expr) -> Expr:
        return nn.pad(data, 0.0, pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))

    result = padded(conv(padded(x_var())))
    assert stages(fuse(result)) == [["pad", "ipa"], ["pad"]]
    before = '["spatial_pad_only", "sole_consumer_in(nn.max_pool2d, nn.avg_pool2d)"]'
    changed = description_text("opu").replace(before, '["spatial_pad_only"]')
    assert changed != description_text("opu")
    assert stages(fuse(result, parse_hdfg(changed))) == [["pad", "ipa", "pool_pad"]]


def test_the_pass_is_text_in_a_pipeline() -> None:
    spec = create_pass("FuseOpHW{hdfg=opu_q}")
    assert isinstance(spec, FuseOpHW)
    assert spec.hdfg == "opu_q"
    assert str(spec) == 'FuseOpHW{hdfg="opu_q"}'
    assert FuseOpHW is transform.FuseOpHW


def test_the_text_of_a_fused_module_reads_back() -> None:
    from compiler import structural_equal, text

    mod = fuse(nn.relu(conv(x_var())))
    assert structural_equal(parse(text(mod)), mod)


def test_a_deep_graph_is_handled_without_recursion() -> None:
    value: Expr = x_var()
    for _ in range(3_000):
        value = nn.relu(value)
    mod = relay.module(value)
    with PassContext(verify=False):
        assert len(hw_groups(FuseOpHW("opu")(mod), "opu")) == 3_000


def test_units_are_asked_equally_often_per_operator_in_large_graphs() -> None:
    def asked(count: int) -> int:
        questions = 0

        def ask(node: Node) -> bool:
            nonlocal questions
            questions += 1
            return True

        opu = load_hdfg("opu")
        condition = Condition("counted", ask)
        counted = [
            Stage(s.name, {op: (condition, *rest) for op, rest in s.accepts.items()})
            for s in opu.stages
        ]
        hdfg = HDFG("opu", opu.root, counted, opu.links, opu.free_ops)
        value: Expr = x_var()
        for place in range(count):
            value = (conv, nn.relu, relay.op.sigmoid)[place % 3](value)
            if place % 5 == 0:
                value = relay.op.add(value, nn.relu(value))
        FuseOpHW(hdfg)(relay.module(value))
        return questions

    small, large = asked(150), asked(1500)
    assert large <= 10.5 * small


def test_a_dfg_has_a_node_per_expression_with_its_users() -> None:
    x = x_var()
    t = nn.relu(x)
    dfg = Creator.prepare(relay.Function((x,), relay.Tuple((relay.op.add(t, t), t))))
    kinds = [(node.op_name or node.kind, len(node.preds), len(node.succs)) for node in dfg.nodes]
    assert kinds == [("var", 0, 1), ("nn.relu", 1, 3), ("add", 2, 1), ("tuple", 2, 0)]
    assert [node.extern for node in dfg.nodes] == [False, False, False, True]
    assert [node.index for node in dfg.nodes] == [0, 1, 2, 3]


def test_what_a_let_or_a_branch_uses_is_extern() -> None:
    x, v, c = x_var(), relay.var("v"), relay.var("c", (), "bool")
    body = relay.Let(v, nn.relu(x), relay.If(c, v, relay.op.abs(x)))
    function = relay.module(relay.Function((x, c), body))["main"]
    assert isinstance(function, Function)
    extern = {node.op_name for node in Creator.prepare(function).calls() if node.extern}
    assert extern == {"nn.relu", "abs"}
