"""The wheel, installed elsewhere: all it needs is declared, all it ships is inside."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from compiler.targets.engine.isa import ISAS, library_name

ROOT = Path(__file__).resolve().parents[2]
GONE = "gone.py"
"""A module that an earlier ``pip install .`` left in build/ and that the source has no more."""
KERNELS = [n for n, i in ISAS.items() if not i.machines or platform.machine() in i.machines]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    # Without PYTHONPYCACHEPREFIX the bytecode beside a linked file serves.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**clean, **environment},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    # A copy of what git tracks: building in the tree would leave build/ behind.
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True
    ).stdout.split(b"\0")
    for name in filter(None, tracked):
        path = ROOT / os.fsdecode(name)
        if path.is_file():
            copy = source / os.fsdecode(name)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    lib = f"lib.{sysconfig.get_platform()}-{sys.implementation.cache_tag}"
    earlier = source / "build" / lib / "qsearch" / GONE
    earlier.parent.mkdir(parents=True)
    earlier.write_text("")
    return source


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its kernels give no warning, and are compiled to be right, not fast."""
    out = tmp_path_factory.mktemp("wheel")
    compiler = out / "cc"
    compiler.write_text(f'#!/bin/sh\ncc "$@" -O1 -Wall -Wextra 2>> {out}/warnings\n')
    compiler.chmod(0o755)
    command = (sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", out, source)
    done = run(*command, cwd=out, CC=str(compiler))
    assert done.returncode == 0, done.stderr
    assert (out / "warnings").read_text() == ""
    return next(out.glob("qsearch-*.whl"))


CHOSEN = """
import sys
import numpy as np
import qsearch
from compiler.runtime.artifact import load_qmod
from compiler.targets.engine.library import is_available
module = load_qmod(sys.argv[1])
with np.load(sys.argv[2]) as file:
    inputs = {"input": np.asarray(file["input"], np.float32)[:4]}
wanted = module.run(inputs, executor="reference")[0]
name = "engine" if is_available() else "auto"
assert (module.run(inputs, executor=name)[0] == wanted).all()
print(name)
"""


@pytest.mark.slow
def test_wheel_ships_models_and_kernels(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "qsearch/models/digits_cnn.onnx",
        "qsearch/models/digits_calib.npz",
        "qsearch/models/digits_dev.npz",
        "qsearch/models/NOTICE",
        *(
            f"qsearch/report/web/{name}"
            for name in ("plots.css", "style.css", "charts.js", "vendor/d3.js", "vendor/NOTICE")
        ),
        *(
            f"qsearch/dashboard/static/{name}"
            for name in ("index.html", "favicon.svg", "js/app.js", "js/pages/study.js")
        ),
        *(f"compiler/fusion/hardware/descriptions/{name}.toml" for name in ("npu", "opu", "opu_q")),
        *(f"compiler/targets/engine/{library_name(name)}" for name in KERNELS),
        "compiler/py.typed",
    ):
        assert wanted in names
    tracked_c = {p.relative_to(ROOT).as_posix() for p in (ROOT / "compiler").rglob("*.c")}
    assert tracked_c <= names
    static = ROOT / "qsearch" / "dashboard" / "static"
    files = [path for path in static.rglob("*") if path.is_file()]
    assert {path.relative_to(ROOT).as_posix() for path in files} <= names
    assert not any(name.startswith("tests/") for name in names)
    assert f"qsearch/{GONE}" not in names


def link_dependencies(package: str, packages: Path) -> None:
    """What a package asks for, and what that asks for, from this environment into another one."""
    wanted, known = [Requirement(package)], {(package, "")}
    while wanted:
        requirement = wanted.pop()
        distribution = metadata.distribution(requirement.name)
        for text in distribution.requires or ():
            found = Requirement(text)
            extras = {"", *requirement.extras}
            if found.marker and not any(found.marker.evaluate({"extra": e}) for e in extras):
                continue
            keys = {(canonicalize_name(found.name), extra) for extra in ("", *found.extras)}
            wanted += [found] if keys - known else []
            known |= keys
        if requirement.name == package:
            continue
        for file in distribution.files or ():
            link = packages / file
            if ".." not in file.parts and not link.exists():
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to(Path(str(distribution.locate_file(file))))


@pytest.mark.slow
def test_main_job_runs_in_an_empty_environment(wheel: Path, source: Path, tmp_path: Path) -> None:
    """Every runtime import is a declared dependency: nothing but the wheel and what it asks for."""
    home = tmp_path / "venv"
    venv.create(home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    installed = run(*pip, "install", "-q", "--no-compile", "--no-deps", wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    (packages,) = home.glob("lib/python*/site-packages")
    link_dependencies("qsearch", packages)
    result = run(
        home / "bin" / "qsearch",
        "launch",
        *("--model", "digits", "--trials", "2", "--pool", "process", "--workers", "1"),
        *("-o", "run", "--json"),
        cwd=tmp_path,
    )
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout.splitlines()[-1])
    assert sum(summary["trials"][k] for k in ("complete", "pruned", "failed", "infeasible")) == 2
    assert (tmp_path / "run" / "best.qmod").is_file()
    again = run(
        home / "bin" / "qsearch",
        *("run", "run/best.qmod", "--eval", ROOT / "qsearch/models/digits_dev.npz", "--json"),
        cwd=tmp_path,
    )
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout.splitlines()[-1])["top1"] == summary["emitted"]["top1"]
    assert "No broken requirements" in run(*pip, "check", cwd=tmp_path).stdout

    # Nothing on the path: the kernels of a platform wheel are used, a pure wheel does without.
    asked = (python, "-c", CHOSEN, "run/best.qmod", ROOT / "qsearch/models/digits_dev.npz")
    bare = {"PATH": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = run(*asked, cwd=tmp_path, **bare)
    assert (done.returncode, done.stdout.strip()) == (0, "engine"), done.stderr
    assert "-py3-none-linux_" in wheel.name

    tools = tmp_path / "tools"
    tools.mkdir()
    again = ("--no-compile", "--no-deps", "--force-reinstall", source)
    replaced = run(*pip, "install", "-q", *again, cwd=tmp_path, PATH=str(tools), CC="")
    assert replaced.returncode == 0, replaced.stderr
    (tags,) = packages.glob("qsearch-*.dist-info/WHEEL")
    assert "Tag: py3-none-any\n" in tags.read_text()
    done = run(*asked, cwd=tmp_path, **bare)
    assert (done.returncode, done.stdout.strip()) == (0, "auto"), done.stderr


def test_a_foreign_package_named_compiler_is_reported(tmp_path: Path) -> None:
    """The names are common: another `compiler` earlier on the path must not be used in silence."""
    (tmp_path / "compiler").mkdir()
    (tmp_path / "compiler" / "__init__.py").write_text("")
    done = run(
        sys.executable,
        *("-m", "qsearch", "launch", "--model", "digits", "--dry-run"),
        cwd=tmp_path,
        PYTHONPATH=f"{tmp_path}{os.pathsep}{ROOT}",
    )
    assert done.returncode == 2
    assert "compiler" in done.stderr
    assert str(tmp_path) in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr
