"""Every error the compiler raises on purpose: what happened, where, and how to fix it."""

from __future__ import annotations

import contextlib
import copyreg
import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from compiler.span import AnySpan


class CompilerError(Exception):
    """A mistake in the input, told in up to three lines.

    Args:
        what: the problem, with the values that show it.
        where: node, file or field it was found in.
        fix: what the user can do about it.
        span: source of the node, when one is known.
    """

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        fix: str | None = None,
        span: AnySpan | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.fix = fix
        self.span = span

    def __str__(self) -> str:
        lines = [self.what]
        where = self.where
        if self.span is not None:
            where = f"{where}, {self.span}" if where else str(self.span)
        if where:
            lines.append(f"  where: {where}")
        if self.fix:
            lines.append(f"  fix: {self.fix}")
        lines.extend(f"  note: {note}" for note in self.notes)
        return "\n".join(lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes that callers further out added with ``add_note``."""
        return tuple(getattr(self, "__notes__", ()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Without __init__, whose arguments a subclass names as it likes.
        return (copyreg.__newobj__, (type(self), self.what), self.__dict__)  # type: ignore[attr-defined]


class ParseError(CompilerError):
    """Text that is not a module: line, column, the source line and a caret are in the message."""


class TypeInferenceError(CompilerError):
    """An operator, call or binding whose types do not fit."""


class TypeNotInferredError(CompilerError):
    """``checked_type`` was read before InferType ran."""


class AttrError(CompilerError):
    """Unknown or ill-typed operator attribute."""


class UnknownOpError(CompilerError):
    """No operator of this name is registered."""


class BindError(CompilerError):
    """A substitution that would capture or duplicate a variable."""


class MutatorError(CompilerError):
    """A mutator returned a node of a kind that cannot stand there."""


class RewriteLoopError(CompilerError):
    """A rewrite did not come to rest."""


class DeepGraphError(CompilerError):
    """A recursive visitor met a graph deeper than the interpreter's stack."""


class DynamicShapeError(CompilerError):
    """A pass that needs static shapes met an unknown dimension."""


class DataflowError(CompilerError):
    """A function that is no list of operator calls: branches, loops, closures, unknown sizes."""


class WellFormedError(CompilerError):
    """A module that breaks an invariant of the IR."""


class EvaluationError(CompilerError):
    """The reference evaluator cannot go on (missing input, no matching clause, …)."""


class PassError(CompilerError):
    """A pass failed; the cause is chained."""

    def __init__(
        self,
        what: str,
        *,
        pass_name: str = "",
        function_name: str = "",
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.pass_name = pass_name
        self.function_name = function_name


class HDFGError(CompilerError):
    """A hardware description that names something unknown or contradicts itself.

    Args:
        key: path of the wrong value in the description, such as ("stages", 3, "name"), which a
            reader of files turns into a line.
    """

    def __init__(
        self,
        what: str,
        *,
        key: tuple[str | int, ...] = (),
        where: str | None = None,
        fix: str | None = None,
    ) -> None:
        super().__init__(what, where=where, fix=fix)
        self.key = key


class LoweringError(CompilerError):
    """A function that cannot be lowered."""


class CodegenError(CompilerError):
    """A code generator that cannot take a function."""


class PlanError(CodegenError):
    """A function that the engine has no plan for; another executor runs it, slower."""


class OnnxImportError(CompilerError):
    """A file or graph that cannot be imported.

    Attributes:
        nodes: the nodes that stand against it, where it is about nodes.
        declined: those among them whose operator is supported, and why not with these operands.
    """

    nodes: tuple[str, ...] = ()
    declined: Mapping[str, str] = MappingProxyType({})


class OnnxExportError(CompilerError):
    """A module that has no ONNX form."""


class TooLargeError(OnnxExportError):
    """A module whose ONNX form would be larger than an ONNX file can be."""


class TfliteExportError(CompilerError):
    """A module that has no LiteRT file with the same integers, or what writes one is missing."""


class ArtifactError(CompilerError):
    """A .qmod file that is damaged, foreign or of another version."""


class ArtifactHashError(ArtifactError):
    """A .qmod file whose members do not match its manifest."""


class QuantizeError(CompilerError):
    """Base of what the quantization flow raises."""


class CalibrationError(QuantizeError, ValueError):
    """Statistics that cannot give a scale: empty, not finite, or not collected."""


class InternalQuantizeError(QuantizeError):
    """A combination the quantization rules promise never to meet."""


class NotFullyIntegralError(QuantizeError, AssertionError):
    """``fully_integral`` was asked for and a float operator is left."""


_ALIKE = 0.6
"""Likeness, as difflib measures it, from which a word may be a slip of another."""
_BEGUN = 0.5
"""Likeness from which a word may be the beginning of another."""


def nearest(word: str, legal: Iterable[str], count: int = 3) -> list[str]:
    """Legal words that look like ``word`` in any case, best first; none where all are far off."""
    words = {legal_word.lower(): legal_word for legal_word in legal}
    given = word.lower()
    begun = [name for name in words if name.startswith(given)]
    close = difflib.get_close_matches(given, list(words), n=count, cutoff=_ALIKE)
    close = close or difflib.get_close_matches(given, begun, n=count, cutoff=_BEGUN)
    return [words[found] for found in close]


def legal_names(word: str, legal: Iterable[str], also: Iterable[str] = ()) -> str:
    """Text for a ``fix`` line: the nearest legal name first, then the rest.

    Args:
        also: further names that are taken, and listed only where they are the nearest.
    """
    words = sorted(legal)
    close = nearest(word, [*words, *also])
    listed = [w for w in close if w in words]
    rest = [w for w in words if w not in close]
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}legal: {', '.join(listed + rest)}"


def check_known(
    name: object,
    legal: Collection[str],
    what: str,
    error: type[CompilerError] = CompilerError,
    where: str | None = None,
) -> None:
    """Raise ``error(what)`` where the name is not legal; the fix lists those that are."""
    if name not in legal:
        raise error(what, where=where, fix=legal_names(str(name), legal))


@contextlib.contextmanager
def raised_as(
    kind: type[CompilerError],
    what: str,
    *errors: type[Exception],
    where: str | None = None,
    fix: str | None = None,
) -> Iterator[None]:
    """Raise ``errors`` of the block as one error of ours: ``what``, and why."""
    try:
        yield
    except errors as error:
        raise kind(f"{what}: {error}", where=where, fix=fix) from error
