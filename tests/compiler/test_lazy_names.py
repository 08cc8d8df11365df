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


def test_a_package_loads_no_module_before_its_name_is_used() -> None:
    told = "import compiler, qsearch, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
