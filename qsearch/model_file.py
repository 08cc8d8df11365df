"""Which model: a file, or one of those shipped inside the package with their data."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from compiler.errors import CompilerError, OnnxImportError, nearest
from compiler.frontend.from_onnx.load import load as load_onnx
from compiler.ir.analysis import bind
from compiler.ir.expr import Constant, Expr, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_text import split_passes
from compiler.ir.text.parser import parse
from compiler.ir.ty import tensor_fields
from compiler.proof.work import refusal_expected
from compiler.quantize import given_points, prerequisite_optimize
from compiler.runtime.artifact import load_qmod
from qsearch.errors import ModelFileError, SettingsError
from qsearch.run_folder import RunFolder, module_at
from qsearch.settings import parse_dims
from workers.datasets.contents import Contents
from workers.errors import DatasetError

PREREQUISITE_LEVEL: Final = 3
"""Opt level of the passes before quantization: batch norms folded, bias_add canonical."""

log = logging.getLogger("qsearch.model_file")

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
        alone: read no file beside it, where those of others lie: no external data.
    """

    name: str
    path: Path
    contents: Contents
    calib: Path | None = None
    eval: Path | None = None
    alone: bool = False

    @property
    def content(self) -> Path | bytes:
        """What an importer is given: the path, or the bytes of a file that stands alone."""
        return self.path.read_bytes() if self.alone else self.path

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
        resolved = path / "config.resolved.yaml"
        fix = "give the path of a .onnx file"
        if resolved.is_file():
            fix += f"; qsearch launch -c {resolved} -o {path} goes on with the search of the folder"
        raise ModelFileError(f"{text} is a folder", where=str(path.absolute()), fix=fix)
    raise ModelFileError(
        f"there is no model {text!r}", where=str(path.absolute()), fix=_suggestion(path)
    )


def _suggestion(path: Path) -> str:
    shipped = f"shipped models: {', '.join(sorted(SHIPPED))}"
    try:
        beside = {p.stem: p.name for p in path.parent.iterdir() if p.suffix == ".onnx"}
    except OSError:
        return f"the folder {path.parent} does not exist; {shipped}"
    close = nearest(path.stem, [*beside, *SHIPPED])
    if close:
        return f"did you mean {beside.get(close[0], close[0])!r}? {shipped}"
    return f"give the path of a .onnx file; {shipped}"


def _contents(path: Path) -> Contents:
    try:
        return Contents(path)
    except DatasetError as error:
        raise ModelFileError(
            f"the model cannot be read: {error.what}", where=str(path), fix="check its permissions"
        ) from error


# Modules from files of any form -----------------------------------------------------------------


def read_module(
    path: Path, *, dims: Mapping[str, int], after: str | None = None, closed: bool = False
) -> IRModule:
    """The typed module of a .qmod, a .relay text, an .onnx file or a shipped model.

    Args:
        path: the file, a run folder (its winner), or the name of a shipped model.
        dims: sizes of named dimensions of an ONNX model.
        after: passes to run on it, as text.
        closed: weights of an ONNX model become constants, so that only inputs are parameters.
    Raises:
        CompilerError: the file cannot be used, or a pass fails.
    """
    if RunFolder(path).module.is_file() or str(path) not in SHIPPED:
        path = module_at(path)
    if path.suffix == ".qmod":
        module = load_qmod(path).module
    elif path.suffix == ".relay":
        module = infer_module(parse(_text(path)))
    else:
        module, params = load_onnx(find_model(path).path, dims=dims)
        if closed:
            main = module["main"]
            weights: dict[Var, Expr] = {
                param: Constant(params[param.name_hint])
                for param in main.params
                if param.name_hint in params
            }
            module = infer_module(module.with_function("main", bind(main, weights)))
    if after:
        from compiler.transform import run_named

        try:
            module = run_named(module, split_passes(after), "show")
        except CompilerError as error:
            error.add_note(f"while running --after {after}")
            raise
    return module


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ModelFileError(
            f"{path} cannot be read: {reason}",
            where=str(path.absolute()),
            fix="give the path of a .relay file",
        ) from error


def model_bytes(model: Any) -> bytes:
    """The bytes of a ModelProto, or bytes as they are.

    Raises:
        SettingsError: it is something else, or empty.
    """
    data = model if isinstance(model, bytes) else getattr(model, "SerializeToString", bytes)()
    if not data:
        raise SettingsError(
            f"a model of type {type(model).__name__} cannot be used",
            where="model",
            fix="give the path of an .onnx file, a ModelProto, or its bytes",
        )
    return data


def named_dims(dim: Any) -> dict[str, int]:
    """``NAME=N`` words or a mapping.

    Raises:
        SettingsError: a word of another form.
    """
    try:
        return dict(parse_dims(dim))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"dim cannot be {dim!r}: {error}", where="dim", fix="NAME=N, for example batch=1"
        ) from error


def refuse_empty(mod: IRModule, params: Mapping[str, Any]) -> None:
    """Refuse a model that takes or gives tensors without elements: they have no range and no score.

    Args:
        mod, params: an imported model and its weights.
    Raises:
        OnnxImportError: an input or an output has a dimension of size 0.
    """
    main = mod["main"]
    taken = {p.name_hint: p.tensor_type for p in main.params if p.name_hint not in params}
    given = {f"output {n}": t for n, t in enumerate(tensor_fields(main.body.checked_type))}
    for name, ty in {**{f"input {n!r}": t for n, t in taken.items()}, **given}.items():
        if 0 in ty.shape:
            raise OnnxImportError(
                f"{name} has a dimension of size 0: {list(ty.shape)}",
                where="the model; there is nothing in it to quantize or to score",
                fix="export the model with sizes from 1 up, or with free axes, which --dim sets",
            )


def import_model(source: ModelSource, dim: Any) -> IRModule:
    """The float module after prerequisite_optimize.

    Raises:
        OnnxImportError, SettingsError: a model or dimension that cannot be used.
    """
    mod, params = load_onnx(source.content, dims=named_dims(dim))
    refuse_empty(mod, params)
    module = prerequisite_optimize(mod, params, opt_level=PREREQUISITE_LEVEL, simplify=True)
    for note in (given_points(module).note, refusal_expected(module)):
        if note:
            log.warning("%s", note)
    return module
