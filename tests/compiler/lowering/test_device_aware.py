"""Traversals that know the device in force."""

from __future__ import annotations

import pytest

import compiler
from compiler import relay
from compiler.errors import CompilerError, ParseError
from compiler.ir.analysis import extract_calls
from compiler.ir.expr import Call, Expr, Function, Let, Var, is_op_call
from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice
from compiler.lowering.device_aware import (
    DeviceAwareExprMutator,
    DeviceAwareExprVisitor,
    LexicalOnDeviceMixin,
    recover_virtual_device_map,
)
from compiler.ops.annotation.on_device import get_on_device_props, make_on_device, maybe_on_device

CPU = VirtualDevice("c", 0, "c")
NPU = VirtualDevice("reference", 0, "reference")
op = relay.op


class Devices(DeviceAwareExprVisitor):
    """Notes the device of every operator call, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, VirtualDevice]] = []

    def device_aware_visit_call(self, call: Call) -> None:
        self.seen.append((call.op.name, self.get_virtual_device(call)))  # type: ignore[attr-defined]


def fixed(body: Expr, device: VirtualDevice) -> Expr:
    return make_on_device(body, device, constrain_result=True)


def on_two_devices() -> Function:
    x = Var("x", relay.TensorType((4,), "float32"), virtual_device=NPU)
    inner = fixed(op.exp(op.sqrt(x)), NPU)
    return Function((x,), op.tanh(op.add(inner, inner)), virtual_device=CPU)


def test_calls_see_the_device_of_their_region() -> None:
    visitor = Devices()
    visitor.visit(on_two_devices())
    assert visitor.seen == [("sqrt", NPU), ("exp", NPU), ("add", CPU), ("tanh", CPU)]


def test_every_node_has_its_device_in_the_map() -> None:
    fn = on_two_devices()
    found = recover_virtual_device_map(None, fn)
    (exp,), (tanh,) = extract_calls(fn, "exp"), extract_calls(fn, "tanh")
    assert (found[exp], found[tanh], found[fn.params[0]], found[fn]) == (NPU, CPU, NPU, CPU)
    assert not any(type(node).__name__ == "Op" for node in found)


def test_let_variables_have_the_device_of_their_value_until_they_go_out_of_scope() -> None:
    x = relay.var("x", (4,))
    v, w = relay.var("v", (4,)), relay.var("w", (4,))
    body = Let(v, fixed(op.exp(x), NPU), Let(w, op.tanh(x), op.add(v, w)))
    seen: dict[str, VirtualDevice] = {}

    class Uses(DeviceAwareExprVisitor):
        def device_aware_visit_call(self, call: Call) -> None:
            if is_op_call(call, "add"):
                seen.update({a.name_hint: self.get_virtual_device(a) for a in (v, w)})

    visitor = Uses()
    visitor.visit(Function((x,), body, virtual_device=CPU))
    assert seen == {"v": NPU, "w": CPU}
    assert visitor.get_virtual_device(v) is UNCONSTRAINED


def test_kernels_are_on_the_device_of_their_call() -> None:
    x = relay.var("x", (4,))
    kernel = Function((p := relay.var("p", (4,)),), op.exp(p), attrs={"Primitive": 1})
    mixin = LexicalOnDeviceMixin()
    token = mixin.push_virtual_device(NPU)
    assert mixin.get_virtual_device(kernel) is NPU
    assert mixin.get_virtual_device(Call(kernel, (x,))) is NPU
    mixin.pop_virtual_device(token)
    assert mixin.get_virtual_device(kernel) is UNCONSTRAINED


def test_an_unconstrained_region_leaves_the_outer_one_in_force() -> None:
    mixin = LexicalOnDeviceMixin()
    outer = mixin.push_virtual_device(CPU)
    inner = mixin.push_virtual_device(UNCONSTRAINED)
    call = op.exp(relay.var("x", (4,)))
    assert mixin.get_virtual_device(call) is CPU
    mixin.pop_virtual_device(inner)
    assert mixin.get_virtual_device(call) is CPU
    mixin.pop_virtual_device(outer)
    assert mixin.get_virtual_device(call) is UNCONSTRAINED


def test_a_variable_is_bound_once() -> None:
    mixin, x = LexicalOnDeviceMixin(), relay.var("x", (4,))
    mixin.push_bound_var(x, CPU)
    with pytest.raises(CompilerError, match="bound twice"):
        mixin.push_bound_var(x, NPU)
    mixin.pop_bound_var(x)
    mixin.pop_bound_var(x)


def test_functions_of_the_module_have_the_device_of_their_definition() -> None:
    mod = compiler.IRModule({"f": on_two_devices()})
    assert LexicalOnDeviceMixin(mod).get_virtual_device(mod.get_global_var("f")) is CPU


class ExpToTanh(DeviceAwareExprMutator):
    """Rewrites exp where it runs on NPU."""

    def device_aware_visit_call(self, call: Call) -> Expr:
        post = super().device_aware_visit_call(call)
        assert isinstance(post, Call)
        on_npu = self.get_virtual_device(call) is NPU
        return op.tanh(post.args[0]) if is_op_call(post, "exp") and on_npu else post


def test_the_mutator_rewrites_inside_a_region_and_wraps_the_result_again() -> None:
    x = relay.var("x", (4,))
    fn = Function((x,), op.exp(fixed(op.exp(x), NPU)), virtual_device=CPU)
    new = ExpToTanh().visit(fn)
    assert isinstance(new, Function)
    outer = new.body
    assert is_op_call(outer, "exp")
    props = get_on_device_props(outer.args[0])  # type: ignore[attr-defined]
    assert props is not None
    assert props.is_fixed
    assert is_op_call(props.body, "tanh")


def test_the_mutator_keeps_what_it_does_not_change() -> None:
    fn = on_two_devices()
    assert DeviceAwareExprMutator().visit(fn) is fn
    lets = Let(v := relay.var("v", (4,)), op.exp(relay.var("x", (4,))), op.add(v, v))
    assert DeviceAwareExprMutator().visit(lets) is lets


def test_bindings_may_be_dropped_until_no_let_is_left() -> None:
    class DropAll(DeviceAwareExprMutator):
        blocks: int = 0

        def post_visit_let(self, pre_let: Let, post_let: Let) -> Expr:
            return post_let.body

        def post_visit_let_block(self, pre_let: Let, post: Expr) -> Expr:
            self.blocks += 1
            return post

    x = relay.var("x", (4,))
    body: Expr = x
    for i in range(3):
        body = Let(relay.var(f"v{i}", (4,)), op.exp(x), body)
    dropper = DropAll()
    assert dropper.visit(body) is x
    assert dropper.blocks == 1


def test_a_recursive_function_sees_itself() -> None:
    x = relay.var("x", (4,))
    f = relay.var("f")
    literal = Function((y := relay.var("y", (4,)),), Call(f, (y,)), virtual_device=NPU)
    seen: list[VirtualDevice] = []

    class Callees(DeviceAwareExprVisitor):
        def device_aware_visit_call(self, call: Call) -> None:
            seen.append(self.get_virtual_device(call.op))

    Callees().visit(Let(f, literal, Call(f, (x,))))
    assert seen == [NPU, NPU]


def test_deep_dataflow_lets_and_regions_need_no_recursion() -> None:
    x = relay.var("x", (4,))
    deep: Expr = x
    for _ in range(3_000):
        deep = op.exp(deep)
    nested: Expr = deep
    for i in range(2_000):
        nested = fixed(op.tanh(nested), NPU if i % 2 else CPU)
    lets: Expr = nested
    for i in range(2_000):
        lets = Let(relay.var(f"v{i}", (4,)), op.exp(x), lets)
    fn = Function((x,), lets, virtual_device=CPU)
    visitor = Devices()
    visitor.visit(fn)
    assert len(visitor.seen) == 7_000
    assert DeviceAwareExprMutator().visit(fn) is fn


def test_on_device_is_not_put_where_it_says_nothing() -> None:
    x = relay.var("x", (4,))
    call = op.exp(x)
    assert maybe_on_device(call, UNCONSTRAINED) is call
    assert maybe_on_device(x, CPU) is x
    assert maybe_on_device(call.op, CPU) is call.op
    once = maybe_on_device(call, CPU)
    twice = get_on_device_props(maybe_on_device(once, CPU, True, True))
    assert twice is not None
    assert twice.is_fixed
    assert twice.body is call
    other = get_on_device_props(maybe_on_device(once, NPU))
    assert other is not None
    assert other.body is once


def test_devices_of_functions_and_parameters_survive_the_text() -> None:
    mod = compiler.infer_module(compiler.IRModule({"main": on_two_devices()}))
    again = compiler.parse(compiler.text(mod))["main"]
    assert again.virtual_device is CPU
    assert again.params[0].virtual_device is NPU
    with pytest.raises(ParseError, match="must name a device"):
        compiler.parse('#[version = "0.0.5"]\ndef @main(virtual_device="c") { 1f }')
