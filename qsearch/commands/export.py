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
from typing import TYPE_CHECKING, Any, Final

from compiler.errors import CodegenError, TfliteExportError
from compiler.named_table import NamedTable
from compiler.ops.number_format import Array
from compiler.pipeline import tflite_file
from compiler.runtime.artifact import QModule, all_repeated, load_qmod, period_of
from compiler.targets.c.names import c_name
from qsearch.commands.onnx_file import ELSEWHERE, parts_outside, sample_of, write_onnx
from qsearch.errors import RunFolderError, SettingsError, system_errors
from qsearch.run.run_folder import PathLike, evaluation_data, module_at
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
class Qdq:
    """The format "qdq": a graph for onnxruntime's 8 bit kernels.

    Attributes:
        reduce_range: weights of 7 bits, for processors without VNNI.
        opset: as of ``to_qdq_onnx``.
    """

    reduce_range: bool = False
    opset: int | None = None


@dataclass(frozen=True, slots=True)
class C:
    """The format "c": C99 source.

    Attributes:
        unpack: packed constants are unpacked in every run ("run"), or once into memory of their own
            ("load"), which takes more memory and less time.
    """

    unpack: Unpack = "run"


@dataclass(frozen=True, slots=True)
class Tflite:
    """The format "tflite": a LiteRT file for TFLM.

    Attributes:
        io: what it takes and gives: "int8", "uint8" or "float"; None for the integers of
            the module.
    """

    io: str | None = None


@dataclass(frozen=True, slots=True)
class Commands:
    """The format "commands": what an accelerator and its host run, in order.

    Attributes:
        hw: name of a shipped hardware description, or its file; it has to be given.
    """

    hw: str = ""


FORMATS: Final = {"c": C, "qdq": Qdq, "tflite": Tflite, "commands": Commands}
"""Formats with options, and their options."""


@dataclass(frozen=True, slots=True)
class ExportTarget:
    """Place of an export.

    Attributes:
        name: base of the file names.
        folder: it is there.
        module: the .qmod.
        batch: samples at a time, of ONNX; None takes any number.
        options: those of the format, where it has any.
        as_array: a LiteRT file is written as a C array.
    """

    name: str
    folder: Path
    module: Path
    batch: int | None = None
    options: C | Qdq | Tflite | Commands | None = None
    as_array: bool = False


Exporter = Callable[[QModule, ExportTarget], ExportedFiles]

export_formats: NamedTable[Exporter] = NamedTable("export format", SettingsError)


def export(
    path: PathLike,
    format: str | C | Qdq | Tflite | Commands = "c",
    out: PathLike | None = None,
    *,
    name: str | None = None,
    batch: int | None = None,
) -> ExportedFiles:
    """Write a .qmod in a form that runs without qsearch.

    Args:
        path: a .qmod, or a run folder that holds one.
        format: "c" or ``C(unpack)``, C99 source whose main.c checks itself; "onnx", exact
            integers; "qdq" or ``Qdq(...)``, a graph for 8 bit kernels; "float", a
            module that is not on integers; "tflite" or ``Tflite(…)``, a LiteRT file that gives the
            integers of a module of requantization "tflite"; ``Commands(hw)``, what an accelerator
            and its host run, in order.
        out: folder for the files, made if it is missing; of ONNX and LiteRT also the file,
            ``x.onnx``, ``x.tflite``, or ``x.cc``, a C array of the latter. Beside the module
            without it: ``NAME.FORMAT.onnx`` (NAME.integer.onnx), ``NAME.tflite``, or the folder
            ``NAME_FORMAT``.
        name: base of the file names and C symbols; that of the module without it.
        batch: samples that an ONNX model takes at a time; None takes any number of them.
    Raises:
        SettingsError: unknown format; a batch where the format has none.
        HDFGError: the hardware description is wrong or not there.
        CodegenError: something in the module has no C form.
        OnnxExportError: something in the module has no such ONNX form.
        TfliteExportError: something in the module has no such form in LiteRT.
    """
    options = None if isinstance(format, str) else format
    form = format if isinstance(format, str) else type(format).__name__.lower()
    exporter = export_formats.require(form)
    if form == "commands" and not (isinstance(options, Commands) and options.hw):
        raise SettingsError(
            "commands are those of an accelerator", where=f"--format {form}", fix="add --hw opu_q"
        )
    if batch is not None and form not in ONNX_FORMATS:
        raise SettingsError(
            f"{form} has the number of samples of the module",
            where="--batch",
            fix=f"leave it out, or choose --format {ONNX_FORMATS[0]}",
        )
    found = module_at(Path(path))
    module = load_qmod(found)
    folder, base = _place(found, form, None if out is None else Path(out))
    what = f"{folder} cannot be made"
    with system_errors(RunFolderError, what, where="-o", fix="name another folder"):
        folder.mkdir(parents=True, exist_ok=True)
    as_array = out is not None and Path(out).suffix == ".cc"
    return exporter(module, ExportTarget(name or base, folder, found, batch, options, as_array))


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
    unpack = to.options.unpack if isinstance(to.options, C) else "run"
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

    options = to.options if isinstance(to.options, Qdq) else Qdq()
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
    sqnr = written.facts["sqnr_to_the_module_db"]
    if not options.reduce_range and adds_pairs():
        near = "" if sqnr is None else f": here the file has {sqnr} dB to its module"
        facts["warning"] = (
            "the 8 bit kernels of this processor add pairs of products in 16 bits, which saturates"
            f"{near}; add --reduce-range if the file is for such a processor"
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

    assert isinstance(to.options, Commands)
    made = program(module.module, read_hardware(to.options.hw))
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

    asked = to.options if isinstance(to.options, Tflite) else Tflite()
    write = partial(tflite_file, module.module, module.input_names)
    interface = None if module.pipeline is not None else module.interface
    names = () if interface is None else tuple(port.name for port in interface.outputs)
    try:
        made = write(names, asked.io)
    except TfliteExportError as error:
        if CURE not in (error.fix or "") or (module.qconfig and module.qconfig.for_tflm):
            raise
        raise TfliteExportError(
            "the module was made for other targets than LiteRT",
            where=error.what,
            fix="make one with `qsearch compile --qconfig auto,for=tflite`, or search with "
            "--for tflite",
        ) from error
    plain = made if asked.io is None else write(names, None)
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
        "io": asked.io or "int8",
        **{f"input {n}": f"scale {s:.9g}, zero {z}" for n, (s, z) in made.inputs.items()},
        **{f"output {n}": f"scale {s:.9g}, zero {z}" for n, (s, z) in made.outputs.items()},
        "self_check": f"0 of {judge.elements} integers differ in {' and '.join(judge.judges)}",
        **({"outside": parts_outside(module)} if module.pipeline is not None else {}),
    }
    verifies = shlex.join(["qsearch", "verify", str(to.module), "--tflite", str(path)])
    judged = not to.as_array and asked.io != "float"
    return ExportedFiles("tflite", (path,), facts, verifies if judged else "")


def _c_array(data: bytes, name: str) -> bytes:
    """C++ source that holds a file, aligned as TFLM wants it."""
    symbol = c_name(name)
    rows = (data[start : start + 16] for start in range(0, len(data), 16))
    lines = [f"    {', '.join(f'0x{byte:02x}' for byte in row)}," for row in rows]
    head = f"alignas(16) extern const unsigned char {symbol}[] = {{"
    size = f"extern const unsigned int {symbol}_len = {len(data)};"
    return "\n".join([head, *lines, "};", size, ""]).encode()
