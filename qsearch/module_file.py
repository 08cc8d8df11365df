"""Modules from files, whatever form they have: a model, a quantized module, IR text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load as load_onnx
from compiler.ir.analysis import bind
from compiler.ir.expr import Constant, Expr, Var
from compiler.ir.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.parser import parse
from compiler.ir.pass_text import split_passes
from compiler.runtime.artifact import load_qmod
from compiler.transform import run_named
from qsearch.errors import ModelFileError
from qsearch.model_source import SHIPPED, find_model
from qsearch.run_folder import RunFolder, module_at


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
