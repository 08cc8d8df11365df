"""The command line: a file per kind of command; each parses, calls one function, and prints."""

from typing import Final

CONTEXT: Final = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": 100,
    "token_normalize_func": lambda name: name.replace("_", "-"),  # --max_drop is --max-drop
}
"""Settings of every command line."""
