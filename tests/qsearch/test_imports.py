"""``--import``: own code in a search, each command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.settings.config import resolve

MODES = """
import numpy as np
from compiler.quantize.scales.modes import calibrate_modes
from beside import SHARE


@calibrate_modes.register("nearly_all")
def nearly_all(stats, qconfig, nbit):
    return np.float32(SHARE) * stats.largest
"""
MEASURE = """
from workers.metrics.registry import Measure, measures, metrics
from workers.metrics.custom import CustomMetric
from compiler.ir.pass_infra import module_pass, register_pass

measures.register("margin")(Measure("margin", option="margin", unit="", place=5))
metrics.register("margin")(CustomMetric(lambda outputs, labels: outputs[0].max(1), "margin"))


@module_pass(opt_level=0, name="Unchanged")
def unchanged(mod, ctx):
    print("the pass ran")
    return mod


def mean_margin(outputs, labels):
    return float(outputs[0].max(1).mean())
"""
SPACE = "fields: {calibrate_mode: [nearly_all], smooth_alpha: [null, 0.5]}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user stands: own modules, a space, data."""
    (tmp_path / "modes.py").write_text(MODES)
    (tmp_path / "beside.py").write_text("SHARE = 0.9\n")
    (tmp_path / "mine.py").write_text(MEASURE)
    (tmp_path / "space.yaml").write_text(SPACE)
    data = np.load(find_model("digits").eval)
    np.savez(tmp_path / "eval.npz", **{name: data[name][:64] for name in data.files})
    return tmp_path


# Imports what commands need, then runs each in a child of its own, which writes to a file.
RUNNER = """
import json, multiprocessing, os, sys
import qsearch
for name in qsearch.__all__:
    getattr(qsearch, name)
from qsearch.cli.main import run
def command(folder, words, environment):
    os.chdir(folder)
    os.environ.update(environment)
    said = os.open("said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1), os.dup2(said, 2)
    sys.exit(run(words))
for line in sys.stdin:
    child = multiprocessing.get_context("fork").Process(target=command, args=json.loads(line))
    child.start()
    child.join()
    print(child.exitcode, flush=True)
"""


@pytest.fixture(scope="module")
def qsearch() -> Iterator[Callable[..., str]]:
    """``qsearch(folder, *words)``: what a command says in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    runner = subprocess.Popen([sys.executable, "-c", RUNNER], env=environment, **pipe)
    assert runner.stdin is not None
    assert runner.stdout is not None

    def command(folder: Path, *words: str, code: int = 0, **environment: str) -> str:
        runner.stdin.write(json.dumps([str(folder), words, environment]) + "\n")
        runner.stdin.flush()
        returned = int(runner.stdout.readline())
        said = (folder / "said.txt").read_text()
        assert returned == code, said
        assert "Traceback" not in said
        return said

    yield command
    runner.communicate(timeout=600)


SEARCH = ("launch", "digits", "--eval", "eval.npz", "--max-drop", "1", "--pool", "process")
SEARCH = (*SEARCH, "--workers", "1", "-o", "run")


@pytest.mark.slow
def test_a_calibrate_mode_of_ones_own_is_searched_and_asked_for_again(
    folder: Path, qsearch: Callable[..., str]
) -> None:
    words = (*SEARCH, "--space", "space.yaml", "--trials", "2")
    told = qsearch(folder, *words, "--import", "modes.py")
    assert "2 complete" in told

    # Somebody else's folder names what it imported, and nothing of it runs.
    again = ("launch", "-c", "run/config.resolved.yaml", "--trials", "3")
    told = qsearch(folder, *again, code=2)
    assert "its search was begun with --import modes.py" in told
    (folder / "space.yaml").write_text(SPACE.replace("nearly_all", "mse"))
    told = qsearch(folder, *again, code=2)
    assert "the study 'run' was begun with --import modes" in told
    (folder / "space.yaml").write_text(SPACE)
    (folder / "beside.py").write_text("SHARE = 0.8\n")
    told = qsearch(folder, *again, "--import", "modes.py", code=2)
    assert "was begun with other code in modes" in told
    (folder / "beside.py").write_text("SHARE = 0.9\n")

    # The numbers of a module are fixed: it runs without the code that chose them.
    assert "proved" in qsearch(folder, "verify", "run")
    told = qsearch(folder, "best", "run", "--trial", "0", "-o", "t.qmod", code=2)
    assert "--import modes" in told
    qsearch(folder, "best", "run", "--trial", "0", "-o", "t.qmod", "--import", "modes.py")


@pytest.mark.slow
def test_the_default_space_has_what_the_users_modules_register(
    folder: Path, qsearch: Callable[..., str]
) -> None:
    words = ("launch", "digits", "--dry-run")
    assert "calibrate_mode(5)" in qsearch(folder, *words)
    told = qsearch(folder, *words, QSEARCH_IMPORT="modes")
    assert "calibrate_mode(6)" in told
    qsearch(folder, "doctor", "digits", "--import", "modes.py", "--space-out", "all.yaml")
    assert "nearly_all" in (folder / "all.yaml").read_text()


@pytest.mark.slow
def test_a_metric_and_a_pass_are_registered_in_every_worker(
    folder: Path, qsearch: Callable[..., str]
) -> None:
    words = (*SEARCH, "--metric", "margin", "--passes", "mine:unchanged", "--import", "mine.py")
    told = qsearch(folder, *words, "--trials", "1")
    assert "the pass ran" in told
    inline = ("launch", "digits", "--eval", "eval.npz", "--max-drop", "1", "--pool", "inline")
    qsearch(folder, *inline, "--metric", "mine:mean_margin", "--trials", "1", "-o", "inline")
    rows = [
        qsearch(folder, "best", name, "--import", "mine.py").split() for name in ("run", "inline")
    ]
    values = [row[row.index(name) + 1] for row, name in zip(rows, ("margin", "mine:mean_margin"))]
    assert values[0] == values[1]


@pytest.mark.slow
def test_an_error_in_an_imported_file_names_its_line(
    tmp_path: Path, qsearch: Callable[..., str]
) -> None:
    (tmp_path / "rules.py").write_text(
        "from compiler.frontend.from_onnx.opsets import from_onnx\n\n\n"
        '@from_onnx("Mine", domain="my.lab")\ndef mine(node):\n    return node.argument(0)\n'
    )
    value = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    node = helper.make_node("Mine", ["x"], ["y"], domain="my.lab")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("my.lab", 1)]
    graph = helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets), tmp_path / "m.onnx")
    told = qsearch(tmp_path, "doctor", "m.onnx", "--import", "rules.py", code=2)
    assert "error: rules.py failed: AttributeError: 'OnnxNode' object has no attribute" in told
    assert "rules.py, line 6: return node.argument(0) (in mine)" in told


def test_the_settings_of_a_run_folder_import_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    (tmp_path / "evil.py").write_text(f"open({str(marker)!r}, 'w')\n")
    config = tmp_path / "config.resolved.yaml"
    config.write_text(f"model: digits\nimport: [{tmp_path / 'evil.py'}]\n")
    with pytest.raises(SettingsError, match="cannot name modules to import"):
        resolve({}, config_file=config, environment={})
    assert not marker.exists()
