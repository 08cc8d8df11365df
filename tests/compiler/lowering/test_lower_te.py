"""LowerTE: calls of primitive functions become call_lowered, module attributes are set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError, DynamicShapeError, LoweringError, TypeInferenceError
from compiler.ir.analysis import extract_calls, post_order
from compiler.ir.expr import Call, Function, GlobalVar, Let
from compiler.ir.pass_infra import PassContext
from compiler.ir.virtual_device import VirtualDevice
from compiler.lir.nodes import PrimFunc
from compiler.lowering.lower_te import lower_te
from compiler.lowering.te_compiler import UnimplementedSymbolWarning
from compiler.ops.lowered.call_lowered import get_call_lowered_props
from compiler.ops.op_call import op_call
from compiler.runtime.lowered_module import LoweredModule
from compiler.targets.external_codegen import external_codegen
from compiler.targets.target import Target
from compiler.transform import FuseOps, LowerTE, PlanDevices

op, nn = relay.op, relay.op.nn


def lowered(body: relay.Expr | relay.IRModule, **options: Any) -> relay.IRModule:
    mod = body if isinstance(body, relay.IRModule) else relay.module(body)
    return LowerTE(mod_name="m", **options)(FuseOps()(mod))


def prim_funcs(mod: relay.IRModule) -> dict[str, PrimFunc]:
    return {g.name_hint: f for g, f in mod.functions.items() if isinstance(f, PrimFunc)}


def callees(mod: relay.IRModule) -> list[str]:
    found = [get_call_lowered_props(node) for node in post_order(mod["main"])]
    return [props.lowered_func.name_hint for props in found if props is not None]


X = relay.var("x", (10,))
TWICE = op.exp(op.annotation.stop_fusion(op.exp(X)))


def same_values(before: relay.IRModule, after: relay.IRModule, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    inputs = [
        rng.standard_normal(p.tensor_type.concrete_shape).astype(p.tensor_type.dtype)
        for p in before["main"].params
    ]
    want, got = compiler.evaluate(before, inputs), compiler.evaluate(after, inputs)
    for a, b in zip(want, got, strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-6)


def test_equal_kernels_are_lowered_once() -> None:
    mod = lowered(TWICE)
    assert list(prim_funcs(mod)) == ["m_fused_exp"]
    assert callees(mod) == ["m_fused_exp", "m_fused_exp"]
    assert prim_funcs(mod)["m_fused_exp"].attrs["target"] == "c"
    outer = get_call_lowered_props(mod["main"].body)
    assert outer is not None
    assert outer.attrs.metadata["relay_attrs"] == {"Primitive": 1}
    assert [v.name_hint for v in outer.attrs.metadata["all_prim_fn_vars"]] == ["m_fused_exp"]
    same_values(relay.module(TWICE), mod)


def test_another_shape_is_another_function() -> None:
    y = relay.var("y", (20,))
    mod = lowered(relay.Tuple((TWICE, op.exp(y))))
    assert list(prim_funcs(mod)) == ["m_fused_exp", "m_fused_exp_1"]


def test_uses_are_counted_where_asked_for() -> None:
    assert "op_weights" not in lowered(TWICE).attrs
    with PassContext(config={"relay.backend.op_weights": True}):
        assert lowered(TWICE).attrs["op_weights"] == {"m_fused_exp": 2}


def test_a_convolution_and_what_follows_is_one_block() -> None:
    x, w = relay.var("x", (1, 3, 8, 8)), relay.var("w", (4, 3, 3, 3))
    body = nn.relu(op.add(nn.conv2d(x, w, padding=1), relay.var("b", (4, 1, 1))))
    mod = lowered(body)
    (prim,) = prim_funcs(mod).values()
    assert prim.name == "m_fused_nn_conv2d_add_nn_relu"
    (block,) = prim.blocks
    assert (len(block.axes), len(block.raxes), prim.temps) == (4, 3, ())
    same_values(relay.module(body), mod)


def test_softmax_is_four_blocks() -> None:
    (prim,) = prim_funcs(lowered(nn.softmax(relay.var("x", (2, 5))))).values()
    assert len(prim.blocks) == 4


def test_long_names_end_in_a_hash() -> None:
    body: relay.Expr = X
    for _ in range(40):
        body = op.tanh(body)
    (name,) = prim_funcs(lowered(body))
    assert name.startswith("m_fused_tanh_tanh")
    assert name.endswith("_")
    assert len(name) == len("m_") + 80 + 1 + 16 + 1


def test_kernels_that_only_reshape_say_so() -> None:
    mod = lowered(op.reshape(relay.var("x", (2, 6)), newshape=(3, 4)))
    props = get_call_lowered_props(mod["main"].body)
    assert props is not None
    assert props.attrs.metadata["relay.reshape_only"] == 1
    same_values(relay.module(op.reshape(relay.var("x", (2, 6)), newshape=(3, 4))), mod)


def test_a_call_without_a_device_names_the_pass_that_gives_one() -> None:
    with pytest.raises(LoweringError, match="target of a call") as caught:
        lower_te(FuseOps()(relay.module(TWICE)), "m")
    assert "PlanDevices" in str(caught.value)


def test_kernels_are_lowered_for_the_device_they_are_on() -> None:
    other = VirtualDevice("reference", 0, "reference")
    on = op.on_device(op.exp(X), virtual_device=other)
    mod = LowerTE(mod_name="m")(PlanDevices("c")(FuseOps()(relay.module(op.tanh(on)))))
    targets = {name: fn.attrs["target"] for name, fn in prim_funcs(mod).items()}
    assert targets == {"m_fused_exp": "reference", "m_fused_tanh": "c"}
    assert len(extract_calls(mod["main"], "device_copy")) == 1
    same_values(relay.module(op.tanh(op.exp(X))), mod)


def test_bindings_of_kernels_disappear_with_their_calls() -> None:
    text = """#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {
  let %f = fn (%p: Tensor[(4), float32], Primitive=1) -> Tensor[(4), float32] { exp(%p) };
  let %y = %f(%x);
  %f(%y)
}"""
    mod = compiler.infer_module(compiler.parse(text))
    new = LowerTE(mod_name="m")(mod)
    assert len([n for n in post_order(new["main"]) if isinstance(n, Let)]) == 1
    assert callees(new) == ["m_fused_exp", "m_fused_exp"]
    same_values(mod, new)
    only = compiler.infer_module(
        compiler.parse(text.replace("let %y = %f(%x);\n  %f(%y)", "%f(%x)"))
    )
    assert not isinstance(LowerTE()(only)["main"].body, Let)


def test_branches_and_closures_are_lowered_inside() -> None:
    mod = compiler.infer_module(
        compiler.parse("""#[version = "0.0.5"]
def @helper(%x: Tensor[(4), float32]) -> Tensor[(4), float32] { tanh(%x) }
def @main(%c: bool, %x: Tensor[(4), float32]) {
  let %f = fn (%y: Tensor[(4), float32]) -> Tensor[(4), float32] { sqrt(exp(%y)) };
  %0 = if (%c) { %f(%x) } else { @helper(exp(%x)) };
  (%0, %x)
}""")
    )
    new = lowered(mod)
    assert sorted(prim_funcs(new)) == ["m_fused_exp", "m_fused_exp_sqrt", "m_fused_tanh"]
    assert isinstance(new["helper"], Function)
    x = np.array([0.1, 0.2, 0.3, 0.4], "float32")
    for cond in (True, False):
        inputs = {"c": np.array(cond), "x": x}
        for a, b in zip(compiler.evaluate(mod, inputs), compiler.evaluate(new, inputs)):
            np.testing.assert_allclose(b, a, rtol=1e-6)


def test_tuples_are_passed_to_kernels_field_by_field() -> None:
    s = op.split(relay.var("x", (4, 6)), indices_or_sections=3, axis=1)
    kernel = relay.Function(
        (p := relay.var("p", relay.TupleType((relay.TensorType((4, 2), "float32"),) * 3)),),
        op.concatenate(p, axis=0),
        attrs={"Primitive": 1},
    )
    mod = relay.module(relay.Call(kernel, (s,)))
    new = lowered(mod)
    props = get_call_lowered_props(new["main"].body)
    assert props is not None
    assert len(props.arguments) == 3
    same_values(mod, new)


def test_lowering_a_lowered_module_again_changes_nothing() -> None:
    once = lowered(TWICE)
    again = LowerTE(mod_name="n")(once)
    assert compiler.structural_equal(once, again)


def test_prim_funcs_that_are_there_are_called_as_they_are() -> None:
    once = lowered(TWICE)
    gv = once.get_global_var("m_fused_exp")
    direct = relay.Function((X,), relay.Call(gv, (X,)))
    mod = compiler.infer_module(once.with_function("main", direct))
    new = LowerTE(mod_name="n")(mod)
    assert callees(new) == ["m_fused_exp"]
    bare = once.with_function("m_fused_exp", _without_attrs(once["m_fused_exp"]))
    bare = compiler.infer_module(bare.with_function("main", relay.Function((X,), direct.body)))
    with pytest.raises(LoweringError, match="without attribute target"):
        LowerTE()(bare)


def _without_attrs(prim: PrimFunc) -> PrimFunc:
    return PrimFunc(prim.name, prim.params, prim.outputs, prim.temps, prim.consts, prim.blocks)


def test_process_fn_sees_what_is_lowered() -> None:
    seen: list[Any] = []
    lowered(TWICE, process_fn=seen.append)
    assert len(seen) == 2
    attrs = seen[0].attrs
    assert attrs["prim_fn_var"].name_hint == "m_fused_exp"
    assert [g.name_hint for g in attrs["prim_funcs"]] == ["m_fused_exp"]
    assert attrs["target"] == "c"


def test_unknown_sizes_are_refused_with_the_operator() -> None:
    x = relay.var("x", (relay.AnyDim(), 4))
    with pytest.raises(DynamicShapeError, match="add"):
        lowered(op.add(x, relay.var("y", (1, 4))))


def test_factors_that_vary_at_run_time_are_refused_by_what_varies() -> None:
    names = ("x", "multiplier", "shift")
    operands = [relay.var(n, s, "int32") for n, s in zip(names, ((2, 3), (3,), (3,)), strict=True)]
    mod = relay.module(Function(tuple(operands), op_call("qnn.requantize", *operands)))
    with pytest.raises(
        CompilerError, match="no loops where data, multiplier, shift vary"
    ) as caught:
        compiler.lower(mod, "net")
    assert caught.value.fix == "give all but its data as constants (FoldConstant)"


def test_kernels_cannot_be_polymorphic() -> None:
    kernel = relay.Function((X,), op.exp(X), attrs={"Primitive": 1})
    y = relay.var("y", (10,))
    call = Call(kernel, (y,), type_args=(relay.TensorType((10,), "float32"),))
    mod = compiler.IRModule.from_expr(relay.Function((y,), call))
    with pytest.raises(LoweringError, match="polymorphic"):
        lower_te(mod, "m")


class Recorder:
    """An external module that evaluates Relay."""

    kind = "test_npu"

    def __init__(self, function: Function, symbols: tuple[str, ...]) -> None:
        self.function = function
        self.symbols = symbols
        self.ran: list[str] = []

    def run(self, symbol: str, args: Sequence[Any]) -> list[Any]:
        self.ran.append(symbol)
        mod = compiler.infer_module(compiler.IRModule({"main": self.function}))
        return compiler.evaluate(mod, list(args))

    def members(self) -> dict[str, bytes]:
        return {}


EXTERNAL = """#[version = "0.0.5"]
def @main(%x: Tensor[(4), float32]) {
  %0 = fn (%p: Tensor[(4), float32], Primitive=1, Compiler="test_npu", global_symbol="npu_0")
      -> Tensor[(4), float32] { exp(%p) };
  %1 = fn (%p: Tensor[(4), float32], Primitive=1) -> Tensor[(4), float32] { tanh(%p) };
  %1(%0(%0(%x)))
}"""


@pytest.fixture
def test_npu(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Function, Target]]:
    asked: list[tuple[Function, Target]] = []
    monkeypatch.setattr(external_codegen, "_entries", {})

    @external_codegen.register("test_npu")
    def generate(function: Function, target: Target) -> Recorder:
        asked.append((function, target))
        return Recorder(function, (function.get_attr("global_symbol"),))

    return asked


def test_functions_of_another_compiler_become_external_modules(
    test_npu: list[tuple[Function, Target]],
) -> None:
    mod = compiler.infer_module(compiler.parse(EXTERNAL))
    with PassContext(config={"relay.backend.op_weights": True}):
        new = LowerTE(mod_name="m")(mod)
    assert callees(new) == ["npu_0", "npu_0", "m_fused_tanh"]
    assert dict(new["npu_0"].attrs) == {"Extern": 1}
    ((asked, target),) = test_npu
    assert "Compiler" not in asked.attrs
    assert str(target) == "ext_dev"
    assert {g.name_hint: c for g, c in new.attrs["device_contexts"].items()} == {
        "npu_0": "test_npu"
    }
    assert new.attrs["op_weights"] == {"m_fused_tanh": 1}
    (module,) = new.attrs["external_mods"]
    x = np.linspace(-1, 1, 4, dtype="float32")
    outputs = LoweredModule(new).run([x], kernels="reference")
    assert module.ran == ["npu_0", "npu_0"]
    np.testing.assert_allclose(outputs[0], compiler.evaluate(mod, [x])[0], rtol=1e-6)
    # A second lowering meets the function as compiled already.
    again = LowerTE(mod_name="n")(new)
    assert callees(again) == callees(new)
    assert again.attrs["external_mods"] == (module,)
    names = [g for g in new.functions if g.name_hint == "npu_0"]
    plain = compiler.infer_module(
        new.with_function(
            "main", relay.Function((v := relay.var("x", (4,)),), Call(names[0], (v,)))
        )
    )
    assert callees(LowerTE()(plain)) == ["npu_0"]


def test_device_contexts_survive_the_text(test_npu: list[tuple[Function, Target]]) -> None:
    new = LowerTE(mod_name="m")(compiler.infer_module(compiler.parse(EXTERNAL)))
    shown = compiler.text(new)
    assert '"device_contexts"={@npu_0="test_npu"}' in shown
    again = compiler.infer_module(compiler.parse(shown))
    assert compiler.structural_equal(again.attrs["device_contexts"], new.attrs["device_contexts"])
    for gv in new.functions:
        assert compiler.structural_equal(again[gv], new[gv])


def test_a_compiler_nobody_registered_is_named() -> None:
    mod = compiler.infer_module(compiler.parse(EXTERNAL.replace("test_npu", "no_npu")))
    with pytest.raises(
        LoweringError, match=r"external codegen tool for relay\.ext\.no_npu, known="
    ):
        LowerTE()(mod)


def test_external_functions_need_a_name_of_their_own(
    test_npu: list[tuple[Function, Target]],
) -> None:
    nameless = EXTERNAL.replace(', global_symbol="npu_0"', "")
    with pytest.raises(LoweringError, match="global_symbol"):
        LowerTE()(compiler.infer_module(compiler.parse(nameless)))


def test_a_module_that_does_not_implement_its_symbol_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(external_codegen, "_entries", {})
    external_codegen.register("test_npu")(lambda function, target: Recorder(function, ("other",)))
    with pytest.warns(UnimplementedSymbolWarning, match="npu_0"):
        LowerTE()(compiler.infer_module(compiler.parse(EXTERNAL)))


def test_the_result_is_printed_and_read_back() -> None:
    mod = lowered(TWICE)
    shown = compiler.text(mod)
    again = compiler.infer_module(compiler.parse(shown))
    assert compiler.structural_equal(again, mod)
    assert compiler.text(again) == shown


def test_call_lowered_is_checked_against_its_callee() -> None:
    mod = lowered(TWICE)
    wrong = compiler.text(mod, show_types=False).replace("(%x,)", "(%x, %x)")
    with pytest.raises(TypeInferenceError, match="call_lowered"):
        compiler.infer_module(compiler.parse(wrong))


def test_a_global_kernel_is_lowered_by_its_name() -> None:
    mod = compiler.infer_module(
        compiler.parse("""#[version = "0.0.5"]
def @k(%p: Tensor[(4), float32], Primitive=1) -> Tensor[(4), float32] { exp(%p) }
def @main(%x: Tensor[(4), float32]) { @k(%x) }
""")
    )
    new = LowerTE(mod_name="m")(mod)
    assert callees(new) == ["m_fused_exp"]
    assert isinstance(new.get_global_var("k"), GlobalVar)
    same_values(mod, new)


def test_a_lowered_function_bound_by_a_let_is_called_by_its_global_name() -> None:
    prims = prim_funcs(lowered(op.exp(X)))
    ((name, prim),) = prims.items()
    k, y = GlobalVar(name), relay.var("y", (10,))
    alias = relay.var("k")
    main = relay.Function((y,), Let(alias, k, Call(alias, (y,))))
    mod = compiler.infer_module(compiler.IRModule({GlobalVar("main"): main, k: prim}))
    assert callees(lower_te(mod)) == [name]
