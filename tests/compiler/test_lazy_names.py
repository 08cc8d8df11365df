from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

PACKAGES = ("compiler", "compiler.quantize", "qsearch")


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_can_be_loaded(name: str) -> None:
    package = importlib.import_module(name)
    assert package.__all__
    assert all(getattr(package, public) is not None for public in package.__all__)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_name_that_is_not_public_is_no_attribute(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        importlib.import_module(name).nonsense  # noqa: B018


@pytest.mark.parametrize(
    ("code", "module"),
    [
        ("import compiler, qsearch", "numpy"),
        ("import qsearch.commands.studies", "compiler.ops"),
        ("import qsearch.dashboard.app", "sklearn"),
    ],
    ids=["packages before their names are used", "lists of studies", "the dashboard"],
)
def test_what_does_not_need_it_does_not_load_a_module(code: str, module: str) -> None:
    told = f"{code}, sys; print({module!r} in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
