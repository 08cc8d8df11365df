"""The operator that the README of the operators adds."""

from __future__ import annotations

import compiler.ops
from tests.package_readme import PackageReadme

USE = """
import compiler
from compiler import relay

x = relay.var("x", (3,))
call = relay.op.nn.hard_tanh(x, limit=0.5)
mod = relay.module(relay.Function((x,), call))
print(compiler.evaluate(mod, [np.array([-2, 0.25, 2], np.float32)])[0].tolist())
print("limit=0.5f" in compiler.text(mod))
lowered = compiler.lower(mod, target="reference")
print(lowered.run([np.array([-2, 0.25, 2], np.float32)])[0].tolist())
"""


def test_the_operator_of_the_readme_works_as_printed() -> None:
    readme = PackageReadme(compiler.ops)
    clipped = "[-0.5, 0.25, 0.5]"
    assert readme.run(readme.block("python") + USE).splitlines() == [clipped, "True", clipped]
