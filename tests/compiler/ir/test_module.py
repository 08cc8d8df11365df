"""IRModule: a persistent map from names to functions."""

from __future__ import annotations

from typing import Any

import pytest

from compiler import relay, transform
from compiler.errors import CompilerError
from compiler.ir.expr import Call, Expr, Function, GlobalVar
from compiler.ir.inference.infer_type import infer_module
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


def test_a_view_is_made_once_for_each_version_of_a_module() -> None:
    mod = IRModule({"a": identity()})
    first = mod.view(list)
    assert mod.view(list) is first
    assert len(mod.with_function("b", identity()).view(list)) == 2
    mod.add("c", identity())
    assert [gv.name_hint for gv in mod.view(list)] == ["a", "c"]


def test_updated_keeps_the_attributes() -> None:
    mod = IRModule({"a": identity()}, attrs={"seed": 3})
    assert dict(mod.updated({GlobalVar("b"): identity()}).attrs) == {"seed": 3}


def test_a_name_is_defined_once() -> None:
    with pytest.raises(CompilerError, match="two definitions of @a"):
        IRModule({GlobalVar("a"): identity(), GlobalVar("a"): identity()})


def many(count: int) -> IRModule:
    """@main calls ``count`` functions, in each of which there is something to fold."""
    functions: dict[GlobalVar, Function] = {}
    x = relay.var("x", (2,))
    result: Expr = x
    for number in range(count):
        y = relay.var("y", (2,))
        one = relay.const(float(number))
        name = GlobalVar(f"f{number}")
        functions[name] = Function((y,), relay.op.exp(relay.op.add(y, relay.op.add(one, one))))
        result = Call(name, (result,))
    return infer_module(IRModule({**functions, GlobalVar("main"): Function((x,), result)}))


@pytest.mark.parametrize(
    "rewrite", [transform.FoldConstant(), transform.PlanDevices(), transform.LowerTE()], ids=str
)
def test_a_pass_copies_a_module_as_often_for_many_functions_as_for_few(
    rewrite: transform.Pass, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[str] = []
    for method in ("updated", "with_functions", "without"):
        original = getattr(IRModule, method)

        def counted(*args: Any, original: Any = original, method: str = method) -> IRModule:
            copies.append(method)
            made: IRModule = original(*args)
            return made

        monkeypatch.setattr(IRModule, method, counted)
    found = []
    for count in (2, 20):
        mod = many(count)
        copies.clear()
        rewrite(mod)
        found.append(list(copies))
    assert found[0] == found[1]
    assert found[0]
