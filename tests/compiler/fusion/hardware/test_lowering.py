"""Groups all the way down: LowerTE hands them to the command lists, the rest runs beside them."""

from __future__ import annotations

import numpy as np
import pytest

import compiler
from compiler import evaluate, transform
from compiler.fusion.hardware.command_list import CommandListModule, register_command_list
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.hdfg import HDFG
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, build_candidate, prerequisite_optimize
from compiler.testing import hw_groups
from tests.compiler.networks import mobile_net


@pytest.fixture(scope="module")
def integers() -> IRModule:
    """A small network with depthwise and residual parts, fully integral."""
    qconfig = QConfig.recommended().with_overrides(calibrate_mode="global_scale")
    partitioned = build_candidate(
        prerequisite_optimize(*mobile_net(), 3), qconfig, None
    ).partitioned
    assert partitioned is not None
    return partitioned


def renamed(hdfg: HDFG, name: str) -> HDFG:
    return HDFG(name, hdfg.root, hdfg.stages, hdfg.links, hdfg.free_ops)


@pytest.mark.parametrize("name", ["opu_q", "npu"])
def test_a_lowered_module_with_groups_gives_the_same_integers(
    name: str, integers: IRModule
) -> None:
    fused = transform.FuseOpHW(name)(integers)
    lowered = compiler.lower(fused, target="reference")
    modules = lowered.mod.attrs["external_mods"]
    assert all(isinstance(module, CommandListModule) for module in modules)
    symbols = [symbol for module in modules for symbol in module.symbols]
    assert sorted(symbols) == sorted(f"{name}_{k}" for k in range(len(hw_groups(fused, name))))
    x = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype("float32")
    np.testing.assert_array_equal(lowered.run([x])[0], evaluate(integers, [x])[0])


def test_a_description_of_one_s_own_lowers_once_it_is_registered(integers: IRModule) -> None:
    mine = renamed(load_hdfg("npu"), "engine_of_mine")
    fused = transform.FuseOpHW(mine)(integers)
    with pytest.raises(compiler.errors.LoweringError, match="engine_of_mine"):
        compiler.lower(fused, target="reference")
    register_command_list("engine_of_mine")
    assert compiler.lower(fused, target="reference").mod.attrs["external_mods"]
