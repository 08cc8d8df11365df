"""Every command of every README is run in one folder, with a tiny model of one's own in it.

What the READMEs call m.onnx, calib/, val/ and pre.yaml is made here; ``QSEARCH_TRIALS`` and
``QSEARCH_POOL`` keep searches small where the command does not say. Programs that are not started
here (a cluster, Docker) are named below, each with who does it instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from qsearch.cli.main import COMMANDS, qsearch

ROOT = Path(__file__).resolve().parents[1]
READMES = sorted(
    [
        ROOT / "README.md",
        *(
            p
            for d in ("compiler", "workers", "qsearch", "deploy", ".github")
            for p in (ROOT / d).rglob("*.md")
        ),
    ]
)

ELSEWHERE = {
    "pip": "tests/packaging and .ci/run install the project",
    "python3": "tests/packaging makes environments",
    "git": "a repository's own business",
    "bash": ".ci/run is CI itself",
    "pre-commit": ".ci/run runs the same checks",
    "cp": "needs the secrets of a user",
    "docker": "no daemon; tests/deploy/test_compose_by_hand.py starts the same processes",
    "kubectl": "no cluster; tests/deploy/test_manifests.py checks what would be sent",
    "cc": "tests/compiler/targets/c/test_readme.py compiles and runs it",
    "./check_digits": "tests/compiler/targets/c/test_readme.py compiles and runs it",
}
"""Programs that are not started here, and who starts them or what they do."""


def commands(path: Path) -> list[str]:
    """Command lines of ``sh`` blocks, of lines set as code, and of code within sentences."""
    text = path.read_text(encoding="utf-8")
    found = []
    for block in re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        found += block.replace("\\\n", " ").splitlines()
    found += re.findall(r"^(?:\$| {3}) ((?:qsearch|python -m) .*)$", text, re.MULTILINE)
    quoted = (" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text))
    found += [c for c in quoted if re.match(r"(qsearch|python -m) [a-z.]", c)]
    return [line.strip() for line in found if line.strip() and not line.startswith("#")]


ALL = [(path, line) for path in READMES for line in commands(path)]


def is_whole(line: str) -> bool:
    """Whether a line can be run, rather than speak of a command with parts left out."""
    return len(line.split()) > 2 and not re.search(r"[…\[|<$]|HOST|MODEL|\b(DIR|RUN|FILE)\b", line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder: a model for pictures of 16 x 16, and pictures of two classes."""
    home = tmp_path_factory.mktemp("user")
    rng = np.random.default_rng(0)
    kernel = rng.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
    dense = rng.normal(0, 0.3, (8, 2)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "k"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("MatMul", ["f", "d"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "m",
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 16, 16])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(kernel, "k"), numpy_helper.from_array(dense, "d")],
    )
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), home / "m.onnx"
    )
    for name in ("calib", "val"):
        for label in ("0", "1"):
            (home / name / label).mkdir(parents=True)
            for number in range(8):
                pixels = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(home / name / label / f"{number}.png")
    (home / "pre.yaml").write_text("resize: 16\ncrop: 16\nlayout: NCHW\nmean: 127\nstd: 128\n")
    np.savez(home / "c.npz", input=rng.normal(0, 1, (16, 3, 16, 16)).astype(np.float32))
    return home


def run(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    small = {"QSEARCH_TRIALS": "2", "QSEARCH_POOL": "inline", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, **small, "PATH": path, "PYTHONPATH": str(ROOT)},
        timeout=600,
        check=False,
    )


ONE_AFTER_ANOTHER = """
import json, pathlib, shlex
from qsearch.cli.main import run
lines = json.loads(pathlib.Path("lines.json").read_text())
print(json.dumps([run(shlex.split(line, comments=True)[1:]) for line in lines]))
"""


@pytest.mark.slow
def test_commands_run_as_the_readmes_say(folder: Path) -> None:
    lines = list(dict.fromkeys(line for _, line in ALL if is_whole(line)))
    # What the first README makes is what later ones work on.
    lines.sort(key=lambda line: (" launch " not in line, " compile " not in line))
    searches, others = [], []
    for line in lines:
        if not line.startswith("qsearch "):
            continue
        words = shlex.split(line, comments=True)[1:]
        if {"--address", "--storage"} & set(words) or words[0] == "dashboard":
            continue  # a cluster, a server: parsed below
        (searches if " launch " in line else others).append(line)
    done_before = "cp runs/m/best.qmod best.qmod; cp best.qmod model.qmod"
    done_before += "; qsearch show m.onnx -q > model.relay"
    run_all(searches, folder)
    assert run(done_before, folder).returncode == 0
    run_all(others, folder)


def run_all(lines: list[str], folder: Path) -> None:
    """Commands take seconds to start and less to run: one process runs them all.

    1 is an answer: a random model of two classes may lose an image of sixteen.
    """
    (folder / "lines.json").write_text(json.dumps(lines))
    done = run(f"python -c {shlex.quote(ONE_AFTER_ANOTHER)}", folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert {line: code for line, code in zip(lines, codes, strict=True) if code > 1} == {}, (
        done.stderr
    )


@pytest.mark.parametrize(
    ("path", "line"), ALL, ids=lambda v: v if isinstance(v, str) else v.parent.name
)
def test_a_command_of_a_readme_exists(path: Path, line: str) -> None:
    """Flags are known, modules are there, and other programs are listed with a reason."""
    program = shlex.split(line, comments=True)[0] if is_whole(line) else line.split()[0]
    if program == "qsearch":
        words = line.split()[1:]
        if words[0].startswith("-"):
            return
        assert words[0].strip("`,.") in COMMANDS, line
        for flag in re.findall(r"(?<!\S)--[a-z-]+", line.partition("#")[0]):
            command = qsearch.get_command(click.Context(qsearch), words[0])
            assert command is not None
            known = [name for param in command.params for name in param.opts]
            assert flag in [*known, "--help"], f"{path}: {line}: {flag}"
    elif program == "python":
        match = re.match(r"python -m ([\w.]+)", line)
        assert match is None or importlib.util.find_spec(match[1]) is not None, line
    else:
        assert program in ELSEWHERE or line.startswith("--"), f"{path}: {line}"
