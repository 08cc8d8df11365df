"""Kernels of the engine that the wheel of this environment holds serve the tests of this tree."""

from __future__ import annotations

import filecmp
import os
import shutil
import sysconfig
from pathlib import Path

from compiler.targets.c.toolchain import find_compiler, library_path
from compiler.targets.engine import isa
from compiler.targets.engine.library import build_of


def take_installed_kernels() -> None:
    """Put them where the tree looks for them, if they are built from the same sources.

    The tree has sources only, and compiling them takes 8 s of CPU for each instruction set.
    """
    packages = Path(sysconfig.get_path("purelib"))
    installed = packages.joinpath(*isa.__package__.split("."))
    names = [source.name for source in (*isa.SOURCES, Path(isa.__file__))]
    same, _, _ = filecmp.cmpfiles(isa.HERE, installed, names, shallow=False)
    if find_compiler() is None or same != names:
        return
    for name in isa.ISAS:
        built = installed / isa.library_name(name)
        wanted = library_path(*build_of(name))
        if built.exists() and not wanted.exists():
            copy = wanted.with_suffix(f".{os.getpid()}")  # a library appears whole or not at all
            shutil.copyfile(built, copy)
            copy.replace(wanted)
