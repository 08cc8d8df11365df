from __future__ import annotations

import subprocess
import sys

import pytest

from compiler.errors import CalibrationError, CompilerError
from compiler.named_table import NamedTable


@pytest.fixture
def table() -> NamedTable[int]:
    table: NamedTable[int] = NamedTable("colour", CalibrationError)
    table.register("red")(1)
    table.register("green")(2)
    return table


def test_entries_are_found_by_name(table: NamedTable[int]) -> None:
    assert table.require("green") == 2
    assert list(table.names()) == ["green", "red"]
    assert "red" in table
    assert "blue" not in table


def test_an_unknown_name_lists_the_nearest_first(table: NamedTable[int]) -> None:
    with pytest.raises(CalibrationError, match="unknown colour 'greeen'") as caught:
        table.require("greeen")
    assert caught.value.fix == "did you mean 'green'? legal: green, red"


def test_a_name_is_taken_once(table: NamedTable[int]) -> None:
    with pytest.raises(CompilerError, match="colour 'red' is registered twice"):
        table.register("red")(3)


def test_a_table_that_a_package_fills_is_full_when_it_is_first_asked() -> None:
    code = "from compiler.lir.routines import intrinsics; print('exp' in intrinsics)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
