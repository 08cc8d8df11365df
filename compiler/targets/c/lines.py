"""C text that grows line by line, indented by the braces that are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager


class Lines:
    """Lines of a function body; calling it adds one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._depth = 1

    def __call__(self, line: str) -> None:
        self.lines.append("    " * self._depth + line)

    def loop(
        self, name: str, first: str, behind: object, step: object = 1
    ) -> AbstractContextManager[None]:
        """A loop of int32_t around what is written meanwhile."""
        forward = f"++{name}" if step == 1 else f"{name} += {step}"
        return self.block(f"for (int32_t {name} = {first}; {name} < {behind}; {forward})")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """``head {`` … ``}`` around what is written meanwhile; a bare scope without a head."""
        self(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self("}")
