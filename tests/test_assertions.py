"""Every test asserts something: none only in a loop that may be empty or behind a condition."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).parent
_SURE = ("range", "each", "enumerate", "zip", "product", "count")
"""Calls around what a loop reads; of several arguments each must hold something."""


def asserts(node: ast.AST) -> bool:
    """Tell an assertion: a statement, or a call of a helper that is named like one."""
    if isinstance(node, ast.Assert):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return "assert" in name or name.endswith(("raises", "warns", "fail", "agree", "check"))


def holds_something(node: ast.expr) -> bool:
    """Tell what a loop runs over at least once: literals, ``each``, and what wraps them."""
    if isinstance(node, (ast.Tuple, ast.List, ast.Set, ast.Dict)):
        return True
    if isinstance(node, ast.Constant):
        return bool(node.value)
    if isinstance(node, ast.Name):
        return node.id.isupper()  # a table of the module
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func).rpartition(".")[2]
        if name == "each":
            return True
        if name in ("items", "values", "keys"):
            assert isinstance(node.func, ast.Attribute)
            return holds_something(node.func.value)
        return name in _SURE and all(map(holds_something, node.args))
    return False


def sure(nodes: list[ast.stmt]) -> Iterator[ast.AST]:
    """Assertions that run whenever the statements do."""
    for node in nodes:
        if isinstance(node, (ast.For, ast.AsyncFor)):
            yield from sure([*node.orelse, *(node.body if holds_something(node.iter) else [])])
            heads: list[ast.AST] = [node.iter]
        elif isinstance(node, ast.While):
            yield from sure(node.body if holds_something(node.test) else [])
            heads = [node.test]
        elif isinstance(node, ast.If):
            both = [list(sure(branch)) for branch in (node.body, node.orelse)]
            yield from both[0] if all(both) else []
            heads = [node.test]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            yield from sure(node.body)
            heads = list(node.items)
        elif isinstance(node, ast.Try):
            yield from sure([*node.body, *node.finalbody])
            continue
        elif isinstance(node, ast.Match):
            continue
        else:
            heads = [node]
        yield from (found for head in heads for found in ast.walk(head) if asserts(found))


def unsure_tests(tree: ast.AST) -> list[str]:
    """Names of tests whose assertions all stand in loops or branches that may not run."""
    tests = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name.startswith("test")
    ]
    return [t.name for t in tests if any(map(asserts, ast.walk(t))) and not any(sure(t.body))]


def test_no_test_passes_because_a_loop_is_empty_or_a_branch_is_not_taken() -> None:
    listed = {str(path.relative_to(HERE)): path for path in HERE.rglob("test_*.py")}
    unsure = {name: unsure_tests(ast.parse(path.read_text())) for name, path in listed.items()}
    assert {name: tests for name, tests in unsure.items() if tests} == {}


def test_a_loop_over_what_may_be_empty_is_seen() -> None:
    hidden = "def test_a():\n    for x in f():\n        assert x\n"
    assert unsure_tests(ast.parse(hidden)) == ["test_a"]
    assert unsure_tests(ast.parse(hidden.replace("f()", "each(f())"))) == []
    assert unsure_tests(ast.parse("def test_b():\n    if f():\n        assert g()\n")) == ["test_b"]
