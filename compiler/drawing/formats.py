"""draw: a module as a file of one of the formats."""

from __future__ import annotations

from collections.abc import Callable

from compiler.drawing.dot import dot_text
from compiler.drawing.picture import Picture, picture_of
from compiler.drawing.svg import svg_text
from compiler.errors import CompilerError, legal_names
from compiler.ir.module import IRModule

_WRITERS: dict[str, Callable[[Picture], str]] = {
    "dot": dot_text,
    "svg": svg_text,
}

FORMATS = tuple(_WRITERS)


def draw(mod: IRModule, format: str = "svg") -> str:
    """The drawing of a module as the text of one self-contained file.

    Args:
        mod: any module; edges show types where InferType has run.
        format: "dot" (for Graphviz) or "svg".
    Raises:
        CompilerError: an unknown format.
    """
    writer = _WRITERS.get(format)
    if writer is None:
        raise CompilerError(
            f"there is no drawing format {format!r}", fix=legal_names(format, FORMATS)
        )
    return writer(picture_of(mod))
