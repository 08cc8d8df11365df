"""Exit codes of every command."""

from typing import Final

EXIT_OK: Final = 0
"""Done; for a search, the emitted module keeps the promised accuracy."""
EXIT_TARGET_MISSED: Final = 1
"""The answer is no: no trial stayed within ``--max-drop``, or none became integers only."""
EXIT_BAD_INPUT: Final = 2
"""Options, files, data, a store or a cluster that cannot be used, or no longer; the error says how
to go on, and finished trials are kept."""
EXIT_SEARCH_FAILED: Final = 3
"""The search ran but has nothing to hand over, or broke in a way we did not foresee."""
EXIT_INTERRUPTED: Final = 130
"""Ctrl-C; the best so far is written and the same command goes on."""
