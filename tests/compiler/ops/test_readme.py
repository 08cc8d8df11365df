from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import compiler.ops

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
    readme = Path(compiler.ops.__path__[0], "README.md").read_text(encoding="utf-8")
    block = re.search(r"   ```python\n(.*?)   ```", readme, re.DOTALL)
    assert block is not None
    code = textwrap.dedent(block.group(1)) + USE
    # A process of its own: operators of this one must not leak into other tests.
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    clipped = "[-0.5, 0.25, 0.5]"
    assert done.stdout.split("\n")[:3] == [clipped, "True", clipped]
