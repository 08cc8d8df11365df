"""Which model: a file, or one of those shipped inside the package with their data."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from compiler.errors import nearest
from qsearch.errors import ModelFileError

SHIPPED: Final = {"digits": ("digits_cnn.onnx", "digits_calib.npz", "digits_dev.npz")}
"""Name → model, calibration and evaluation file in ``qsearch/models``."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model on disk.

    Attributes:
        name: what reports call it.
        path: the ONNX file.
        sha256: of the file.
        calib, eval: data that comes with it; None for a user's file.
    """

    name: str
    path: Path
    sha256: str
    calib: Path | None = None
    eval: Path | None = None

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
        return ModelSource(text, path, _sha256(path))
    if text in SHIPPED:
        folder = resources.files("qsearch.models")
        onnx, calib, evaluation = (Path(str(folder / name)) for name in SHIPPED[text])
        return ModelSource(text, onnx, _sha256(onnx), calib, evaluation)
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


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
    except OSError as error:
        raise ModelFileError(
            f"the model cannot be read: {error.strerror}",
            where=str(path),
            fix="check its permissions",
        ) from error
    return digest.hexdigest()
