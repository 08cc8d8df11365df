"""setuptools commands that put the engine's kernels into a wheel, where there is a C compiler.

A wheel that holds kernels is for one platform and any Python 3 (``py3-none-linux_x86_64``); its
engine runs without a compiler. Without a compiler the wheel is pure, as before. pyproject.toml
names the commands; setuptools loads this file alone, so the file imports nothing of the project.
"""

from __future__ import annotations

import os
import platform
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
PACKAGE = "compiler/targets/engine"


class BuildKernels(build_py):
    """``build_py`` that also compiles the kernels of this platform; not in editable installs.

    Packages that an earlier build left in build/lib are removed first: a module that has moved
    since would be installed at both places.
    """

    def run(self) -> None:
        if self.editable_mode:
            super().run()
            return
        for package in {name.partition(".")[0] for name in self.packages or ()}:
            shutil.rmtree(Path(self.build_lib) / package, ignore_errors=True)
        super().run()
        self.built = build_kernels(Path(self.build_lib) / PACKAGE)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        made = [str(path) for path in getattr(self, "built", ())]
        return [*super().get_outputs(include_bytecode), *made]


class PlatformWheel(bdist_wheel):
    """``bdist_wheel`` that names the platform where the wheel holds kernels."""

    def finalize_options(self) -> None:
        if compiler() is not None:
            self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        _, _, platform_tag = super().get_tag()
        return "py3", "none", "any" if self.root_is_pure else platform_tag


def compiler() -> list[str] | None:
    """The command of the C compiler: CC, else cc, gcc or clang; None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in (named, ["cc"], ["gcc"], ["clang"]):
        if command and shutil.which(command[0]):
            return command
    return None


def build_kernels(folder: Path) -> list[Path]:
    """Compile the library of every instruction set of this platform; none without a compiler."""
    command = compiler()
    if command is None:
        return []
    isa = SimpleNamespace(**runpy.run_path(str(HERE / "isa.py"), run_name="qsearch_engine_isa"))
    builds = {}
    folder.mkdir(parents=True, exist_ok=True)
    for name, one in isa.ISAS.items():
        if one.machines and platform.machine() not in one.machines:
            continue
        target = folder / isa.library_name(name)
        sources = [str(path) for path in isa.SOURCES if path.suffix == ".c"]
        flags = [*isa.build_flags(name), "-shared", "-fPIC"]
        builds[name, target] = subprocess.Popen(
            [*command, *flags, *sources, "-lm", "-o", str(target)]
        )
    built = []
    for (name, target), build in builds.items():
        if build.wait() == 0:
            built.append(target)
        else:
            print(f"no kernels for {name}: they are built when first used", file=sys.stderr)
    return built
