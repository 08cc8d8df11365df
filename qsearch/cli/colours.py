"""IR text in colour, for people at a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.highlighter import RegexHighlighter
from rich.text import Text
from rich.theme import Theme

# Line by line: a model's text has megabytes, and its longest lines hold weights nobody reads.
_LONGEST_LINE = 4000

THEME = Theme(
    {
        "relay.comment": "dim",
        "relay.keyword": "bold magenta",
        "relay.global": "bold blue",
        "relay.local": "cyan",
        "relay.quantized": "bold yellow",
        "relay.type": "green",
        "relay.string": "yellow",
        "relay.operator": "bold",
    }
)


class RelayHighlighter(RegexHighlighter):
    """Colours by kind of word; integer dtypes of 8 bits stand out as quantized regions do."""

    base_style = "relay."
    highlights = [  # noqa: RUF012 - rich declares the attribute so
        r"(?P<operator>\b[a-z_][\w.]*)(?=\()",
        r"(?P<keyword>\b(?:def|fn|let|if|else|match|type|free_var|ref|ref_read|ref_write|meta)\b)",
        r"(?P<global>@[\w.\"]+)",
        r"(?P<local>%(?:\"[^\"]*\"|[\w./]+))",
        r"(?P<type>\bTensor\[[^\]]*\])",
        r"(?P<quantized>\bu?int[48]\b)",
        r"(?P<string>\"[^\"]*\")",
        r"(?P<comment>/\*.*?\*/|//.*|#\[.*?\])",
    ]


def print_coloured(text: str, console: Console | None = None) -> None:
    """Print IR text; what is inside it is never taken for markup of the terminal."""
    console = console or Console(theme=THEME, highlight=False)
    highlight = RelayHighlighter()
    for line in text.splitlines():
        shown = Text(line, no_wrap=True, overflow="ignore")
        if len(line) <= _LONGEST_LINE:
            highlight.highlight(shown)
        console.print(shown, soft_wrap=True, crop=False)
