"""Text to the file that ``--out`` names."""

from __future__ import annotations

from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text.

    Raises:
        SettingsError: the file cannot be written.
    """
    from qsearch.errors import SettingsError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"{path} cannot be written: {error.strerror}", where="--out", fix="choose another path"
        ) from error
