"""A module as commands of an accelerator and its host: complete, in order, and right."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from compiler import evaluate, relay
from compiler.errors import CodegenError, EvaluationError
from compiler.fusion.hardware.cost import hardware_cost
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.program import program
from compiler.ir.module import IRModule
from tests.compiler.frontend.from_onnx.test_load import imported
from tests.compiler.frontend.from_onnx.test_recurrent import weights, whole

Array = NDArray[Any]
Files = Mapping[str, bytes]
nn = relay.op.nn


def array_in(files: Files, name: str) -> Array:
    return np.load(io.BytesIO(files[name]), allow_pickle=False)


def run_call(command: Mapping[str, Any], held: dict[str, Array]) -> None:
    """One command, by what the JSON says of it."""
    args = [held[name] for name in command["operands"]]
    attrs = {k: tuple(v) if isinstance(v, list) else v for k, v in command["attrs"].items()}
    params = [relay.var(f"a{n}", a.shape, str(a.dtype)) for n, a in enumerate(args)]
    operands = [tuple(params)] if command["op"] == "concatenate" else params
    called = relay.call(command["op"], *operands, **attrs)
    results = evaluate(relay.module(relay.Function(tuple(params), called)), args)
    held.update(zip(command["result"].split(","), results))


def drive(files: Files, name: str, inputs: list[Array]) -> list[Array]:
    """A driver that knows the files only."""
    main = json.loads(files[f"{name}.json"])
    held = {port["name"]: array for port, array in zip(main["inputs"], inputs)}
    held |= {key: array_in(files, f"host.{key}.npy") for key in main["constants"]}
    for step in main["steps"]:
        if step["unit"] == "host":
            run_call(step, held)
            continue
        group = json.loads(files[f"{step['op']}.json"])
        args = iter(step["operands"])
        local = {
            buffer["name"]: held[next(args)]
            if buffer["kind"] == "input"
            else array_in(files, f"{step['op']}.{buffer['name']}.npy")
            for buffer in group["buffers"]
        }
        for command in group["commands"]:
            run_call(command, local)
        held[step["result"]] = local[group["output"]]
    return [held[output] for output in main["outputs"]]


@pytest.mark.shared
@pytest.mark.parametrize(
    ("model", "hdfg", "shape"),
    [
        ("digits_cnn", "opu_q", (1, 1, 8, 8)),
        ("digits_cnn", "npu", (1, 1, 8, 8)),
        ("fashion_resnet", "opu_q", (1, 1, 28, 28)),
    ],
)
def test_a_driver_that_reads_the_files_computes_the_bits_of_the_module(
    model: str, hdfg: str, shape: tuple[int, ...], integer_model: Callable[[str], IRModule]
) -> None:
    mod = integer_model(model)
    described = load_hdfg(hdfg)
    made = program(mod, described)
    x = np.random.default_rng(0).standard_normal(shape).astype("float32")
    (wanted,) = evaluate(mod, [x])
    np.testing.assert_array_equal(made.run([x])[0], wanted)
    np.testing.assert_array_equal(drive(made.files("m"), "m", [x])[0], wanted)
    assert made.cost == hardware_cost(mod, described).totals()
    host = [step for step in made.steps if step.unit == "host"]
    assert len(host) == made.cost["hw_host_calls"]
    assert len(made.steps) - len(host) == made.cost["hw_groups"] == len(made.groups.symbols)


def several_outputs() -> IRModule:
    """Two parameters of one name, a host operator, an input that is an output, a constant."""
    x, y = relay.var("x", (1, 4, 6, 6)), relay.var("x", (1, 4, 6, 6))
    weight = relay.const(np.ones((4, 4, 1, 1), "float32"))
    both = relay.op.concatenate([nn.relu(nn.conv2d(x, weight)), relay.op.sigmoid(y)], axis=0)
    outputs = relay.Tuple((both, y, relay.const(np.float32(3)), relay.op.sigmoid(y)))
    return relay.module(relay.Function((x, y), outputs))


def test_inputs_keep_their_places_and_every_output_is_named() -> None:
    made = program(several_outputs(), load_hdfg("opu"))
    assert made.parameters == ("x", "x")
    x, y = (np.random.default_rng(k).standard_normal((1, 4, 6, 6)).astype("f") for k in range(2))
    wanted = evaluate(several_outputs(), [x, y])
    for found in (made.run([x, y]), drive(made.files("m"), "m", [x, y])):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    with pytest.raises(EvaluationError, match="1 arrays for 2 inputs"):
        made.run([x])


def test_the_text_lists_steps_in_order() -> None:
    made = program(several_outputs(), load_hdfg("opu"))
    lines = str(made).splitlines()
    assert lines[0] == "# main on opu: 1 groups, 2 operators on the host"
    assert lines[1] == "input     p0 float32[1x4x6x6] x"
    assert "opu       opu_0 p0 -> t0 float32[1x4x6x6]" in lines
    assert "# opu_0" in lines


def test_branches_are_refused() -> None:
    x = relay.var("x", (1, 4, 6, 6))
    choice = relay.If(relay.var("c", "bool"), nn.relu(x), x)
    with pytest.raises(CodegenError, match="If has no command list form"):
        program(relay.module(choice), load_hdfg("opu"))


def test_loops_are_refused() -> None:
    mod, _ = imported(whole("GRU", weights("GRU")))
    with pytest.raises(CodegenError, match="cells is a loop, which no command holds"):
        program(mod, load_hdfg("opu"))


def test_a_name_that_a_group_has_is_refused() -> None:
    with pytest.raises(CodegenError, match="both write opu_0"):
        program(several_outputs(), load_hdfg("opu")).files("opu_0")
