from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import compiler.lir
from compiler.lir.parser import parse_primfunc


def readme() -> str:
    return Path(compiler.lir.__path__[0], "README.md").read_text(encoding="utf-8")


def test_the_loops_written_by_hand_run_as_printed() -> None:
    block = re.search(r"```python\n(.*?)```", readme(), re.DOTALL)
    assert block is not None
    done = subprocess.run(
        [sys.executable, "-c", block[1]], capture_output=True, text=True, check=True
    )
    assert "t0[i] for (i<4) = sum(0; j<8) p0[i, j]" in done.stdout
    assert done.stdout.splitlines()[-1] == "[16, 16, 16, 16]"


def test_the_function_shown_is_one() -> None:
    block = re.search(r"```\n(@conv = .*?)```", readme(), re.DOTALL)
    assert block is not None
    func = parse_primfunc(block[1].strip(), (np.arange(4, dtype=np.int32),))
    data, weight = np.ones((1, 3, 8, 8), np.int8), np.ones((4, 3, 3, 3), np.int8)
    np.testing.assert_array_equal(func.evaluate([data, weight])[0][0, :, 0, 0], 27 + np.arange(4))
