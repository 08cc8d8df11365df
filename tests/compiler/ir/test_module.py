"""IRModule: a persistent map from names to functions."""

from __future__ import annotations

import pytest

from compiler import relay
from compiler.errors import CompilerError
from compiler.ir.expr import Function, GlobalVar
from compiler.ir.module import IRModule


def identity() -> Function:
    x = relay.var("x", (2,))
    return Function((x,), x)


def test_updated_redefines_some_names_adds_others_and_keeps_the_rest() -> None:
    old, kept, new = identity(), identity(), identity()
    before = IRModule({"a": old, "b": kept})
    after = before.updated({GlobalVar("a"): new, GlobalVar("c"): new})
    assert [gv.name_hint for gv in after] == ["a", "b", "c"]
    assert (after["a"], after["b"], after["c"]) == (new, kept, new)
    assert (before["a"], len(before)) == (old, 2)


def test_a_name_keeps_its_one_global_variable() -> None:
    mod = IRModule({"a": identity()})
    name = mod.get_global_var("a")
    assert mod.updated({GlobalVar("a"): identity()}).get_global_var("a") is name
    assert mod.with_function("a", identity()).get_global_var("a") is name


def test_updated_keeps_the_attributes() -> None:
    mod = IRModule({"a": identity()}, attrs={"seed": 3})
    assert dict(mod.updated({GlobalVar("b"): identity()}).attrs) == {"seed": 3}


def test_a_name_is_defined_once() -> None:
    with pytest.raises(CompilerError, match="two definitions of @a"):
        IRModule({GlobalVar("a"): identity(), GlobalVar("a"): identity()})
