"""Which model: a file, or one of those shipped inside the package with their data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from compiler.errors import nearest
from qsearch.errors import ModelFileError
from workers.datasets.contents import Contents
from workers.errors import DatasetError

SHIPPED: Final = {"digits": ("digits_cnn.onnx", "digits_calib.npz", "digits_dev.npz")}
"""Name → model, calibration and evaluation file in ``qsearch/models``."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk.

    Attributes:
        name: what reports call it.
        path: the ONNX file.
        contents: of the file, read once.
        calib, eval: data that comes with it; None for a user's file.
    """

    name: str
    path: Path
    contents: Contents
    calib: Path | None = None
    eval: Path | None = None

    @property
    def sha256(self) -> str:
        """Of the file as it was found."""
        return self.contents.sha256

    def check_unchanged(self) -> None:
        """Refuse a file that does not hold what was found.

        Raises:
            ModelFileError: it was replaced or deleted.
        """
        if not self.contents.is_unchanged(self.path):
            happened = "was changed" if self.path.exists() else "was deleted or moved"
            raise ModelFileError(
                f"the model {self.path.name} {happened} while it was in use",
                where=f"{self.path}, sha256 {self.sha256[:12]} before",
                fix="put the earlier file back and run the same command again: finished trials "
                "are kept. For another model give another folder with -o, or --fresh",
            )

    @property
    def stem(self) -> str:
        """Name for a run folder."""
        return Path(self.name).stem


def find_model(model: str | os.PathLike[str]) -> ModelSource:
    """The model that ``--model`` names; a file goes before a shipped model of the same name.

    Raises:
        ModelFileError: there is no such file and no such shipped model.
    """
    text = os.fspath(model)
    path = Path(text)
    if path.is_file():
        return ModelSource(text, path, _contents(path))
    if text in SHIPPED:
        folder = resources.files("qsearch.models")
        onnx, calib, evaluation = (Path(str(folder / name)) for name in SHIPPED[text])
        return ModelSource(text, onnx, _contents(onnx), calib, evaluation)
    if path.is_dir():
        raise ModelFileError(
            f"{text} is a folder", where=str(path.absolute()), fix="give the path of a .onnx file"
        )
    raise ModelFileError(
        f"there is no model {text!r}", where=str(path.absolute()), fix=_suggestion(path)
    )


def _suggestion(path: Path) -> str:
    shipped = f"shipped models: {', '.join(sorted(SHIPPED))}"
    try:
        beside = [p.name for p in path.parent.iterdir() if p.suffix == ".onnx"]
    except OSError:
        return f"the folder {path.parent} does not exist; {shipped}"
    close = nearest(path.name, [*beside, *SHIPPED])
    hint = f"did you mean {close[0]!r}? " if close else "give the path of a .onnx file; "
    return hint + shipped


def _contents(path: Path) -> Contents:
    try:
        return Contents(path)
    except DatasetError as error:
        raise ModelFileError(
            f"the model cannot be read: {error.what}",
            where=str(path),
            fix="check its permissions",
        ) from error
