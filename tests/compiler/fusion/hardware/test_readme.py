"""The accelerator that the README describes."""

from __future__ import annotations

from pathlib import Path

import compiler.fusion.hardware
from compiler.export.to_onnx.float.model import to_onnx
from compiler.fusion.hardware.conditions import conditions
from compiler.quantize import prerequisite_optimize
from tests.compiler.networks import residual_net
from tests.package_readme import PackageReadme

README = PackageReadme(compiler.fusion.hardware)

RUN_THE_GROUPS = """
from compiler import evaluate
from compiler.testing import hw_groups
assert len(hw_groups(fused, "eng1")) == 8
evaluate(fused, [[[[[0.5] * 8] * 8] * 3]])
"""


def test_the_described_accelerator_works_as_printed(tmp_path: Path) -> None:
    (tmp_path / "eng1.toml").write_text(README.block("toml"))
    network, weights = residual_net()
    bound = prerequisite_optimize(network, weights, 0)
    (tmp_path / "resnet.onnx").write_bytes(to_onnx(bound).SerializeToString())
    program = README.block("python", "from compiler import transform")
    printed = README.run(program + RUN_THE_GROUPS, cwd=tmp_path)
    assert printed == README.block("", "8 groups on eng1")


def test_every_condition_is_in_the_table() -> None:
    missing = [name for name in conditions.names() if f"`{name}" not in README.text]
    assert missing == []
