"""Docstrings begin with a verb or a noun, as the style of the project asks."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("compiler", "workers", "qsearch")
REFUSED = {
    *("As", "By", "How", "If", "Of", "That", "What", "When", "Where", "Whether", "Which"),
    *("Who", "Whom", "Whose", "Why"),
}


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string that stands as a statement."""
    for node in ast.walk(tree):
        constant = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if constant and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def test_no_docstring_begins_with_a_question_word() -> None:
    files = [path for name in PACKAGES for path in sorted((ROOT / name).rglob("*.py"))]
    assert len(files) > 100
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text.split(maxsplit=1)[0]} …"
        for path in files
        for line, text in docstrings(ast.parse(path.read_text()))
        if text.split(maxsplit=1)[0].rstrip(",:") in REFUSED
    ]
    assert found == []
