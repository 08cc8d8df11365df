"""Another machine that builds and runs C, over ssh: a board that a module is for.

One command does all of it: what it needs comes in by stdin, as a tar archive, and what the program
says goes out by stdout. The folder that it works in is gone afterwards. Nothing but a POSIX shell,
tar and a C compiler is needed there; keys and hosts are those of the user's ssh.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from compiler.errors import CodegenError
from compiler.targets.c.toolchain import EXACT_FLAGS

SSH_VARIABLE: Final = "QSEARCH_SSH"
"""Environment variable with the words of another ssh, such as ``ssh -F my_config``."""
_NATIVE: Final = "-march=native"
_URL: Final = re.compile(r"ssh://(?:([\w.-]+)@)?([A-Za-z0-9][\w.-]*)(?::(\d{1,5}))?/?", re.ASCII)
_CONNECT_S: Final = 15
_TIMEOUT_S: Final = 900.0
_ABOUT: Final = "uname -sm; cc --version | head -n 1; grep -m 1 -i 'model' /proc/cpuinfo; true"
_NO_COMPILER: Final = 127
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Board:
    """Address of a board.

    Attributes:
        host: as ssh takes it, with the user where one is named.
        port: None is that of the user's configuration.
    """

    host: str
    port: int | None = None

    @classmethod
    def of(cls, url: str) -> Self:
        """The board of ``ssh://user@host:port``.

        Raises:
            CodegenError: the text is none.
        """
        found = _URL.fullmatch(url)
        if found is None or int(found[3] or 1) not in range(1, 1 << 16):
            raise CodegenError(
                f"{url!r} names no board",
                where="--measure",
                fix="write ssh://host, ssh://user@host or ssh://user@host:2222",
            )
        user, host, port = found.groups()
        return cls(f"{user}@{host}" if user else host, int(port) if port else None)

    def about(self) -> tuple[str, ...]:
        """System, compiler and processor, a line each.

        Raises:
            CodegenError: it cannot be reached, or has no compiler.
        """
        lines = self._answer(f"command -v cc >/dev/null || exit {_NO_COMPILER}; {_ABOUT}", b"")
        return tuple(lines.decode(errors="replace").split("\n"))

    def run(self, sources: Mapping[str, str], given: bytes) -> bytes:
        """Build a program, run it, and give what it writes to stdout.

        Args:
            sources: texts of its .c and .h files by name.
            given: what it reads from stdin.
        Raises:
            CodegenError: the board cannot be reached, or the program cannot be built or run.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            texts = {name: text.encode() for name, text in sources.items()}
            for name, data in {**texts, "given": given}.items():
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
        files = shlex.join(name for name in sources if name.endswith(".c"))
        plain = [flag for flag in EXACT_FLAGS if flag != _NATIVE]
        build = f"cc -std=c99 {shlex.join(plain)} {{}} -o program {files} -lm"
        command = (
            'd=$(mktemp -d) && trap \'rm -rf "$d"\' EXIT && cd "$d" && tar -xf - && '
            # Old compilers of some processors have no native.
            f"{{ {build.format(_NATIVE)} 2>/dev/null || {build.format('')}; }} >&2 && "
            "./program <given"
        )
        return self._answer(command, packed.getvalue())

    def _answer(self, command: str, given: bytes) -> bytes:
        words = shlex.split(os.environ.get(SSH_VARIABLE, "ssh"))
        words += ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_S}", "-T"]
        words += [] if self.port is None else ["-p", str(self.port)]
        try:
            done = subprocess.run(
                [*words, "--", self.host, command],
                input=given,
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CodegenError(
                f"the board does not answer: {error}",
                where=str(self),
                fix=f"try `ssh {self.host}` by hand; it must ask for nothing",
            ) from error
        if done.returncode == 0:
            return done.stdout
        said = done.stderr.decode(errors="replace").strip().splitlines()[:_SHOWN]
        raise CodegenError(
            f"the board ended with {done.returncode}: {' | '.join(said) or 'it said nothing'}",
            where=str(self),
            fix="install a C compiler there"
            if done.returncode == _NO_COMPILER
            else f"try `ssh {self.host} cc --version` by hand; it must ask for nothing",
        )

    def __str__(self) -> str:
        return f"ssh://{self.host}" + ("" if self.port is None else f":{self.port}")
