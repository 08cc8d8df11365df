"""A quantized module in a form that runs without qsearch: C, ONNX in one of three forms, or the
commands of an accelerator.

One more format: a function registered with ``export_formats`` that writes its files into a folder.
"""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from compiler.errors import CodegenError, OnnxExportError
from compiler.named_table import NamedTable
from compiler.runtime.artifact import QModule, Sample, load_qmod
from qsearch.errors import RunFolderError, SettingsError
from qsearch.run_folder import module_at

if TYPE_CHECKING:
    import onnx

COMMANDS = "commands"
"""The format that needs an accelerator."""
ONNX_FORMATS = ("grid", "onnx", "float")
"""Formats that are one .onnx file."""

PathLike = str | os.PathLike[str]

_TOLERANCE = 1e-4
_SEED = 0
"""Of the sample that a module without samples gets."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """What was written.

    Attributes:
        format: name of the format.
        files: in the order they were written.
        facts: what is worth knowing of them, by name; plain JSON values.
        hint: a command that tries them, or "".
    """

    format: str
    files: tuple[Path, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    hint: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        names = [str(path) for path in self.files]
        return {"format": self.format, "files": names, **self.facts}


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Where an export goes.

    Attributes:
        name: base of the file names.
        folder: it is there.
        batch: samples at a time, of ONNX; None takes any number.
        hw: the accelerator, a shipped name or a file; None for formats that need none.
        matcher: how hardware groups are drawn: "greedy" or "optimal".
    """

    name: str
    folder: Path
    batch: int | None = None
    hw: str | None = None
    matcher: str = "greedy"


Exporter = Callable[[QModule, ExportTarget], ExportedFiles]

export_formats: NamedTable[Exporter] = NamedTable("export format", SettingsError)


def export(
    path: PathLike,
    format: str = "c",
    out: PathLike | None = None,
    *,
    name: str | None = None,
    batch: int | None = None,
    hw: str | None = None,
    matcher: str | None = None,
) -> ExportedFiles:
    """Write a .qmod in a form that runs without qsearch.

    Args:
        path: a .qmod, or a run folder that holds one.
        format: "c", C99 source whose main.c checks itself; "onnx", exact integers; "grid", the same
            integers on float32 tensors; "float", a module that is not on integers; "commands", what
            the accelerator ``hw`` and its host run, in order.
        out: folder for the files, made if it is missing; of ONNX also the file, ``x.onnx``. Beside
            the module without it: ``NAME.FORMAT.onnx`` (NAME.integer.onnx), or the folder
            ``NAME_FORMAT``.
        name: base of the file names and C symbols; that of the module without it.
        batch: samples that an ONNX model takes at a time; None takes any number of them.
        hw: name of a shipped hardware description, or its file; for "commands" only.
        matcher: how its groups are drawn, "greedy" (without it) or "optimal".
    Raises:
        SettingsError: unknown format; "commands" without ``hw``; another format with ``hw``.
        HDFGError: the hardware description is wrong or not there.
        CodegenError: something in the module has no C form.
        OnnxExportError: something in the module has no such ONNX form.
    """
    exporter = export_formats.require(format)
    if format == COMMANDS and hw is None:
        raise SettingsError(
            "commands are those of an accelerator", where=f"--format {format}", fix="add --hw opu_q"
        )
    if format != COMMANDS and (hw is not None or matcher is not None):
        raise SettingsError(
            f"{format} is for no accelerator",
            where="--hw" if hw is not None else "--matcher",
            fix=f"leave it out, or choose --format {COMMANDS}",
        )
    if batch is not None and format not in ONNX_FORMATS:
        raise SettingsError(
            f"{format} has the number of samples of the module",
            where="--batch",
            fix=f"leave it out, or choose --format {ONNX_FORMATS[0]}",
        )
    found = module_at(Path(path))
    module = load_qmod(found)
    folder, base = _place(found, format, None if out is None else Path(out))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made: {error.strerror}", where="-o", fix="name another folder"
        ) from error
    target = ExportTarget(name or base, folder, batch, hw, matcher or "greedy")
    return exporter(module, target)


def _place(module: Path, format: str, out: Path | None) -> tuple[Path, str]:
    """Folder of the files, and the base of their names."""
    onnx_file = format in ONNX_FORMATS
    if out is None:
        folder = module.parent
        if onnx_file:
            return folder, f"{module.stem}.{'integer' if format == 'onnx' else format}"
        return folder / f"{module.stem}_{format}", module.stem
    if out.suffix != ".onnx" or out.is_dir():
        return out, module.stem
    if not onnx_file:
        raise SettingsError(
            f"{format} is several files, not one",
            where=f"-o {out}",
            fix=f"name a folder, or add --format {ONNX_FORMATS[0]}",
        )
    return out.parent, out.stem


def sample_of(module: QModule) -> Sample:
    """The first stored sample; one of normal noise with the reference's outputs where none is."""
    if module.samples:
        return module.samples[0]
    rng = np.random.default_rng(_SEED)
    inputs = {
        name: rng.standard_normal(ty.concrete_shape).astype(ty.dtype)
        for name, ty in module.input_types.items()
    }
    return inputs, module.run(inputs, "reference")


@export_formats.register("c")
def export_c(module: QModule, to: ExportTarget) -> ExportedFiles:
    """One .h, one .c, and a main.c that runs the module's first sample and compares."""
    from compiler.pipeline import lower
    from compiler.proof.dtypes import check_dtypes
    from compiler.targets.c.package import c_package
    from compiler.targets.c.self_check import TOLERANCE

    inputs, outputs = sample_of(module)
    ordered = [inputs[name] for name in module.input_names]
    # Where floats are left inside, sums of another order have other last bits.
    exact = not check_dtypes(module.module)
    lowered = lower(module.module, target="c").mod
    package = c_package(lowered, to.name, (ordered, outputs), exact=exact)
    main = package.entries["main"].placement
    facts = {
        "arena_bytes": package.arena_bytes,
        "arena_lower_bound_bytes": main.lower_bound_bytes,
        "arena_ratio": round(main.ratio, 4),
        "constant_bytes": package.constant_bytes,
        "kernels": package.kernels,
        "needs_libm": package.uses_libm,
        "self_check": "bit by bit" if exact else f"within {TOLERANCE:g}",
        **_border(module),
    }
    base = package.name
    libm = " -lm" if package.uses_libm else ""
    hint = f"cd {to.folder} && cc -std=c99 -O3 {base}.c main.c -o {base}{libm} && ./{base}; echo $?"
    return ExportedFiles("c", tuple(package.write(to.folder)), facts, hint)


def _border(module: QModule) -> dict[str, str]:
    """What C takes where the model took another float dtype."""
    interface = module.interface
    ports = () if interface is None else (*interface.inputs, *interface.outputs)
    other = sorted({port.dtype for port in ports if port.dtype in ("float16", "float64")})
    return (
        {"border": f"C takes and gives float32 where the model has {', '.join(other)}"}
        if other
        else {}
    )


@export_formats.register("onnx")
def export_integer_onnx(module: QModule, to: ExportTarget) -> ExportedFiles:
    """The same integers in their own dtypes: ConvInteger, MatMulInteger, BitShift."""
    from compiler.export.to_onnx.integer import to_integer_onnx

    return _onnx("onnx", to_integer_onnx(module.module), module, to)


@export_formats.register("grid")
def export_grid(module: QModule, to: ExportTarget) -> ExportedFiles:
    """The same integers carried in float32 tensors, fast on onnxruntime."""
    from compiler.export.to_onnx.grid import to_grid_onnx

    return _onnx("grid", to_grid_onnx(module.module), module, to)


@export_formats.register("float")
def export_float(module: QModule, to: ExportTarget) -> ExportedFiles:
    """A module that is not on integers (do_simulation=True), operator by operator."""
    from compiler.export.to_onnx.float_model import to_onnx

    return _onnx("float", to_onnx(module.module), module, to, exact=False)


def _onnx(
    format: str, model: onnx.ModelProto, module: QModule, to: ExportTarget, exact: bool = True
) -> ExportedFiles:
    """Write a model with the interface of the original; a self check runs it.

    Args:
        exact: it promises the module's bits.
    """
    from compiler.export.to_onnx.interface import with_batch, with_names
    from compiler.targets.ort.exported import seal

    interface = module.interface
    note = ""
    try:
        made = with_batch(model, interface, to.batch)
        _compare(made, module, exact)
    except (OnnxExportError, CodegenError) as error:
        if to.batch not in (None, 1):
            raise
        made, note = model, error.what
        _compare(made, module, exact)
    if interface is not None:
        made = with_names(made, interface)
    seal(made, format, module if exact else None)
    path = to.folder / f"{to.name}.onnx"
    _write(path, made.SerializeToString(deterministic=True))
    facts = {
        "nodes": len(made.graph.node),
        "model_bytes": path.stat().st_size,
        "inputs": [_shown(info) for info in made.graph.input],
        "outputs": [_shown(info) for info in made.graph.output],
        "self_check": "bit by bit, default session options" if exact else f"within {_TOLERANCE:g}",
        **({"one_sample_at_a_time": note} if note else {}),
    }
    feed = ", ".join(f'"{info.name}": {_variable(info.name)}' for info in made.graph.input)
    hint = (
        f"qsearch run {path} --eval DATA\nin Python:\n"
        f"  import onnxruntime\n  session = onnxruntime.InferenceSession({str(path)!r})\n"
        f"  outputs = session.run(None, {{{feed}}})"
    )
    return ExportedFiles(format, (path,), facts, hint)


def _variable(name: str) -> str:
    """A Python name like the name of an input."""
    made = re.sub(r"\W", "_", name)
    return made if made.isidentifier() and not keyword.iskeyword(made) else f"x_{made}"


def _compare(model: onnx.ModelProto, module: QModule, exact: bool) -> None:
    """Run the module's samples through onnxruntime, as many at a time as the model takes.

    Raises:
        CodegenError: onnxruntime gives something else than the reference.
    """
    from compiler.targets.ort.session import OrtExecutor

    session = OrtExecutor(model)
    samples = list(module.samples) or [sample_of(module)]
    if len(samples) == 1:
        inputs, _ = samples[0]
        turned = {name: np.ascontiguousarray(array[..., ::-1]) for name, array in inputs.items()}
        samples.append((turned, module.run(turned, "reference")))
    fixed = [dims[0] for _, _, dims in session.inputs if dims and isinstance(dims[0], int)]
    rows = [dims[0] for dims in (ty.concrete_shape for ty in module.input_types.values()) if dims]
    count = len(samples) if len(fixed) < len(rows) else max(fixed[0] // rows[0], 1) if rows else 1
    chosen = [samples[place % len(samples)] for place in range(count)]
    if count == 1:
        found, wanted = session.run(chosen[0][0]), chosen[0][1]
    else:
        many = {dims[0] for _, _, dims in session.inputs if dims}
        joined = {
            name: np.concatenate([inputs[name] for inputs, _ in chosen])
            if dims and dims[0] in many and (not isinstance(dims[0], int) or dims[0] == fixed[0])
            else chosen[0][0][name]
            for name, _, dims in session.inputs
        }
        found = session.run(joined)
        wanted = [np.concatenate(parts) for parts in zip(*(out for _, out in chosen), strict=True)]
    for ours, theirs in zip(found, wanted, strict=True):
        same = ours.tobytes() == theirs.tobytes()
        if not same and (exact or not np.allclose(ours, theirs, _TOLERANCE, _TOLERANCE)):
            raise CodegenError(
                "onnxruntime computes something else than the module",
                where=f"{count} of its samples at a time",
                fix="this is a defect, please report the module",
            )


def _shown(info: onnx.ValueInfoProto) -> str:
    import onnx

    tensor = info.type.tensor_type
    dims = ", ".join(str(d.dim_param or d.dim_value) for d in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{info.name}: {dtype}[{dims}]"


@export_formats.register(COMMANDS)
def export_commands(module: QModule, to: ExportTarget) -> ExportedFiles:
    """What an accelerator and its host run, in order, as JSON and as text, constants as .npy; the
    module's first sample is computed from the commands and compared."""
    from compiler.fusion.hardware.program import program
    from qsearch.modules.views import read_hardware

    assert to.hw is not None
    made = program(module.module, read_hardware(to.hw), to.matcher)
    inputs, outputs = sample_of(module)
    found = made.run([inputs[name] for name in module.input_names])
    if [a.tobytes() for a in found] != [b.tobytes() for b in outputs]:
        raise CodegenError(
            "the commands compute something else than the module",
            where=f"the first sample of the module, on {made.hardware}",
            fix="this is a defect, please report the module",
        )
    written = []
    for name, data in made.files(to.name).items():
        written.append(to.folder / name)
        _write(written[-1], data)
    facts = {**made.cost, "self_check": "bit by bit"}
    return ExportedFiles(COMMANDS, tuple(written), facts, f"cat {to.folder / to.name}.txt")


def _write(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        raise RunFolderError(
            f"{path} cannot be written: {error.strerror}", fix="name another folder with -o"
        ) from error
