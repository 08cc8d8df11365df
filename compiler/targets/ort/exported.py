"""Exported modules carry a test of their bits; ``open_exported`` runs it.

    metadata_props    qsearch.form     onnx, qdq, …: what the file is
                      qsearch.check    seed of a noise input, SHA-256 of the outputs for it

An exact form gives the module's bits with the session options that onnxruntime has by default.
Another version, another execution provider or a processor with other kernels may not, and says
nothing about it. So ``open_exported`` runs the noise first, and refuses a session with other bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import onnx

from compiler.errors import ArtifactError, CodegenError, EvaluationError
from compiler.export.to_onnx.interface import with_metadata
from compiler.ops.number_format import Array
from compiler.runtime.artifact import QModule, Sample
from compiler.runtime.interface import Port
from compiler.targets.ort.session import OrtExecutor

_Input = tuple[str, str, Sequence[int | str]]

FORM = "qsearch.form"
CHECK = "qsearch.check"
_SEED = 0
_MOST_BYTES = 2 << 30
_MOST_ELEMENTS = 1 << 27
"""Upper limit of the elements of the inputs of a test."""
_DAMAGED = (ValueError, KeyError, TypeError, OverflowError, RecursionError)
"""Errors of a test that export did not write: no JSON, no seed, an input of strings."""


def seal(model: onnx.ModelProto, form: str, module: QModule | None) -> None:
    """Write what a file is and the test of its bits into its metadata.

    Args:
        module: gives the bits; None for a form that does not promise them.
    """
    facts = {FORM: form}
    if module is not None:
        inputs = [(port.name, port.dtype, port.dims) for port in _ports(module)]
        count = _samples_at_once(inputs)
        outputs = module.run(_noise(_SEED, inputs, count), "reference")
        facts[CHECK] = json.dumps({"seed": _SEED, "outputs_sha256": _digest(outputs, count)})
    with_metadata(model, facts)


def open_exported(path: str | os.PathLike[str], threads: int = 1) -> OrtExecutor:
    """A session on an exported file, with default options, that gives the bits of its module.

    Args:
        path: an .onnx file that ``qsearch export`` wrote.
        threads: threads within one operator.
    Raises:
        ArtifactError: the file cannot be read, or is none of ours.
        CodegenError: onnxruntime refuses it, or gives other bits on this machine.
    """
    file = Path(path)
    try:
        if file.stat().st_size > _MOST_BYTES:
            raise ArtifactError(f"{file} is larger than an ONNX file can be")
        data = file.read_bytes()
    except OSError as error:
        raise ArtifactError(f"there is no file {file}", fix="check the path") from error
    session = OrtExecutor(data, threads=threads)
    metadata = session.metadata
    if FORM not in metadata:
        raise ArtifactError(
            f"{file} was not written by `qsearch export`", fix="open it with onnxruntime itself"
        )
    if CHECK in metadata:
        _check(session, metadata[CHECK], file)
    return session


def compare_samples(
    model: onnx.ModelProto, samples: Sequence[Sample], tolerance: float | None = None
) -> None:
    """Run samples through onnxruntime, as many at a time as the model takes.

    Args:
        samples: inputs by name and outputs, each as of one run of the module; one at least.
        tolerance: of the largest output; None wants the same bits.
    Raises:
        CodegenError: onnxruntime gives something else than the outputs.
    """
    session = OrtExecutor(model)
    first = samples[0][0]
    declared = {name: dims[0] for name, _, dims in session.inputs if dims}
    counts = [
        len(samples) if isinstance(size, str) else size // max(first[name].shape[0], 1)
        for name, size in declared.items()
    ]
    count = max(counts, default=1)
    chosen = [samples[place % len(samples)] for place in range(count)]
    feed = {}
    for name, array in first.items():
        size = declared.get(name)
        many = isinstance(size, str) or (size is not None and size == count * array.shape[0])
        feed[name] = np.concatenate([inputs[name] for inputs, _ in chosen]) if many else array
    for place, ours in enumerate(session.run(feed)):
        theirs = samples[0][1][place]
        if ours.shape != theirs.shape:
            theirs = np.concatenate([outputs[place] for _, outputs in chosen])
        if not _equal(ours, theirs, tolerance):
            raise CodegenError(
                "onnxruntime computes something else than the module",
                where=f"{count} of its samples at a time",
                fix="this is a defect, please report the module",
            )


def _equal(ours: Array, theirs: Array, tolerance: float | None) -> bool:
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if tolerance is None:
        return ours.tobytes() == theirs.tobytes()
    reach = tolerance * float(np.abs(theirs).max(initial=0))
    return bool(np.allclose(ours, theirs, rtol=0, atol=reach, equal_nan=True))


def _check(session: OrtExecutor, told: str, file: Path) -> None:
    count = _samples_at_once(session.inputs)
    elements = [math.prod(d for d in dims if isinstance(d, int)) for _, _, dims in session.inputs]
    if sum(elements) > _MOST_ELEMENTS:
        raise ArtifactError(
            f"{file} takes inputs of {sum(elements)} elements, more than {_MOST_ELEMENTS}",
            fix="export it for fewer samples at once",
        )
    try:
        wanted = json.loads(told)
        seed = int(wanted["seed"])
        digest = str(wanted["outputs_sha256"])
        found = _digest(session.run(_noise(seed, session.inputs, count)), count)
    except (*_DAMAGED, EvaluationError) as error:
        raise ArtifactError(f"{file} holds a damaged test", fix="export it again") from error
    if found != digest:
        raise CodegenError(
            f"onnxruntime gives other bits than the module of {file} on this machine",
            where=f"the test in its metadata, key {CHECK}",
            fix="run the .qmod itself, or another form: qsearch export --format onnx",
        )


def _ports(module: QModule) -> list[Port]:
    """The module's inputs with the dtypes of the model."""
    interface = module.interface
    if interface is None:
        own = {}
    else:
        own = {port.name: port.dtype for port in interface.inputs}
    return [
        Port(name, _kept(ty.dtype, own.get(name)), ty.concrete_shape)
        for name, ty in module.input_types.items()
    ]


def _kept(dtype: str, own: str | None) -> str:
    if own in ("float16", "float64") and dtype == "float32":
        return own
    return dtype


def _samples_at_once(inputs: Iterable[_Input]) -> int:
    """Return the samples of a run, of a model for a fixed number of them; 1 where it is free."""
    return max((d[0] for _, _, d in inputs if d and isinstance(d[0], int)), default=1)


def noise(inputs: Sequence[_Input]) -> dict[str, Array]:
    """One sample of noise for these inputs, the same on every machine; as many as they take."""
    return _noise(_SEED, inputs, _samples_at_once(inputs))


def _noise(seed: int, inputs: Iterable[_Input], count: int) -> dict[str, Array]:
    """One sample of noise, ``count`` times; integers are 0 or 1. The same on every machine."""
    made: dict[str, Array] = {}
    for name, dtype, dims in inputs:
        sizes = [int(dim) if isinstance(dim, int) else 1 for dim in dims]
        many = bool(sizes) and sizes[0] == count
        shape = [1, *sizes[1:]] if many else sizes
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        whole = rng.integers(0, 1 << 12, shape)
        # Multiples of 2^-10 within [-2, 2): float16 holds them, and no libm takes part.
        values = (whole - 2048) / 1024 if dtype.startswith("float") else whole % 2
        array = np.asarray(values).astype(dtype)
        made[name] = np.repeat(array, count, axis=0) if many else array
    return made


def _digest(outputs: Sequence[Array], count: int) -> str:
    """Hash the outputs for one sample; "" where ``count`` equal samples differ."""
    digest = hashlib.sha256()
    for output in outputs:
        parts = [output]
        if count > 1 and output.ndim and output.shape[0] % count == 0:
            parts = np.split(output, count)
        if any(part.tobytes() != parts[0].tobytes() for part in parts):
            return ""
        digest.update(parts[0].tobytes())
    return digest.hexdigest()
