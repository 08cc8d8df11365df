"""What is done with one model: quantize, run, verify, export, explain, draw, compare. Part of
``qsearch.api``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from compiler.difference import Difference
    from compiler.qtypes.qconfig import QConfig
    from compiler.runtime.artifact import QModule
    from qsearch.diagnosis import ModelDiagnosis
    from qsearch.export import ExportedFiles
    from qsearch.insight import ModelInsight
    from qsearch.verification import Verification

PathLike = str | os.PathLike[str]


def load(path: PathLike) -> QModule:
    """A module written by ``launch``, ``compile`` or ``QModule.save``.

    Raises:
        ArtifactError: the file is missing, damaged, or no .qmod.
    """
    from compiler.runtime.artifact import load_qmod

    return load_qmod(path)


def quantize(
    model: PathLike,
    calib: Any = None,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
    seed: int = 0,
) -> QModule:
    """Quantize with one configuration, without a search, in this process.

    Args:
        calib: as for ``launch``; None is synthetic inputs, and not needed for global_scale.
        qconfig: a QConfig is taken as it is; a mapping, ``"k=v,k=[v]"`` or the path of a
            qconfig.json changes ``QConfig.recommended()``, which is also what None means.
        dim: sizes of named dimensions.
        seed: of synthetic inputs.
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    from qsearch.single import quantize_once

    return quantize_once(model, calib, qconfig, preprocess=preprocess, dim=dim, seed=seed)


def compile_model(
    model: PathLike,
    calib: Any,
    qconfig: QConfig | Mapping[str, Any] | str | None,
    **options: Any,
) -> QModule:
    """What ``qsearch compile`` does: ``quantize`` under the name of the command."""
    return quantize(model, calib, qconfig, **options)


def doctor(
    model: PathLike,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    dim: Mapping[str, int] | Sequence[str] = (),
    hw: str | None = None,
    space_out: PathLike | None = None,
) -> ModelDiagnosis:
    """Which operators of a model will be integer, which not, why, and what to do; needs no data.

    Args:
        qconfig: as for ``quantize``.
        dim: sizes of named dimensions.
        hw: an accelerator (opu_q, npu, a file) that the quantized model's groups are drawn for.
        space_out: file to write what ``launch`` would search, for ``space``.
    Raises:
        CompilerError: the model or configuration cannot be used; operators that cannot be imported
            are all named in one message.
    """
    from qsearch.diagnosis import diagnose_model

    return diagnose_model(model, qconfig, dim, hw, space_out)


def insight(
    model: PathLike,
    calib: Any = None,
    eval: Any = None,
    qconfig: QConfig | Mapping[str, Any] | str | None = None,
    *,
    samples: int = 16,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> ModelInsight:
    """What every layer and every quantize point of one configuration costs.

    Args:
        calib: as for ``quantize``.
        eval: data to examine on; None takes the calibration data.
        qconfig: as for ``quantize``; the path of a .qmod means the configuration in it.
        samples: how many of the data are examined.
        dim: sizes of named dimensions.
        seed: of synthetic inputs.
        progress: called with (layers done, layers).
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    from qsearch.insight import insight_of

    return insight_of(
        model,
        calib,
        eval,
        qconfig,
        samples=samples,
        preprocess=preprocess,
        dim=dim,
        seed=seed,
        progress=progress,
    )


def run_module(path: PathLike, data: Any, *, preprocess: str | None = None) -> dict[str, Any]:
    """Run a .qmod on data, sample after sample, by the exact integer reference.

    Returns:
        ``top1`` (None without labels), ``n``, ``outputs_sha256`` over the little-endian float32
        outputs, and the time it took.
    """
    from qsearch.single import run_on_data

    return run_on_data(load(path), data, preprocess=preprocess)


def verify(
    path: PathLike,
    eval: Any = None,
    *,
    preprocess: str | None = None,
    key: PathLike | None = None,
    record: bool = False,
    sign: PathLike | None = None,
    allow_large: bool = False,
) -> Verification:
    """Derive again that a .qmod is integers only and cannot overflow, and test what it says.

    Args:
        path: a .qmod, or a run folder that holds one.
        eval: data on which two independent executors are compared and the module is scored; the
            samples in the file serve without it.
        preprocess: how an image becomes the input; the run folder's own where there is one.
        key: public key that must have signed the file.
        record: write today's record into a proved file that has none or an older one.
        sign: private key that signs the file if it is acceptable.
        allow_large: also run a module whose work is large for its file, or cannot be told.
    Raises:
        ArtifactError: the file cannot be read at all, or is too much work.
        DataError: the data does not fit the module.
        SettingsError: a key cannot be read, or the package cryptography is missing.
    """
    from qsearch.verification import verify_file

    return verify_file(
        Path(path),
        eval,
        preprocess,
        key=None if key is None else Path(key),
        record=record,
        sign=None if sign is None else Path(sign),
        allow_large=allow_large,
    )


def keygen(path: PathLike) -> tuple[Path, str]:
    """Write a pair of Ed25519 keys: the private one to ``path``, the public one to ``path``.pub.

    Returns:
        The path of the public key, and its fingerprint.
    Raises:
        SettingsError: a file is there already or cannot be written, or cryptography is missing.
    """
    from qsearch.signing import make_keys

    return make_keys(Path(path))


def export(
    path: PathLike,
    format: str = "c",
    out: PathLike = ".",
    *,
    name: str | None = None,
    hw: str | None = None,
    matcher: str | None = None,
) -> ExportedFiles:
    """Write a .qmod in a form that runs without qsearch.

    Args:
        path: a .qmod, or a run folder that holds one.
        format: "c", C99 source whose main.c checks itself; "onnx", exact integers; "grid", the same
            integers on float32 tensors; "float", a module that is not on integers; "commands", what
            the accelerator ``hw`` and its host run, in order.
        out: folder for the files; made if it is missing.
        name: base of the file names and C symbols; that of the module without it.
        hw: name of a shipped hardware description, or its file; for "commands" only.
        matcher: how its groups are drawn, "greedy" (without it) or "optimal".
    Raises:
        SettingsError: unknown format; "commands" without ``hw``; another format with ``hw``.
        HDFGError: the hardware description is wrong or not there.
        CodegenError: something in the module has no C form.
        OnnxExportError: something in the module has no such ONNX form.
    """
    from qsearch.export import export_file

    return export_file(Path(path), format, Path(out), name, hw, matcher)


def show_text(
    path: PathLike, *, after: str | None = None, dim: Sequence[str] = (), brief: bool = False
) -> str:
    """IR text of an .onnx model or a .qmod, after some passes if they are named.

    Args:
        brief: for people: constants by dtype, shape, hash and first values, which do not parse.
    """
    from qsearch.single import text_of

    return text_of(Path(path), after, dim, brief)


def draw(
    path: PathLike, format: str = "html", *, after: str | None = None, dim: Sequence[str] = ()
) -> str:
    """A drawing of what ``show_text`` would print: "dot", "svg", or "html" to click through."""
    from qsearch.single import drawing_of

    return drawing_of(Path(path), format, after, dim)


def show_hardware(
    path: PathLike,
    hw: str,
    format: str = "text",
    *,
    matcher: str | None = None,
    after: str | None = None,
    dim: Sequence[str] = (),
) -> str:
    """The groups of a model on an accelerator: "text", "json", or a drawing.

    Args:
        path: .onnx (norms are folded first), .qmod or .relay.
        hw: a shipped description (opu, opu_q, npu) or the path of a TOML or JSON file.
        matcher: "greedy" (None) or "optimal".
        after: passes to run first, as text.
    Raises:
        CompilerError: the file or the description cannot be used.
    """
    from qsearch.hardware import show_hardware as shown

    return shown(Path(path), hw, matcher or "greedy", format, after, dim)


def diff(
    a: PathLike,
    b: PathLike,
    data: Any = None,
    *,
    samples: int = 4,
    rtol: float = 0.0,
    atol: float = 0.0,
    preprocess: str | None = None,
    dim: Mapping[str, int] | Sequence[str] = (),
) -> Difference:
    """Run two modules on the same inputs; which node differs first, and how far each is off.

    Args:
        a: .onnx, .qmod or .relay, taken as right.
        b: the module that is compared with ``a``.
        data: as for ``launch``; None is synthetic inputs.
        samples: how many of the data are used.
        rtol: |a-b| <= atol + rtol·|a| counts as equal; zero asks for the same bits.
        atol: see ``rtol``.
    Raises:
        CompilerError: a file or the data cannot be used, or inputs and outputs do not match.
    """
    from qsearch.comparison import compare

    return compare(
        Path(a),
        Path(b),
        data,
        samples=samples,
        rtol=rtol,
        atol=atol,
        preprocess=preprocess,
        dim=dim,
    )
