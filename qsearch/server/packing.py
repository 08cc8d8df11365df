"""The files of a client: model and data, one file each, to be sent; the module that it fetches."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from qsearch.data.object_data import objects_to_npz
from qsearch.errors import DataError, ModelFileError, RunFolderError, SettingsError, system_errors
from qsearch.opening.model_file import find_model
from qsearch.opening.open_model import DataSource, open_model
from qsearch.run.run_folder import PathLike
from qsearch.server.submission import MAPPINGS, SUBMITTED
from qsearch.settings.config import read_config_file, resolve
from qsearch.settings.launch_settings import CutAt
from workers.datasets.contents import files_below
from workers.datasets.image_folder import IMAGE_SUFFIXES

_STEM: Final = 55


def sent_model(model: PathLike, folder: Path) -> tuple[Path, str]:
    """A file without parts elsewhere, and a name for its study.

    Raises:
        ModelFileError: no model.
    """
    source = find_model(model)
    stem = "".join(c if c.isascii() and (c.isalnum() or c in "_.-") else "_" for c in source.stem)
    stem = stem.lstrip("_.-")[:_STEM] or "model"
    if source.calib is not None:
        return Path(source.name), stem
    import onnx
    from google.protobuf.message import DecodeError

    path = folder / "model.onnx"
    try:
        found = onnx.load_model(str(source.path), load_external_data=False)
        if any(tensor.external_data for tensor in found.graph.initializer):
            whole = onnx.load_model(str(source.path))
            onnx.save_model(whole, str(path), save_as_external_data=False)
            return path, stem
    except (DecodeError, onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ModelFileError(
            f"this is no ONNX model that can be sent: {(str(error).splitlines() or [''])[0][:200]}",
            where=str(source.path),
            fix="give an .onnx file; one of more than 2 GiB cannot be sent",
        ) from error
    if source.path.suffix.lower() == ".onnx":
        return source.path, stem
    shutil.copyfile(source.path, path)
    return path, stem


def given_settings(flags: Mapping[str, Any], config: PathLike | None) -> dict[str, Any]:
    """The given settings, checked as ``launch`` does; files are replaced by their contents.

    Raises:
        SettingsError: a value that does not fit, or a file that cannot be read.
    """
    mappings = {name: value for name, value in flags.items() if isinstance(value, Mapping)}
    plain = {n: v for n, v in flags.items() if n not in mappings or n not in MAPPINGS[1:]}
    resolved = resolve(plain, config_file=None if config is None else Path(config))
    values = resolved.settings.to_dict()
    told = {name: values[name] for name, from_ in resolved.sources.items() if from_ != "default"}
    # What a file or a variable says of this machine stays here; own code is refused there.
    code = [name for name in ("passes", "import") if told.get(name)]
    told = {name: value for name, value in told.items() if name in (*SUBMITTED, *code)}
    if told.get("pool") == "auto":
        del told["pool"]
    told |= {name: dict(mappings[name]) for name in MAPPINGS if name in mappings}
    for name in MAPPINGS:
        value = told.get(name)
        if isinstance(value, str) and (name != "hw" or Path(value).suffix):
            told[name] = read_config_file(value)
    return told


def data_file(
    value: Any, name: str, model: Path, settings: Mapping[str, Any], folder: Path
) -> Path:
    """Calibration or evaluation data as a file that can be sent."""
    if not isinstance(value, str | os.PathLike):
        words = (tuple(settings.get(name, ())) for name in ("until", "from", "set_input"))
        at = CutAt(*words)
        dim = settings.get("dim", {})
        opened = open_model(find_model(model), DataSource(value), dim, at)
        value = objects_to_npz(value, opened.whole_inputs, folder, name)
    path = Path(value)
    if path.is_dir():
        return _zipped(path, folder / f"{name}.zip")
    if path.suffix.lower() not in (".npz", ".npy"):
        raise DataError(
            f"{path.name} is no file of data that can be sent",
            where=str(path.absolute()),
            fix="a server takes an .npz, an .npy or a folder of images; with texts, sounds, "
            "tables, boxes or masks run qsearch launch where they lie",
        )
    return path


def _zipped(images: Path, target: Path) -> Path:
    """A folder of images as a zip that is equal for equal folders."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED, strict_timestamps=False) as archive:
        for path in files_below(images):
            name = path.relative_to(images)
            hidden = any(part.startswith(".") for part in name.parts)
            wanted = path.suffix.lower() in IMAGE_SUFFIXES or str(name) == "classes.txt"
            if wanted and not hidden:
                info = zipfile.ZipInfo(name.as_posix())  # of no time
                with path.open("rb") as source, archive.open(info, "w", force_zip64=True) as out:
                    shutil.copyfileobj(source, out)
    return target


def check_target(path: PathLike) -> Path:
    """Check that a module can be written to the path.

    Raises:
        SettingsError: it cannot.
    """
    target = Path(path).absolute()
    if target.is_dir() or not target.parent.is_dir():
        if target.is_dir():
            what = "this is a folder"
        else:
            what = "there is no such folder"
        where = target if target.is_dir() else target.parent
        raise SettingsError(what, where=str(where), fix="name a file in a folder: -o m.qmod")
    if not os.access(target.parent, os.W_OK):
        raise SettingsError(
            "nothing can be written to this folder",
            where=str(target.parent),
            fix="name a file in another folder: -o m.qmod",
        )
    return target


@contextlib.contextmanager
def part_of(target: Path) -> Iterator[Path]:
    """A file beside the target, which is the target if all goes well."""
    with (
        system_errors(
            RunFolderError,
            "the module cannot be written",
            where=str(target),
            fix="make room, or name another file; the server keeps the module",
        ),
        tempfile.TemporaryDirectory(dir=target.parent, prefix=".part-") as folder,
    ):
        part = Path(folder) / (target.name if target.suffix == ".qmod" else "best.qmod")
        yield part
        part.replace(target)
