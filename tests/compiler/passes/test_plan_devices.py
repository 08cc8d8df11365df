"""PlanDevices: a device for every expression, copies where devices meet."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError
from compiler.ir.analysis import extract_calls, post_order
from compiler.ir.expr import Call, Expr, Function, If, Op
from compiler.ir.virtual_device import VirtualDevice
from compiler.lowering.device_aware import recover_virtual_device_map
from compiler.ops.annotation.on_device import get_on_device_props
from compiler.targets.compilation_config import CompilationConfig, device_of
from compiler.targets.target import Target
from compiler.transform import PlanDevices
from tests.each import each

CPU = device_of(Target("c"))
NPU = device_of(Target("reference"))
op = relay.op
X = np.linspace(-1, 1, 4, dtype="float32")


def on(body: Expr, device: VirtualDevice) -> Expr:
    return op.on_device(body, virtual_device=device)


def planned(body: Expr | relay.IRModule, config: CompilationConfig | str = "c") -> relay.IRModule:
    mod = body if isinstance(body, relay.IRModule) else relay.module(body)
    new = PlanDevices(config)(mod)
    inputs = [X if p.tensor_type.shape else np.array(True) for p in mod["main"].params]
    for a, b in zip(compiler.evaluate(mod, inputs), compiler.evaluate(new, inputs), strict=True):
        np.testing.assert_array_equal(a, b)
    assert compiler.structural_equal(PlanDevices(config)(new), new), "planning twice is once"
    return new


def devices(mod: relay.IRModule) -> dict[str, VirtualDevice]:
    """Operator → device, for operators that compute."""
    found = recover_virtual_device_map(mod, mod["main"])
    return {
        node.op.name: device
        for node, device in found.items()
        if isinstance(node, Call)
        and isinstance(node.op, Op)
        and node.op.name not in ("device_copy", "on_device")
    }


def copies(mod: relay.IRModule) -> list[tuple[VirtualDevice, VirtualDevice]]:
    return [
        (c.attrs.src_virtual_device, c.attrs.dst_virtual_device)  # type: ignore[union-attr]
        for c in extract_calls(mod["main"], "device_copy")
    ]


def test_without_annotations_everything_is_on_the_default_device() -> None:
    mod = planned(op.tanh(op.exp(relay.var("x", (4,)))))
    assert devices(mod) == {"exp": CPU, "tanh": CPU}
    assert copies(mod) == []
    assert mod["main"].virtual_device is CPU
    assert mod["main"].params[0].virtual_device is CPU


def test_values_are_copied_where_devices_meet() -> None:
    x = relay.var("x", (4,))
    mod = planned(op.tanh(on(op.exp(op.sqrt(op.abs(x))), NPU)))
    assert devices(mod) == {"abs": NPU, "sqrt": NPU, "exp": NPU, "tanh": CPU}
    assert copies(mod) == [(NPU, CPU)]
    assert mod["main"].params[0].virtual_device is NPU


def test_a_value_read_by_many_is_copied_once() -> None:
    x = relay.var("x", (4,))
    there = on(op.exp(x), NPU)
    mod = planned(relay.Tuple((op.tanh(there), op.add(there, op.abs(there)))))
    assert copies(mod) == [(NPU, CPU)]


def test_a_value_may_go_there_and_back() -> None:
    x = relay.var("x", (4,))
    there = on(op.exp(on(op.abs(x), CPU)), NPU)
    mod = planned(op.tanh(there))
    assert devices(mod) == {"abs": CPU, "exp": NPU, "tanh": CPU}
    assert copies(mod) == [(CPU, NPU), (NPU, CPU)]


def test_conditions_are_on_the_host() -> None:
    config = CompilationConfig(default_primitive=NPU, host=CPU)
    mod = compiler.infer_module(
        compiler.parse("""#[version = "0.0.5"]
def @main(%a: float32, %x: Tensor[(4), float32]) {
  let %v = exp(%x);
  if (less(%a, 1f)) { tanh(%v) } else { %v }
}""")
    )
    new = PlanDevices(config)(mod)
    (branch,) = (n for n in post_order(new["main"]) if isinstance(n, If))
    found = recover_virtual_device_map(new, new["main"])
    assert found[branch.cond] is CPU
    assert devices(new) == {"less": CPU, "exp": NPU, "tanh": NPU}
    inputs = {"a": np.float32(0), "x": X}
    np.testing.assert_array_equal(compiler.evaluate(new, inputs), compiler.evaluate(mod, inputs))


def test_functions_of_an_accelerator_are_on_its_device() -> None:
    kernel = Function(
        (p := relay.var("p", (4,)),),
        op.exp(p),
        attrs={"Primitive": 1, "Compiler": "npu", "global_symbol": "npu_0"},
    )
    body = op.tanh(Call(kernel, (op.abs(relay.var("x", (4,))),)))
    config = CompilationConfig.of("c", {"npu": Target("reference")})
    mod = planned(body, config)
    assert devices(mod) == {"abs": CPU, "exp": NPU, "tanh": CPU}
    assert copies(mod) == [(CPU, NPU), (NPU, CPU)]
    assert copies(planned(body)) == []


def test_every_change_of_device_is_a_fixed_on_device() -> None:
    x = relay.var("x", (4,))
    mod = planned(op.add(on(op.exp(x), NPU), op.tanh(x)))
    for node in each(post_order(mod["main"])):
        props = get_on_device_props(node)
        assert props is None or props.is_fixed


def test_contradictions_are_named() -> None:
    x = relay.var("x", (4,))
    e = op.exp(x)
    with pytest.raises(CompilerError, match="two devices"):
        PlanDevices("c")(relay.module(relay.Tuple((on(e, NPU), on(e, CPU)))))


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(CompilerError, match="vulkan"):
        PlanDevices("vulkan")(relay.module(op.exp(relay.var("x", (4,)))))


def test_a_long_chain_over_two_devices_is_planned_in_one_sweep() -> None:
    body: Expr = relay.var("x", (4,))
    for i in range(6_000):
        body = op.tanh(body)
        if i % 100 == 99:
            body = on(body, NPU if i % 200 == 99 else CPU)
    mod = PlanDevices("c")(relay.module(body))
    assert len(copies(mod)) == 59
