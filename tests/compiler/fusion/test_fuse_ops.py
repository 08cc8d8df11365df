"""FuseOps on small graphs: which operators share a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError
from compiler.fusion.fuse_ops import MissingPatternWarning, fuse_report
from compiler.ir.analysis import extract_calls, post_order
from compiler.ir.expr import Function
from compiler.ir.op import register_op
from compiler.ir.pass_infra import PassContext
from compiler.ir.type_relation import identity_rel
from compiler.testing import kernels
from compiler.transform import CanonicalizeCast, FuseOps, SimplifyInference

op, nn = relay.op, relay.op.nn
X = (1, 16, 8, 8)


def fused(body: relay.Expr, level: int = 2, **config: Any) -> relay.IRModule:
    mod = relay.module(body)
    before = compiler.structural_hash(mod)
    settings = {f"relay.FuseOps.{key}": value for key, value in config.items()}
    with PassContext(opt_level=level, config=settings, verify=True):
        new = FuseOps()(mod)
        assert compiler.structural_equal(FuseOps()(new), new), "twice is once"
    assert compiler.structural_hash(mod) == before, "the input stays as it was"
    return new


def names(mod: relay.IRModule) -> list[list[str]]:
    return [ops for ops, _ in kernels(mod)]


def conv(data: relay.Expr, weight: relay.Expr, **attrs: Any) -> relay.Expr:
    return nn.conv2d(data, weight, **{"padding": 1, "channels": 16, "kernel_size": (3, 3), **attrs})


def weight(name: str) -> relay.Var:
    return relay.var(name, (16, 16, 3, 3))


def bias(name: str) -> relay.Var:
    return relay.var(name, (16, 1, 1))


def residual_block(x: relay.Expr) -> tuple[relay.Expr, relay.Expr]:
    y = nn.relu(op.add(conv(x, weight("w1")), bias("b1")))
    return y, nn.relu(op.add(op.add(conv(y, weight("w2")), bias("b2")), y))


def test_elementwise_and_injective_operators_become_one_kernel() -> None:
    x = relay.var("x", (10, 20))
    mod = fused(op.squeeze(op.exp(op.add(x, 1.0))))
    assert compiler.text(mod, show_types=False) == (
        '#[version = "0.0.5"]\n'
        "def @main(%x: Tensor[(10, 20), float32]) {\n"
        "  %2 = fn (%p0: Tensor[(10, 20), float32], Primitive=1) -> Tensor[(10, 20), float32] {\n"
        "    %0 = add(%p0, 1f);\n"
        "    %1 = exp(%0);\n"
        "    squeeze(%1)\n"
        "  };\n"
        "  %2(%x)\n"
        "}\n"
    )


def test_at_level_0_every_operator_is_a_kernel() -> None:
    x = relay.var("x", (10, 20))
    body = op.squeeze(op.exp(op.add(x, 1.0)))
    alone = [(["add"], 1), (["exp"], 1), (["squeeze"], 1)]
    assert kernels(fused(body, level=0)) == alone
    assert kernels(FuseOps(fuse_opt_level=0)(relay.module(body))) == alone


def test_residual_block_passes_the_shortcut_once() -> None:
    x = relay.var("x", X)
    _, z = residual_block(x)
    mod = fused(z)
    assert kernels(mod) == [(["conv2d", "add", "relu"], 3), (["conv2d", "add", "add", "relu"], 3)]
    pooled = fused(nn.max_pool2d(z, pool_size=(2, 2)))
    assert names(pooled)[2:] == [["max_pool2d"]]


def test_diamond_behind_a_convolution_is_one_kernel() -> None:
    t = conv(relay.var("x", X), weight("w"))
    mod = fused(op.add(op.sigmoid(t), op.tanh(t)))
    assert kernels(mod) == [(["conv2d", "sigmoid", "tanh", "add"], 2)]


def test_a_reduction_on_one_way_keeps_the_convolution_alone() -> None:
    t = conv(relay.var("x", X), weight("w"))
    mod = fused(op.maximum(op.sigmoid(t), op.sum(op.tanh(t))))
    assert names(mod) == [["conv2d"], ["tanh", "sum"], ["sigmoid", "maximum"]]


def test_the_first_of_two_convolutions_gets_the_addition() -> None:
    x = op.add(relay.var("x", X), 1.0)
    y0 = conv(x, weight("w1"))
    y = op.add(y0, op.add(relay.const(1.0), y0))
    mod = fused(op.add(conv(y, weight("w2")), conv(y, weight("w3"))))
    assert kernels(mod) == [
        (["add"], 1),
        (["conv2d", "add", "add"], 2),
        (["conv2d"], 2),
        (["conv2d", "add"], 3),
    ]
    last = [n for n in post_order(mod["main"]) if isinstance(n, relay.Call)][-1]
    assert isinstance(last.args[1], relay.Var)
    assert last.args[1].name_hint == "w2"


def test_a_value_that_is_also_a_result_ends_its_kernel() -> None:
    c = conv(relay.var("x", X), weight("w"))
    assert names(fused(relay.Tuple((c, nn.relu(c))))) == [["conv2d"], ["relu"]]


def test_moved_data_is_not_fused_behind_a_convolution() -> None:
    c = conv(relay.var("x", X), weight("w"))
    moved = nn.relu(op.transpose(c, axes=(0, 2, 3, 1)))
    assert names(fused(moved)) == [["conv2d"], ["transpose", "relu"]]
    padded = nn.pad(relay.var("x", X), 0.0, pad_width=((0, 0), (0, 0), (1, 1), (1, 1)))
    assert names(fused(conv(padded, weight("w"), padding=0))) == [["pad"], ["conv2d"]]


def test_a_consumer_that_spreads_the_result_is_not_absorbed() -> None:
    c = nn.conv2d(relay.var("x", (1, 8, 1, 1)), relay.var("w", (8, 8, 1, 1)))
    assert names(fused(op.multiply(c, relay.var("y", (1, 8, 4, 4))))) == [["conv2d"], ["multiply"]]


def test_squeeze_and_excite_keeps_the_gate_apart() -> None:
    x = relay.var("x", X)
    y = nn.relu(conv(x, weight("w")))
    pooled = nn.global_avg_pool2d(y)
    gate = nn.conv2d(pooled, relay.var("v", (16, 16, 1, 1)))
    gate = op.sigmoid(op.add(gate, bias("b")))
    assert names(fused(op.multiply(y, gate))) == [
        ["conv2d", "relu"],
        ["global_avg_pool2d"],
        ["conv2d", "add", "sigmoid"],
        ["multiply"],
    ]


def test_what_feeds_a_fused_tuple_joins_it() -> None:
    x = relay.var("x", X)
    up = nn.upsampling(nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)), scale_h=2, scale_w=2)
    mod = fused(op.add(op.concatenate([up, x], axis=1), 1.0))
    assert kernels(mod) == [(["max_pool2d"], 1), (["upsampling", "concatenate", "add"], 2)]


def test_a_tuple_that_is_the_result_stays_outside() -> None:
    x = relay.var("x", X)
    up = nn.upsampling(nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)), scale_h=2, scale_w=2)
    mod = fused(relay.Tuple((up, x)))
    assert names(mod) == [["max_pool2d"], ["upsampling"]]
    assert isinstance(mod["main"].body, relay.Tuple)


def test_fields_of_a_split_are_read_inside_one_kernel() -> None:
    dense = nn.dense(relay.var("x", (4, 8)), relay.var("w", (12, 8)))
    parts = op.split(dense, indices_or_sections=3, axis=1)
    a, b, c = (relay.TupleGetItem(parts, i) for i in range(3))
    mod = fused(op.add(op.sigmoid(a), op.multiply(op.tanh(b), op.exp(c))))
    assert kernels(mod) == [
        (["dense"], 2),
        (["split", "sigmoid", "tanh", "exp", "multiply", "add"], 1),
    ]


def test_a_kernel_may_return_one_field_of_a_split() -> None:
    part = relay.TupleGetItem(op.split(relay.var("x", (4, 12)), indices_or_sections=3, axis=1), 0)
    mod = fused(nn.dense(part, relay.var("w", (5, 4))))
    assert names(mod) == [["split"], ["dense"]]
    first = next(n for n in post_order(mod["main"]) if isinstance(n, Function))
    assert isinstance(first.ret_type, relay.TensorType)


def chain(length: int, step: Any) -> relay.Expr:
    value: relay.Expr = relay.var("x", (4,))
    for _ in range(length):
        value = step(value)
    return value


def test_kernels_hold_at_most_max_depth_nodes() -> None:
    assert [len(k) for k in names(fused(chain(300, op.exp)))] == [256, 44]
    assert [len(k) for k in names(fused(chain(20, op.exp), max_depth=10))] == [10, 10]
    # Constants are nodes too.
    adds = fused(chain(20, lambda v: op.add(v, relay.const(1.0))), max_depth=10)
    assert [len(k) for k in names(adds)] == [5, 5, 5, 5]


def test_both_branches_of_a_diamond_count() -> None:
    def diamond(value: relay.Expr) -> relay.Expr:
        left = right = value
        for _ in range(5):
            left, right = op.exp(left), op.exp(right)
        return op.add(left, right)

    assert [len(k) for k in names(fused(chain(3, diamond), max_depth=11))] == [11, 11, 11]


def test_max_depth_is_an_option_of_the_pass_and_has_limits() -> None:
    mod = relay.module(chain(20, op.exp))
    passes = compiler.transform.create_pass("FuseOps{max_depth=10}")
    assert [len(k) for k in names(passes(mod))] == [10, 10]
    with pytest.raises(CompilerError, match="10001"):
        FuseOps(max_depth=10_001)(mod)


def test_stop_fusion_cuts_and_disappears() -> None:
    x = relay.var("x", (4,))
    mod = fused(op.exp(op.annotation.stop_fusion(op.add(x, 1.0))))
    assert names(mod) == [["add"], ["exp"]]
    assert not extract_calls(mod["main"], "annotation.stop_fusion")


def test_link_params_takes_constants_into_the_kernel() -> None:
    x = relay.var("x", (2, 3))
    indices = relay.const(np.array([0], "int64"))
    body = op.take(op.concatenate([x, x], axis=-1), indices)
    assert kernels(fused(body)) == [(["concatenate", "take"], 2)]
    assert kernels(fused(body, link_params=True)) == [(["concatenate", "take"], 1)]
    assert kernels(FuseOps(link_params=True)(relay.module(body))) == [(["concatenate", "take"], 1)]


def test_limits_are_options_of_the_pass_as_well() -> None:
    x = relay.var("x", (2, 3))
    body = op.add(op.add(op.add(x, relay.var("a", (2, 3))), relay.var("b", (2, 3))), 1.0)
    mod = relay.module(body)
    assert [params for _, params in kernels(FuseOps()(mod))] == [3]
    assert len(kernels(FuseOps(max_args=3)(mod))) == len(kernels(fused(body, max_args=3))) == 2
    assert len(kernels(FuseOps(max_depth=2)(mod))) == len(kernels(fused(body, max_depth=2)))


def test_a_shared_scalar_is_written_into_every_kernel() -> None:
    c = relay.const(2.0)
    body = conv(op.add(conv(op.add(relay.var("x", X), c), weight("w1")), c), weight("w2"))
    assert kernels(fused(body)) == [(["add"], 1), (["conv2d", "add"], 2), (["conv2d"], 2)]


def test_softmax_absorbs_a_cast_and_a_reduction_what_feeds_it() -> None:
    x = relay.var("x", (4, 8))
    assert names(fused(op.cast(nn.softmax(x), dtype="float16"))) == [["softmax", "cast"]]
    assert names(fused(op.sum(op.cast(op.less(x, 10.0), dtype="int32")))) == [
        ["less", "cast", "sum"]
    ]
    assert names(fused(nn.relu(op.sum(x)))) == [["sum"], ["relu"]]


def test_layer_norm_is_three_kernels() -> None:
    h = relay.var("h", (2, 8, 16))
    gamma, beta = relay.var("gamma", (16,)), relay.var("beta", (16,))
    body = SimplifyInference()(relay.module(nn.layer_norm(h, gamma, beta)))["main"].body
    assert kernels(fused(body)) == [
        (["mean"], 1),
        (["variance"], 2),
        (["subtract", "add", "sqrt", "divide", "multiply", "add"], 5),
    ]


def test_attention_scores_absorb_scale_and_mask() -> None:
    q, k = relay.var("q", (4, 6, 8)), relay.var("k", (4, 6, 8))
    scores = op.add(op.divide(nn.batch_matmul(q, k), 8.0), relay.var("mask", (1, 1, 6)))
    assert names(fused(nn.softmax(scores))) == [["batch_matmul", "divide", "add"], ["softmax"]]


def test_a_dense_layer_and_its_gelu_are_one_kernel() -> None:
    x = op.add(nn.dense(relay.var("x", (4, 8)), relay.var("w", (6, 8))), relay.var("b", (6,)))
    gelu = op.multiply(op.multiply(x, 0.5), op.add(op.erf(op.multiply(x, 0.70710678)), 1.0))
    assert len(names(fused(gelu))) == 1


C14 = """#[version = "0.0.5"]
def @main(%d: Tensor[(1, 16, 7, 7), int8], %w: Tensor[(16, 16, 3, 3), int8],
          %b1: Tensor[(16, 1, 1), int32], %b2: Tensor[(16, 1, 1), int32]) {
  %0 = nn.conv2d(%d, %w, padding=[1, 1, 1, 1], channels=16, kernel_size=[3, 3], out_dtype="int8");
  %1 = cast(%0, dtype="int32");
  (add(%1, %b1), add(%1, %b2))
}"""


def test_canonical_casts_let_the_producer_write_narrow_values() -> None:
    mod = compiler.parse(C14)
    assert names(FuseOps()(mod)) == [["conv2d", "cast"], ["add"], ["add"]]
    apart = FuseOps()(CanonicalizeCast()(compiler.infer_module(mod)))
    assert names(apart) == [["conv2d"], ["cast", "add"], ["cast", "add"]]


def test_reshapes_alone_are_marked() -> None:
    mod = fused(op.reshape(op.squeeze(relay.var("x", (1, 4, 4))), newshape=(2, 8)))
    kernel = next(n for n in post_order(mod["main"]) if isinstance(n, Function))
    assert kernel.get_attr("relay.reshape_only") == 1
    other = fused(op.transpose(relay.var("x", (4, 4))))
    kernel = next(n for n in post_order(other["main"]) if isinstance(n, Function))
    assert "relay.reshape_only" not in kernel.attrs


def test_values_do_not_cross_branches_and_closures() -> None:
    mod = compiler.parse("""#[version = "0.0.5"]
def @main(%c: bool, %x: Tensor[(4), float32]) {
  let %f = fn (%y: Tensor[(4), float32]) { exp(tanh(%y)) };
  %0 = exp(%x);
  %1 = if (%c) { tanh(exp(%0)) } else { sqrt(%0) };
  add(%f(%1), %1)
}""")
    new = FuseOps()(mod)
    assert sorted(names(new)) == sorted(
        [["tanh", "exp"], ["exp"], ["exp", "tanh"], ["sqrt"], ["add"]]
    )
    x = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    for cond in (True, False):
        inputs = {"c": np.array(cond), "x": x}
        np.testing.assert_array_equal(
            compiler.evaluate(new, inputs), compiler.evaluate(mod, inputs)
        )


def test_let_bound_chains_of_any_length_are_walked_without_recursion() -> None:
    body: relay.Expr = relay.var("x", (2,))
    names_: list[relay.Var] = []
    values: list[relay.Expr] = []
    for i in range(3000):
        values.append(op.exp(body))
        names_.append(relay.var(f"v{i}", (2,)))
        body = names_[-1]
    for var, value in zip(reversed(names_), reversed(values)):
        body = relay.Let(var, value, body)
    assert len(kernels(FuseOps()(relay.module(body)))) == 3000


def test_functions_of_another_compiler_are_left_alone() -> None:
    mod = compiler.parse("""#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {
  %1 = fn (%p: Tensor[(4), float32], Primitive=1, Compiler="npu", global_symbol="npu_0") {
    %0 = exp(%p);
    exp(%0)
  };
  %2 = %1(%x);
  tanh(%2)
}
def @helper(%x: Tensor[(4), float32], Compiler="npu", global_symbol="helper") { exp(%x) }
""")
    new = FuseOps()(mod)
    assert names(new) == [["exp", "exp"], ["tanh"]]
    assert compiler.structural_equal(new["helper"], compiler.infer_module(mod)["helper"])


def test_max_args_keeps_kernels_narrow() -> None:
    value: relay.Expr = relay.var("x", (4,))
    for i in range(12):
        value = op.add(value, relay.var(f"y{i}", (4,)))
    assert len(kernels(fused(value))) == 1
    narrow = kernels(fused(value, max_args=5))
    assert max(params + 1 for _, params in narrow) <= 5
    assert sum(len(ops) for ops, _ in narrow) == 12


def test_a_report_says_why_operators_stayed_apart() -> None:
    x = relay.var("x", X)
    c = conv(x, weight("w"))
    mod = relay.module(nn.max_pool2d(nn.relu(op.transpose(c, axes=(0, 1, 3, 2))), pool_size=(2, 2)))
    report = fuse_report(mod)
    assert "call of nn.conv2d" in report
    assert "edge of kind INJECTIVE, needs ELEMWISE" in report
    assert "call of nn.relu: is read by an edge of kind OUT_ELEMWISE_FUSABLE" in report
    with PassContext(config={"relay.FuseOps.explain": True}):
        assert fuse_report(FuseOps()(mod)) == report


def test_an_operator_without_a_pattern_is_named() -> None:
    register_op("test.no_pattern", arg_names=("data",), rel=identity_rel, pattern=None)
    x = relay.var("x", (4,))
    with pytest.warns(MissingPatternWarning, match=r"test\.no_pattern"):
        mod = FuseOps()(relay.module(op.exp(relay.call("test.no_pattern", op.exp(x)))))
    assert [len(k) for k in names(mod)] == [1, 1, 1]


def test_kernels_keep_the_span_of_their_result() -> None:
    mod = FuseOps()(compiler.parse(C14, source_name="c14.relay"))
    calls = [n for n in post_order(mod["main"]) if isinstance(n, relay.Call)]
    assert all(call.span is not None for call in calls)


def test_kernels_of_called_functions_are_listed_where_they_are_called() -> None:
    mod = compiler.parse(
        '#[version = "0.0.5"]\n'
        "def @half(%y: Tensor[(4), float32]) -> Tensor[(4), float32] { exp(multiply(%y, 0.5f)) }\n"
        "def @main(%x: Tensor[(4), float32]) { let %a = @half(tanh(%x)); @half(%a) }"
    )
    once = [["multiply", "exp"]]
    assert names(FuseOps()(mod)) == [["tanh"], *once, *once]
