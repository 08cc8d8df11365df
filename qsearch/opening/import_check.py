"""Compare a model as it was imported with the file in onnxruntime, before anything is made of it.

Everything else is compared with the imported model: what the importer does wrong would stand on
both sides. Outputs of right imports agree to 120 dB or more, since they differ by float32 rounding
alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.errors import CodegenError, CompilerError, EvaluationError
from compiler.frontend.from_onnx.load import load
from compiler.frontend.from_onnx.model_file import read_model, read_structure
from compiler.quantize import given_points
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.targets.ort.session import OrtExecutor, with_outputs
from qsearch.data.prepared_data import PreparedData
from qsearch.errors import WrongImportError
from qsearch.opening.model_file import optimized
from qsearch.opening.open_model import OpenedModel
from workers.batching import spread_batches
from workers.datasets.registry import open_dataset

log = logging.getLogger("qsearch.opening.import_check")

SAMPLES: Final = 2
LEAST_DB: Final = 80.0
"""Below it the import computes another function than the file."""
_QUANTIZED: Final = frozenset(("DequantizeLinear", "QuantizeLinear", "MatMulNBits"))
_NARROW: Final = (
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.UINT16,
)
_HALVES: Final = (onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16)

Outputs = Sequence[NDArray[Any]]


def check_import(opened: OpenedModel, data: PreparedData) -> None:
    """Refuse an import whose outputs differ from those of the file in onnxruntime.

    Files of halves and quantized files round in other places, and casts to narrow integers are
    undefined for other numbers: such files are not compared.

    Args:
        data: samples of the core.
    Raises:
        WrongImportError: they differ by more than rounding; it names the first node that does.
    """
    core = opened.source.content
    structure = read_structure(core)
    quantized = any(node.op_type in _QUANTIZED for node in structure.graph.node)
    if quantized or given_points(opened.module).count or _holds_halves(structure):
        return
    if any(node.op_type == "Cast" and _is_narrow(node) for node in structure.graph.node):
        return
    dataset = open_dataset(data.ref, opened.inputs)
    batches = list(spread_batches(dataset, SAMPLES, opened.inputs, SAMPLES))
    try:
        session = OrtExecutor(core, arena=False, limited=True)
        wanted = [session.run(batch.inputs) for batch in batches]
        del session  # it holds the whole model
    except (CodegenError, EvaluationError) as error:
        log.warning("not compared with the file, which onnxruntime does not run: %s", error.what)
        return
    run = float_executor(opened.module, arena=False).run
    found = [run(batch.inputs) for batch in batches]
    decibels = _agreement(wanted, found)
    if decibels >= LEAST_DB:
        return
    node = _first_difference(opened, read_model(core), batches[0].inputs)
    raise WrongImportError(
        f"{opened.source.path.name}: the imported model differs from the file in onnxruntime "
        f"({decibels:.1f} dB on {SAMPLES} samples), first at {node}",
        fix="this is a fault of the importer: report the node with its attributes; --until and "
        "--from leave it in float",
    )


def _is_narrow(cast: onnx.NodeProto) -> bool:
    (to,) = (attribute.i for attribute in cast.attribute if attribute.name == "to")
    return to in _NARROW


def _holds_halves(model: onnx.ModelProto) -> bool:
    graph = model.graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    kinds |= {info.type.tensor_type.elem_type for info in (*graph.input, *graph.output)}
    return not kinds.isdisjoint(_HALVES)


def _agreement(wanted: Sequence[Outputs], found: Sequence[Outputs]) -> float:
    """Return the SQNR in dB of the float outputs; infinite where they are equal."""
    pairs = [
        (theirs, ours)
        for run_theirs, run_ours in zip(wanted, found, strict=True)
        for theirs, ours in zip(run_theirs, run_ours, strict=True)
        if theirs.dtype.kind == "f"
    ]
    worst = np.inf
    for theirs, ours in pairs:
        # Equal infinities and NaN are equal: masks hold them.
        same = (theirs == ours) | (np.isnan(theirs) & np.isnan(ours))
        if same.all():
            continue
        errors = theirs[~same].astype(np.float64) - ours[~same]
        noise = float(np.square(errors).sum())
        power = float(np.square(theirs[np.isfinite(theirs)], dtype=np.float64).sum())
        if not (np.isfinite(noise) and power > 0):
            return -np.inf
        worst = min(worst, 10 * float(np.log10(power / noise)))
    return worst


def _first_difference(
    opened: OpenedModel, model: onnx.ModelProto, inputs: Mapping[str, NDArray[Any]]
) -> str:
    """Return the first node whose outputs differ, in words."""
    names = [name for node in model.graph.node for name in node.output if name]
    try:
        extended = with_outputs(model, names)
        module = optimized(*load(extended.SerializeToString(), dims=opened.dims))
        session = OrtExecutor(extended, limited=True, optimize=False)
        theirs = dict(zip(session.output_names, session.run(inputs), strict=True))
        ours = dict(zip(session.output_names, float_executor(module).run(inputs), strict=True))
    except CompilerError:
        return "a node that could not be found"
    for node in model.graph.node:
        for name in node.output:
            if name in theirs and _agreement([[theirs[name]]], [[ours[name]]]) < LEAST_DB:
                return f"{node.op_type} {node.name or name!r}"
    return "no node alone"
