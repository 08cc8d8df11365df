"""A quantized module in a form that runs without qsearch: C, ONNX in one of three forms, a LiteRT
file, or the commands of an accelerator.

One more format: a function registered with ``export_formats`` that writes its files into a folder.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from compiler.errors import CodegenError, TfliteExportError
from compiler.named_table import NamedTable
from compiler.ops.number_format import Array
from compiler.pipeline import tflite_file
from compiler.runtime.artifact import QModule, all_repeated, load_qmod, period_of
from compiler.targets.c.names import c_name
from qsearch.commands.onnx_file import ELSEWHERE, parts_outside, sample_of, write_onnx
from qsearch.errors import RunFolderError, SettingsError, system_errors
from qsearch.run.run_folder import PathLike, evaluation_data, module_at
from qsearch.settings.parameters import Count, ExportFormat, Hardware, Module, Out, Seldom
from qsearch.store.artifacts import write_atomically

if TYPE_CHECKING:
    import onnx

    from compiler.targets.c.package import Unpack

ONNX_FORMATS = ("onnx", "qdq", "float")
"""Formats that are one .onnx file."""
TFLITE_FILES = (".tflite", ".cc")
"""Endings of the two forms of a LiteRT file."""


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """Files of an export.

    Attributes:
        format: name of the format.
        files: in the order they were written.
        facts: what is worth knowing of them, by name; plain JSON values.
        hint: a command that tries them, or "".
        python: lines of Python that run them, or "".
    """

    format: str
    files: tuple[Path, ...]
    facts: dict[str, Any] = field(default_factory=dict)
    hint: str = ""
    python: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        names = [str(path) for path in self.files]
        return {"format": self.format, "files": names, **self.facts}


@dataclass(frozen=True, slots=True)
class FormatOptions:
    """Options of single formats, as of ``export``."""

    reduce_range: bool = False
    opset: int | None = None
    unpack: Unpack = "run"
    io: str | None = None
    hw: PathLike | None = None


_OWN: Final = {
    "qdq": ("reduce_range", "opset"),
    "c": ("unpack",),
    "tflite": ("io",),
    "commands": ("hw",),
}
"""Options that a format has."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Place of an export.

    Attributes:
        name: base of the file names.
        folder: it is there.
        module: the .qmod.
        batch: samples at a time, of ONNX; None takes any number.
        options: those of the format.
        as_array: a LiteRT file is written as a C array.
    """

    name: str
    folder: Path
    module: Path
    batch: int | None = None
    options: FormatOptions = FormatOptions()
    as_array: bool = False


Exporter = Callable[[QModule, ExportTarget], ExportedFiles]

export_formats: NamedTable[Exporter] = NamedTable("export format", SettingsError)


def export(
    path: Module,
    format: ExportFormat = "c",
    out: Out = None,
    *,
    reduce_range: Seldom = False,
    opset: int | None = None,
    unpack: Literal["run", "load"] = "run",
    io: Literal["int8", "uint8", "float"] | None = None,
    hw: Hardware = None,
    batch: Count | None = None,
    name: str | None = None,
) -> ExportedFiles:
    """Write a .qmod in a form that runs without qsearch.

    Args:
        format: c: C99 source with a self check; onnx: exact integers; qdq: for 8-bit kernels;
            tflite: a LiteRT file for TFLM, of a module of requantization=tflite; float: a module
            that is not on integers; commands: what the accelerator --hw and its host run
        out: output folder; for ONNX also x.onnx, for tflite x.tflite or x.cc, a C array (beside
            the module)
        reduce_range: with qdq: 7-bit weights, for processors without VNNI
        opset: with qdq: the newest that the runtime takes; weights of up to 2 bits take 2 from
            opset 25 on, of up to 4 bits 4 from 21 on (25)
        unpack: with c: unpack constants in every run, or once, which takes more RAM and less time
        io: with tflite: dtype of inputs and outputs (the module's integers)
        hw: with commands: the accelerator
        batch: batch size of the ONNX model (any)
        name: stem of the file names and C symbols (that of the module)
    Raises:
        SettingsError: unknown format; an option that the format does not have.
        HDFGError: the hardware description is wrong or not there.
        CodegenError: something in the module has no C form.
        OnnxExportError: something in the module has no such ONNX form.
        TfliteExportError: something in the module has no such form in LiteRT.
    """
    exporter = export_formats.require(format)
    options = FormatOptions(reduce_range, opset, unpack, io, hw)
    _check_options(format, options)
    if format == "commands" and hw is None:
        raise SettingsError(
            "commands are those of an accelerator", where=f"--format {format}", fix="add --hw opu_q"
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
    what = f"{folder} cannot be made"
    with system_errors(RunFolderError, what, where="-o", fix="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    as_array = out is not None and Path(out).suffix == ".cc"
    return exporter(module, ExportTarget(name or base, folder, found, batch, options, as_array))


def _check_options(format: str, options: FormatOptions) -> None:
    """Refuse options of other formats.

    Raises:
        SettingsError: one was given.
    """
    plain = FormatOptions()
    for owner, names in _OWN.items():
        for name in names if owner != format else ():
            if getattr(options, name) != getattr(plain, name):
                flag = f"--{name.replace('_', '-')}"
                raise SettingsError(
                    f"--format {format} has no {flag}",
                    where=flag,
                    fix=f"leave it out, or choose --format {owner}",
                )


def _place(module: Path, format: str, out: Path | None) -> tuple[Path, str]:
    """Folder of the files, and the base of their names."""
    onnx_file = format in ONNX_FORMATS
    endings = (".onnx",) if onnx_file else TFLITE_FILES if format == "tflite" else ()
    if out is None:
        folder = module.parent
        if onnx_file:
            return folder, f"{module.stem}.{'integer' if format == 'onnx' else format}"
        return (folder if endings else folder / f"{module.stem}_{format}"), module.stem
    if out.suffix not in (".onnx", *TFLITE_FILES) or out.is_dir():
        return out, module.stem
    if endings and out.suffix not in endings:
        raise SettingsError(
            f"{format} is no file {out.suffix}",
            where=f"-o {out}",
            fix=f"name a folder, or a file {' or '.join(endings)}",
        )
    if not endings:
        raise SettingsError(
            f"{format} is several files, not one",
            where=f"-o {out}",
            fix="name a folder, or add --format "
            f"{ONNX_FORMATS[0] if out.suffix == '.onnx' else 'tflite'}",
        )
    return out.parent, out.stem


@export_formats.register("c")
def export_c(module: QModule, to: ExportTarget) -> ExportedFiles:
    """One .h, one .c, and a main.c that runs the module's first sample and compares."""
    from compiler.pipeline import lower
    from compiler.proof.dtypes import check_dtypes
    from compiler.targets.c.package import TOLERANCE, c_package

    # Where floats are left inside, sums of another order have other last bits.
    exact = not check_dtypes(module.module)
    lowered = lower(module.module, target="c").mod
    outside = "\n".join(parts_outside(module))
    unpack = to.options.unpack
    package = c_package(
        lowered, to.name, _brief_sample(module), exact=exact, remark=outside, unpack=unpack
    )
    facts = {
        "arena_bytes": package.arena_bytes,
        "arena_lower_bound_bytes": package.entries["main"].placement.lower_bound_bytes,
        "constant_bytes": package.constant_bytes,
        "loaded_bytes": package.loaded_bytes,
        "kernels": package.kernels,
        "needs_libm": package.uses_libm,
        "self_check": "bit by bit" if exact else f"within {TOLERANCE:g}",
        **_border(module),
        **({"outside": parts_outside(module)} if outside else {}),
    }
    base = package.name
    libm = " -lm" if package.uses_libm else ""
    where = shlex.quote(str(to.folder))
    hint = f"cd {where} && cc -std=c99 -O3 {base}.c main.c -o {base}{libm} && ./{base}; echo $?"
    return ExportedFiles("c", tuple(package.write(to.folder)), facts, hint)


def _brief_sample(module: QModule) -> tuple[list[Array], list[Array]]:
    """The first sample as main.c holds it: the beginning of an input that repeats it, as every
    input does where they are large together."""
    from compiler.targets.c.package import MOST_ELEMENTS

    inputs, outputs = sample_of(module)
    arrays = {name: inputs[name] for name in module.input_names}
    share = MOST_ELEMENTS // max(len(arrays), 1)
    if sum(array.size for array in arrays.values()) > MOST_ELEMENTS:
        arrays = all_repeated(arrays, share)
        if any(array.tobytes() != inputs[name].tobytes() for name, array in arrays.items()):
            outputs = module.run(arrays, "reference", core=True)
    periods = (period_of(array, share) for array in arrays.values())
    return [a.reshape(-1)[:p] if p else a for a, p in zip(arrays.values(), periods)], outputs


def _border(module: QModule) -> dict[str, str]:
    """Return the dtypes of C where the model took another float dtype."""
    interface = module.interface
    ports = () if interface is None else (*interface.inputs, *interface.outputs)
    other = sorted({port.dtype for port in ports if port.dtype in ("float16", "float64")})
    if other:
        return {"border": f"C takes and gives float32 where the model has {', '.join(other)}"}
    return {}


@export_formats.register("onnx")
def export_integer_onnx(module: QModule, to: ExportTarget) -> ExportedFiles:
    """The same integers in their own dtypes: ConvInteger, MatMulInteger, BitShift."""
    from compiler.export.to_onnx.integer.model import to_integer_onnx

    return _written("onnx", to_integer_onnx(module.module), module, to)


@export_formats.register("qdq")
def export_qdq(module: QModule, to: ExportTarget) -> ExportedFiles:
    """Quantize and dequantize nodes, which a runtime replaces by its 8 bit kernels."""
    from compiler.export.to_onnx.narrow_weights import initializer_bytes
    from compiler.export.to_onnx.qdq.model import to_qdq_onnx
    from compiler.targets.engine.library import adds_pairs

    options = to.options
    made = to_qdq_onnx(module.module, options.reduce_range, opset=options.opset)
    written = _written("qdq", made.model, module, to, exact=None)
    left = sum(macs for _, _, macs in made.float_products)
    share = left / made.macs if made.macs else 0.0
    facts: dict[str, Any] = {
        "opset": made.model.opset_import[0].version,
        "constant_bytes": initializer_bytes(made.model),
        "in_8_bits": f"{1 - share:.2%} of {made.macs:,} multiplications",
    }
    if made.float_products:
        facts["products_in_float"] = [
            f"{op} {where or 'without a name'}: {macs / made.macs:.2%}"
            for op, where, macs in made.float_products
        ]
    if made.float_ops:
        facts["other_float"] = ", ".join(f"{n} x {op}" for op, n in made.float_ops.items())
    config = module.qconfig
    fits = options.reduce_range or (config is not None and config.weight_scale == "pairs")
    if adds_pairs() and not fits:
        facts["warning"] = (
            "the 8 bit kernels of this processor add pairs of products in 16 bits, which "
            "saturates: make the module with weight_scale=pairs, or add --reduce-range"
        )
    return replace(written, facts={**facts, **written.facts})


def _written(
    format: str,
    model: onnx.ModelProto,
    module: QModule,
    to: ExportTarget,
    exact: bool | None = True,
) -> ExportedFiles:
    path = to.folder / f"{to.name}.onnx"
    facts, python = write_onnx(path, format, model, module, to.batch, exact)
    known = evaluation_data(to.folder) is not None
    hint = f"qsearch run {shlex.quote(str(path))}" if known else ""
    return ExportedFiles(format, (path,), facts, hint, python)


@export_formats.register("float")
def export_float(module: QModule, to: ExportTarget) -> ExportedFiles:
    """A module that is not on integers (do_simulation=True), operator by operator."""
    from compiler.export.to_onnx.float.model import to_onnx

    return _written("float", to_onnx(module.module), module, to, exact=False)


@export_formats.register("commands")
def export_commands(module: QModule, to: ExportTarget) -> ExportedFiles:
    """Write the commands of an accelerator and its host, in order, as JSON and as text, constants
    as .npy; the module's first sample is computed from the commands and compared."""
    from compiler.fusion.hardware.program import program
    from qsearch.commands.views import read_hardware

    made = program(module.module, read_hardware(str(to.options.hw)))
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
        write_atomically(written[-1], data, fix=ELSEWHERE)
    facts = {**made.cost, "self_check": "bit by bit"}
    return ExportedFiles(
        "commands", tuple(written), facts, f"cat {shlex.quote(f'{to.folder / to.name}.txt')}"
    )


@export_formats.register("tflite")
def export_tflite(module: QModule, to: ExportTarget) -> ExportedFiles:
    """A LiteRT file; the module's first sample and noise are run in the interpreters at hand."""
    from compiler.export.to_tflite.inputs import CURE
    from compiler.targets.tflite.interpreters import FileJudge, available

    write = partial(tflite_file, module.module, module.input_names)
    interface = None if module.pipeline is not None else module.interface
    names = () if interface is None else tuple(port.name for port in interface.outputs)
    try:
        made = write(names, to.options.io)
    except TfliteExportError as error:
        made_for = module.qconfig is not None and module.qconfig.requantization == "tflite"
        if made_for or CURE not in (error.fix or ""):
            raise
        raise TfliteExportError(
            "the module was made for other targets than LiteRT",
            where=error.what,
            fix="make one with `qsearch compile --qconfig auto,for=tflite`, or search with "
            "--for tflite",
        ) from error
    plain = made if to.options.io is None else write(names, None)
    judge = FileJudge(module.module, plain.data, available())
    if module.samples:
        judge.compare(module.samples[0][0])
    judge.compare_noise(1)
    if any(judge.differing[name] for name in judge.judges):
        raise CodegenError(
            f"integers of the file differ from the module's: {judge.differing} of {judge.elements}",
            where=f"the first sample and noise, {judge.runs} runs",
            fix="this is a defect, please report the module",
        )
    path = to.folder / f"{to.name}{TFLITE_FILES[to.as_array]}"
    data = _c_array(made.data, to.name) if to.as_array else made.data
    write_atomically(path, data, fix=ELSEWHERE)
    facts: dict[str, Any] = {
        "bytes": len(made.data),
        "operators": ", ".join(f"{n} x {name}" for name, n in made.operators.items()),
        "io": to.options.io or "int8",
        **{f"input {n}": f"scale {s:.9g}, zero {z}" for n, (s, z) in made.inputs.items()},
        **{f"output {n}": f"scale {s:.9g}, zero {z}" for n, (s, z) in made.outputs.items()},
        "self_check": f"0 of {judge.elements} integers differ in {' and '.join(judge.judges)}",
        **({"outside": parts_outside(module)} if module.pipeline is not None else {}),
    }
    verifies = shlex.join(["qsearch", "verify", str(to.module), "--tflite", str(path)])
    judged = not to.as_array and to.options.io != "float"
    return ExportedFiles("tflite", (path,), facts, verifies if judged else "")


def _c_array(data: bytes, name: str) -> bytes:
    """C++ source that holds a file, aligned as TFLM wants it."""
    symbol = c_name(name)
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    lines = [f"    {', '.join(f'0x{byte:02x}' for byte in row)}," for row in rows]
    head = f"alignas(16) extern const unsigned char {symbol}[] = {{"
    size = f"extern const unsigned int {symbol}_len = {len(data)};"
    return "\n".join([head, *lines, "};", size, ""]).encode()
