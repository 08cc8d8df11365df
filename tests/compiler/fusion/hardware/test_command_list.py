"""Groups as commands: what a driver reads, and what they compute."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

from compiler import relay, transform
from compiler.errors import ArtifactError, CodegenError
from compiler.fusion.hardware.command_list import command_list, register_command_list
from compiler.fusion.hardware.description import shipped_descriptions
from compiler.fusion.hardware.group_calls import group_functions
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.runtime.external_module import external_loaders
from compiler.targets.external_codegen import external_codegen
from compiler.targets.target import Target

nn = relay.op.nn


def network() -> IRModule:
    rng = np.random.default_rng(0)
    weight = relay.const(rng.integers(-5, 5, (3, 4)).astype("float32"))
    bias = relay.const(rng.integers(-5, 5, 3).astype("float32"))
    flat = nn.batch_flatten(relay.var("x", (2, 4, 1, 1)))
    return relay.module(nn.relu(relay.op.add(nn.dense(flat, weight), bias)))


def group() -> Function:
    (function,) = group_functions(transform.FuseOpHW("opu")(network()))
    return function.without_attr("Compiler")


def test_a_command_names_unit_operands_and_types() -> None:
    commands = command_list(group())
    assert [(c.unit, c.op, c.operands, c.result, c.type) for c in commands.commands] == [
        ("free", "nn.batch_flatten", ("p0",), "t0", "float32[2x4]"),
        ("ipa", "nn.dense", ("t0", "c0"), "t1", "float32[2x3]"),
        ("add", "add", ("t1", "c1"), "t2", "float32[2x3]"),
        ("compare", "nn.relu", ("t2",), "t3", "float32[2x3]"),
    ]
    assert [(b.kind, b.name, b.type) for b in commands.buffers] == [
        ("input", "p0", "float32[2x4x1x1]"),
        ("const", "c0", "float32[3x4]"),
        ("const", "c1", "float32[3]"),
    ]
    assert commands.output == "t3"
    assert json.loads(json.dumps(commands.to_dict()))["symbol"] == "opu_0"
    assert "ipa       nn.dense t0 c0 -> t1 float32[2x3]" in str(commands)


@pytest.mark.parametrize("name", shipped_descriptions())
def test_shipped_descriptions_compile_to_commands_that_can_be_saved(name: str) -> None:
    module = external_codegen.require(name)(group(), Target("ext_dev"))
    assert module is not None
    assert (module.kind, module.symbols) == (name, ("opu_0",))
    x = np.random.default_rng(1).integers(-5, 5, (2, 4, 1, 1)).astype("float32")
    wanted = np.asarray(_evaluated(x))
    np.testing.assert_array_equal(module.run("opu_0", [x])[0], wanted)
    again = external_loaders.require(name)(module.members())
    np.testing.assert_array_equal(again.run("opu_0", [x])[0], wanted)
    assert again.members() == module.members()


def test_a_driver_finds_commands_and_constants_in_the_members() -> None:
    module = external_codegen.require("opu")(group(), Target("ext_dev"))
    assert module is not None
    members = module.members()
    assert sorted(members) == ["opu_0.c0.npy", "opu_0.c1.npy", "opu_0.json", "opu_0.relay"]
    commands = json.loads(members["opu_0.json"])
    assert [c["unit"] for c in commands["commands"]] == ["free", "ipa", "add", "compare"]
    weight = np.load(io.BytesIO(members["opu_0.c0.npy"]), allow_pickle=False)
    assert (weight.shape, str(weight.dtype)) == ((3, 4), "float32")
    damaged = {name: data for name, data in members.items() if name != "opu_0.c1.npy"}
    with pytest.raises(ArtifactError, match=r"lacks 'opu_0\.c1\.npy'"):
        external_loaders.require("opu")(damaged)


def _evaluated(x: np.ndarray) -> np.ndarray:
    from compiler import evaluate

    return evaluate(network(), [x])[0]


def test_a_description_of_one_s_own_is_registered_once() -> None:
    register_command_list("my_engine")
    register_command_list("my_engine")
    assert "my_engine" in external_codegen


def test_what_is_no_group_has_no_commands() -> None:
    with pytest.raises(CodegenError, match="no hardware group"):
        command_list(network()["main"])
    module = external_codegen.require("opu")(group(), Target("ext_dev"))
    assert module is not None
    with pytest.raises(CodegenError, match="no function 'opu_1'"):
        module.run("opu_1", [])
