"""Small networks of the kinds in which defects were found, through the whole path.

The files are written by ``python -m tests.benchmarks.zoo --small tests/e2e/zoo``; zoo/NOTICE says
what code they were built with.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import qsearch
from compiler.proof.replay import ENGINE, EXACT, IN_C
from compiler.targets.c.toolchain import find_compiler
from compiler.targets.ort.session import OrtExecutor
from tests.benchmarks.zoo.measure import compiled, diagnosed, measured, samples, valued

FILES = Path(__file__).parent / "zoo"
NAMES = sorted(path.stem for path in FILES.glob("*.onnx"))


def test_the_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in FILES.iterdir()}
    assert len(NAMES) >= 20
    assert max(sizes.values()) <= 400_000
    assert sum(sizes.values()) <= 4_000_000


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_network_is_integral_proved_right_and_equal_in_every_form(
    name: str, tmp_path: Path
) -> None:
    shutil.copy(FILES / f"{name}.onnx", tmp_path / "model.onnx")
    stored = dict(np.load(FILES / f"{name}.npz"))
    for part in ("calib", "fresh"):
        arrays = {
            key.removeprefix(f"{part}."): array.astype("float32")
            if array.dtype == "float16"
            else array
            for key, array in stored.items()
            if key.startswith(f"{part}.")
        }
        np.savez(tmp_path / f"{part}.npz", **arrays)
    row = measured(tmp_path, (diagnosed, compiled, valued))
    assert not row.keys() & {"refused", "defect"}, row
    assert row["integral"]
    assert row["right"], row
    found = qsearch.verify(tmp_path / "m.qmod")
    assert found.proved
    assert found.acceptable(), found.findings
    # What no input differs in: the whole of every form, and its steps one by one.
    assert found.proof is not None
    told = " ".join(one.what for one in found.proof.comparisons)
    assert all(form in told for form in (EXACT, ENGINE, *([IN_C] if find_compiler() else [])))
    calib = dict(np.load(tmp_path / "calib.npz"))
    made = qsearch.quantize(tmp_path / "model.onnx", calib, "auto,for=qdq")
    made.save(tmp_path / "q.qmod")
    qdq = qsearch.export(tmp_path / "q.qmod", "qdq", tmp_path / "qdq.onnx").files[0]
    assert OrtExecutor(qdq.read_bytes()).run(samples(tmp_path / "fresh.npz")[0])
