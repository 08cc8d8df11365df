"""The README of a package as tests read it: fenced blocks, and examples that are run."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

_DOCTESTS = """
import doctest, sys
found = doctest.testfile(sys.argv[1], module_relative=False)
print(found.attempted)
sys.exit(found.failed != 0)
"""


class PackageReadme:
    """README.md beside a package's ``__init__.py``.

    Code runs in a process of its own: what an example registers must not leak into other tests.
    """

    def __init__(self, package: ModuleType) -> None:
        self.folder = Path(package.__path__[0])
        self.path = self.folder / "README.md"
        self.text = self.path.read_text("utf-8")

    def block(self, language: str, start: str = "") -> str:
        """The first fenced block of a language ("" for none) that begins with ``start``."""
        pattern = rf"^ *```{language}\n( *{re.escape(start)}.*?)^ *```$"
        found = re.search(pattern, self.text, re.DOTALL | re.MULTILINE)
        assert found is not None, f"{self.path} has no such ```{language} block"
        return textwrap.dedent(found[1])

    def run(self, code: str, *arguments: str, cwd: Path | None = None) -> str:
        """What a Python program prints; it must end without an error."""
        command = [sys.executable, "-c", code, *arguments]
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run_examples(self) -> int:
        """Run the ``>>>`` examples; all must print what stands below them. Returns their number."""
        return int(self.run(_DOCTESTS, str(self.path)).splitlines()[-1])

    def unnamed_files(self) -> list[str]:
        """Modules of the package that the README does not name."""
        names = (path.name for path in sorted(self.folder.glob("*.py")))
        return [name for name in names if name != "__init__.py" and f"`{name}`" not in self.text]
