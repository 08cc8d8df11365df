"""Target: what a function is lowered for; a registered kind with options, written as one line.

``str(target)`` is the canonical text, such as ``c -threads=2``: the kind, then options by name.
Virtual devices and lowered functions hold this text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.errors import CompilerError
from compiler.named_table import NamedTable


@dataclass(frozen=True, slots=True)
class TargetKind:
    """A way to run kernels.

    Args:
        options: names of the options a target of this kind takes, with what each one means.
        missing_dtypes: dtypes that kernels of this kind cannot hold.
    """

    options: Mapping[str, str] = field(default_factory=dict)
    missing_dtypes: frozenset[str] = frozenset()


target_kinds: NamedTable[TargetKind] = NamedTable("target")

# Kernels evaluated with numpy: slow, obvious, the oracle.
target_kinds.register("reference")(TargetKind())
# Generated C99, compiled by the system's compiler.
target_kinds.register("c")(TargetKind(missing_dtypes=frozenset({"float16"})))
# Functions of an external code generator that names no target of its own.
target_kinds.register("ext_dev")(TargetKind())


@dataclass(frozen=True, slots=True)
class Target:
    """A kind with options; equal by canonical text.

    Args:
        kind: a registered name.
        options: option name → value, as text.
        host: where the code around the kernels runs; None for the same target.

    Raises:
        CompilerError: unknown kind or option; the legal ones are listed.
    """

    kind: str
    options: tuple[tuple[str, str], ...] = ()
    host: Target | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        legal = target_kinds.require(self.kind).options
        names = [name for name, _ in self.options]
        for name in names:
            if name not in legal:
                raise CompilerError(
                    f"target {self.kind!r} has no option {name!r}",
                    fix=f"legal: {', '.join(sorted(legal)) or 'it takes none'}",
                )
        if len(set(names)) != len(names):
            raise CompilerError(f"target {self.kind!r}: an option is given twice")
        object.__setattr__(self, "options", tuple(sorted(self.options)))

    @staticmethod
    def from_text(text: str) -> Target:
        """Parse ``kind -name=value …``.

        Raises:
            CompilerError: not of this form, or unknown words.
        """
        words = text.split()
        if not words:
            raise CompilerError("a target needs a kind", fix="for example: c, or c -threads=2")
        options: list[tuple[str, str]] = []
        for word in words[1:]:
            name, equals, value = word.removeprefix("-").partition("=")
            if not word.startswith("-") or not equals or not name:
                raise CompilerError(
                    f"target {text!r}: {word!r} is no option", fix="write options as -name=value"
                )
            options.append((name, value))
        return Target(words[0], tuple(options))

    def __str__(self) -> str:
        return " ".join([self.kind, *(f"-{name}={value}" for name, value in self.options)])
