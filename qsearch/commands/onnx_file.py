"""Exported ONNX as a file: interface of the original, self check, scores beside the module."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError, EvaluationError, OnnxExportError
from compiler.frontend.from_onnx.declared_inputs import declared_interface
from compiler.runtime.artifact import OutputHash, QModule, Sample, StoredSample
from compiler.runtime.pipeline import AFTER, BEFORE
from qsearch.store.artifacts import write_atomically
from workers.metrics.sqnr import sqnr_db

if TYPE_CHECKING:
    import onnx

    from compiler.runtime.pipeline import Pipeline

ELSEWHERE: Final = "name another folder with -o"
"""Cure of an export whose files cannot be written."""
_TOLERANCE = 1e-4
_ROUGHLY = 0.1
"""Share of the largest output: one rounding that differs shows in 8 bits."""
_CHECKED = {True: "bit by bit, default session options", False: f"within {_TOLERANCE:g}"}
_SEED = 0
"""Seed of the sample of a module without samples."""


def sample_of(module: QModule) -> Sample:
    """The first stored sample; one of normal noise with the reference's outputs where none is."""
    if not module.samples:
        inputs = noise_for(module)
        return inputs, module.run(inputs, "reference", core=True)
    return _whole(module, module.samples[0])


def _whole(module: QModule, sample: StoredSample) -> Sample:
    """The sample with its outputs; the reference computes those that a file holds as hashes."""
    inputs, outputs = sample
    stored = [output for output in outputs if not isinstance(output, OutputHash)]
    complete = len(stored) == len(outputs)
    return inputs, stored if complete else module.run(inputs, "reference", core=True)


def noise_for(module: QModule) -> dict[str, NDArray[Any]]:
    """Inputs of a module that holds no sample."""
    rng = np.random.default_rng(_SEED)
    return {
        name: rng.standard_normal(ty.concrete_shape).astype(ty.dtype)
        for name, ty in module.input_types.items()
    }


def write_onnx(
    path: Path,
    format: str,
    model: onnx.ModelProto,
    module: QModule,
    batch: int | None,
    exact: bool | None = True,
) -> tuple[dict[str, Any], str]:
    """Write a model with the interface of the original; a self check runs it.

    Args:
        batch: samples that it takes at a time; None is any number of them.
        exact: it promises the module's bits; None promises no numbers.
    Returns:
        what is worth knowing of the file, by name, and lines of Python that run it.
    Raises:
        OnnxExportError: the module does not take ``batch`` samples at a time.
        CodegenError: onnxruntime computes something else.
    """
    from compiler.export.to_onnx.interface import with_batch, with_names
    from compiler.frontend.cut import joined
    from compiler.targets.ort.exported import compare_samples, seal
    from compiler.targets.ort.session import OrtExecutor

    interface = module.interface
    samples = _several_samples(module)
    near: dict[str, Any] = {}
    if exact is None:
        alone = OrtExecutor(model)
        found = [(inputs, alone.run(inputs)) for inputs, _ in samples]
        value = sqnr_db([outs for _, outs in samples], [outs for _, outs in found])
        near = {"sqnr_to_the_module_db": None if value is None else round(value, 1)}
        samples = found
    tolerance = {True: None, False: _TOLERANCE, None: _ROUGHLY}[exact]
    note = ""
    try:
        made = with_batch(model, interface, batch)
        compare_samples(made, samples, tolerance)
    except (OnnxExportError, CodegenError, EvaluationError) as error:
        if batch not in (None, 1):
            raise
        made = model
        note = error.what
        compare_samples(made, samples, tolerance)
    if interface is not None:
        made = with_names(made, interface)
    pipeline = module.pipeline
    if pipeline is not None:
        pipeline.open()
        core = made
        made = joined(made, pipeline, 1 if note else batch)
        _try_whole(made, core, tolerance)
    seal(made, format, module if exact and pipeline is None else None)
    write_atomically(path, made.SerializeToString(deterministic=True), fix=ELSEWHERE)
    facts = {
        "nodes": len(made.graph.node),
        "model_bytes": path.stat().st_size,
        "inputs": [_shown(info) for info in made.graph.input],
        "outputs": [_shown(info) for info in made.graph.output],
        **(near if exact is None else {"self_check": _CHECKED[exact]}),
        **({} if pipeline is None else {"in_float": _around(pipeline)}),
        **({"one_sample_at_a_time": note} if note else {}),
    }
    variables = list(zip(_variables([i.name for i in made.graph.input]), made.graph.input))
    feed = ", ".join(f"{info.name!r}: {variable}" for variable, info in variables)
    arrays = "".join(f"  {variable} = {_zeros(info)}\n" for variable, info in variables)
    python = (
        "  import numpy\n  import onnxruntime\n"
        f"  session = onnxruntime.InferenceSession({str(path)!r})\n"
        f"{arrays}  outputs = session.run(None, {{{feed}}})"
    )
    return facts, python


def parts_outside(module: QModule) -> list[str]:
    """Sentences of the float parts that a module stands between: who computes what; [] for none.

    Raises:
        OnnxImportError: a part is no ONNX that stands alone.
    """
    pipeline = module.pipeline
    if pipeline is None:
        return []
    found = []
    for name, part in zip((BEFORE, AFTER), pipeline.around):
        if part is not None:
            ports = declared_interface(part)
            taken, given = (
                ", ".join(f"{p.name} {p.dtype}[{', '.join(map(str, p.dims))}]" for p in side)
                for side in (ports.inputs, ports.outputs)
            )
            found.append(
                f"outside, in float: {name} of the .qmod ({len(part):,} bytes) computes {given} "
                f"from {taken}"
            )
    places = [f"output {n} is {port.name}" for n, port in enumerate(pipeline.core.outputs)]
    return [*found, f"of the module, {', '.join(places)}"]


def _around(pipeline: Pipeline) -> str:
    """Describe the parts of an exported model that are not the module."""
    sides = zip(("the part in front of the module", "the head behind the module"), pipeline.around)
    told = " and ".join(side for side, part in sides if part is not None)
    return f"{told}; no bits are promised"


def _try_whole(model: onnx.ModelProto, core: onnx.ModelProto, tolerance: float | None) -> None:
    """Run the whole model on noise, and compare what it computes where the module stands with what
    that computes alone. The boxes that a head chooses turn on the last bit of a score.

    Raises:
        CodegenError: onnxruntime computes something else than the module between its float parts.
    """
    from compiler.targets.ort.exported import noise
    from compiler.targets.ort.session import OrtExecutor, with_outputs

    borders = [info.name for info in (*core.graph.input, *core.graph.output)]
    session = OrtExecutor(with_outputs(model, borders), limited=True)
    alone = OrtExecutor(core)
    values = noise(session.inputs)
    values.update(zip(session.output_names, session.run(values), strict=True))
    results = alone.run({name: values[name] for name in alone.input_names})
    for name, theirs in zip(alone.output_names, results, strict=True):
        ours = values[name]
        far = np.abs(np.asarray(theirs, np.float64)).max(initial=0) * (tolerance or 0)
        if ours.dtype != theirs.dtype or not np.allclose(ours, theirs, 0, far):
            raise CodegenError(
                f"onnxruntime computes another {name!r} than the module between its float parts",
                fix="this is a defect, please report the model",
            )


def _variables(names: Sequence[str]) -> list[str]:
    """Return different Python names like those of the inputs, none of which the code reads."""
    taken = {*keyword.kwlist, *dir(builtins), "numpy", "onnxruntime", "session", "outputs"}
    found: list[str] = []
    for name in names:
        made = re.sub(r"\W", "_", name)
        if made.isidentifier() and made not in taken:
            made = made
        else:
            made = f"x_{made}"
        while made in taken:
            made += "_"
        taken.add(made)
        found.append(made)
    return found


def _several_samples(module: QModule) -> list[Sample]:
    """The stored samples, two at least: of one, another one is made by turning it round."""
    samples = [_whole(module, each) for each in module.samples] or [sample_of(module)]
    if len(samples) == 1:
        inputs, _ = samples[0]
        turned = {name: np.ascontiguousarray(array[..., ::-1]) for name, array in inputs.items()}
        samples.append((turned, module.run(turned, "reference", core=True)))
    return samples


def _zeros(info: onnx.ValueInfoProto) -> str:
    """An expression of an array of the input's type."""
    import onnx

    tensor = info.type.tensor_type
    shape = tuple(dim.dim_value or 1 for dim in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"numpy.zeros({shape}, {str(dtype)!r})"


def _shown(info: onnx.ValueInfoProto) -> str:
    import onnx

    tensor = info.type.tensor_type
    dims = ", ".join(str(d.dim_param or d.dim_value) for d in tensor.shape.dim)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return f"{info.name}: {dtype}[{dims}]"
