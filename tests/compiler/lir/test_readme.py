"""The loops that the README of the loop level shows."""

from __future__ import annotations

import numpy as np

import compiler.lir
from compiler.lir.parser import parse_primfunc
from tests.package_readme import PackageReadme

README = PackageReadme(compiler.lir)


def test_the_loops_written_by_hand_run_as_printed() -> None:
    printed = README.run(README.block("python")).splitlines()
    assert any("t0[i] for (i<4) = sum(0; j<8) p0[i, j]" in line for line in printed)
    assert printed[-1] == "[16, 16, 16, 16]"


def test_the_function_shown_is_one() -> None:
    func = parse_primfunc(README.block("", "@conv").strip(), (np.arange(4, dtype=np.int32),))
    data, weight = np.ones((1, 3, 8, 8), np.int8), np.ones((4, 3, 3, 3), np.int8)
    np.testing.assert_array_equal(func.evaluate([data, weight])[0][0, :, 0, 0], 27 + np.arange(4))
