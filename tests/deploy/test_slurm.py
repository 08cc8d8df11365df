"""The SLURM script of the README: what starts where, with which token, by stand-ins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from qsearch.cli.main import parse
from tests.deploy.compose_file import DEPLOY

README = (DEPLOY / "README.md").read_text()
SCRIPT = README[README.index("#!/usr/bin/env bash") :].partition("```")[0]

# srun runs its command once per node of the allocation, as one task each.
SRUN = """#!{python}
import json, os, sys
words = sys.argv[1:]
flags = [word for word in words[: words.index("ray")]]
told = dict(flags=flags, words=words[words.index("ray") :], token=os.environ["RAY_AUTH_TOKEN"],
            mode=os.environ["RAY_AUTH_MODE"])
open("srun.json", "w").write(json.dumps(told))
"""
SCONTROL = """#!/bin/sh
[ "$1 $2" = "show hostnames" ] && printf 'node%s\\n' 3 4 5
"""


@pytest.fixture
def told(tmp_path: Path) -> dict[str, object]:
    """What srun was asked to run."""
    for name, text in (("srun", SRUN.format(python=sys.executable)), ("scontrol", SCONTROL)):
        program = tmp_path / name
        program.write_text(text)
        program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "SLURM_JOB_ID": "1234567",
        "SLURM_JOB_NODELIST": "node[3-5]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "8",
    }
    words = ["--model", "m.onnx", "--calib", "with space/", "--trials", "256"]
    script = tmp_path / "qsearch.sbatch"
    script.write_text(SCRIPT)
    subprocess.run(["bash", script, *words], cwd=tmp_path, env=environment, check=True)
    found: dict[str, object] = json.loads((tmp_path / "srun.json").read_text())
    return found


def test_the_head_is_the_first_node_and_every_core_gets_a_worker(told: dict[str, object]) -> None:
    words = told["words"]
    assert isinstance(words, list)
    between = words.index("--")
    ray, command = words[:between], words[between + 1 :]
    # Without, srun binds the node's Ray to one CPU.
    assert "--cpus-per-task=8" in told["flags"]  # type: ignore[operator]
    address = ray[ray.index("--address") + 1]
    host, _, port = address.partition(":")
    assert host == "node3"
    assert 20000 <= int(port) < 40000
    assert ray[ray.index("--min-nodes") + 1] == "3"
    parsed = parse(command[1:])
    given = parsed.params
    assert (parsed.info_name, given["workers"], given["address"]) == ("launch", "24", address)
    assert (given["model"], given["calib"], given["trials"]) == ("m.onnx", "with space/", "256")


def test_the_token_is_fresh_and_on_no_command_line(told: dict[str, object]) -> None:
    token = told["token"]
    assert isinstance(token, str)
    assert len(token) == 48
    assert token not in str(told["words"])
    assert told["mode"] == "token"
    assert token not in SCRIPT
