"""Frozen records that cross processes; modules travel as bytes (ModuleBlob), never as nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from numpy.typing import NDArray

if TYPE_CHECKING:
    from compiler.quantize.calibration.measurement import Measurement

EvaluatorName = Literal["engine", "simulated", "float", "reference", "onnxruntime"]
"""Executors that compute the outputs.

engine      realised integers by the kernels of compiler.targets.engine; where this worker has no
            compiler, or the module no plan, as ``exact_executor`` says: the bits are the same
simulated   the classic simulated_quantize graph in float32, onnxruntime
float       the float model, onnxruntime (the baseline)
reference   the integer module in the numpy reference executor (slow, the oracle)
"""


def split_range(samples: range, parts: int) -> list[range]:
    """Return at most ``parts`` non-empty, consecutive, nearly equal ranges."""
    count = max(1, min(parts, len(samples)))
    cuts = [len(samples) * i // count for i in range(count + 1)]
    return [samples[a:b] for a, b in pairwise(cuts)]


@dataclass(frozen=True, slots=True)
class Handle:
    """Stands in a request for a large value that ``WorkerPool.put`` stored once.

    Attributes:
        key: sha256 of the value; workers cache by it.
        ref: what this pool needs to find the value (None where the key is enough).
    """

    key: str
    ref: Any = None


@dataclass(frozen=True, slots=True)
class DatasetRef:
    """A dataset that every worker can open: a registered kind and its options (plain JSON values).

    Attributes:
        kind: a key of ``workers.datasets.registry``: "npz", "image_folder", "synthetic",
            "variant".
        options: of that kind.
        sha256: of ``Contents``, for data in files: opening the dataset compares it with the
            files. Empty compares nothing.
    """

    kind: str
    options: Mapping[str, Any] = field(default_factory=dict)
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class CalibrationRequest:
    """One shard of one ``compiler.quantize.calibration.measurement.Measurement``.

    Attributes:
        blob: the float module after prerequisite_optimize (``ModuleBlob.data``), or its handle.
        dataset: calibration inputs.
        samples: which of them.
        measurement: without its statistics, which are beside it.
        merged: its merged statistics of "ranges" as arrays, or their handle.
        channels: its channel statistics as arrays, or their handle.
    """

    blob: bytes | Handle
    dataset: DatasetRef
    samples: range
    measurement: Measurement
    merged: Mapping[str, NDArray[Any]] | Handle | None
    channels: Mapping[str, NDArray[Any]] | Handle | None = None


@dataclass(frozen=True, slots=True)
class CalibrationResult:
    """Statistics of one shard as flat arrays, which ``Measurement.read`` reads, and their cost."""

    arrays: Mapping[str, NDArray[Any]]
    samples: int
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Build:
    """Module to run: a candidate, the float model, or a module that is written already.

    Attributes:
        blob: the float module after prerequisite_optimize, or its handle.
        qconfig: fields of the candidate; ignored by the evaluator "float".
        activation_scales: real-valued range S of each INPUT/ACTIVATION quantize point, in binding
            order, and the ends of uneven grids behind them, as
            ``compiler.quantize.activation_scales`` gives them; None for global_scale and "float".
        evaluator: see EvaluatorName.
        channels: channel statistics as arrays, or their handle, where the candidate's
            ``needs_channels``.
        module: bytes of a .qmod, or their handle, to run in place of the candidate: by the
            evaluator "reference", or else by the fastest executor that is exact (``QModule.run``);
            by "onnxruntime" the bytes of an exported ONNX file.
        form: whose bytes are the size of the candidate, a key of ``metrics.size.FORMS``.
    """

    blob: bytes | Handle
    qconfig: Mapping[str, Any]
    activation_scales: tuple[float, ...] | None
    evaluator: EvaluatorName
    channels: Mapping[str, NDArray[Any]] | Handle | None = None
    module: bytes | Handle | None = None
    form: str = "qmod"


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Module, samples and metrics of one evaluation.

    Attributes:
        build: what runs.
        dataset: evaluation inputs.
        samples: which of them.
        metrics: names of ``workers.metrics.registry``.
        reference: outputs of the float model for exactly these samples, one array per output with
            the samples on axis 0, or their handle; None for the baseline itself.
        collapse_after: compute the metrics once after so many samples, spread evenly over the
            range, and stop if the candidate collapsed; None never stops.
        collapse_below: top-1 relative to the baseline, or without labels agreement and share of
            the signal that is no noise, that count as collapse.
        return_outputs: send the outputs back (baseline and final check).
        part: (k, n): of the model's runs over the samples, only numbers k, k+n, k+2n …, so that
            every part is spread over them. ``run_samples`` of the result says how to put the
            outputs of all parts in order.
        hardware: text of a hardware description and the name of its file, as ``parse_hdfg`` takes
            them, where the candidate's cost on that accelerator is wanted.
        asked: costs beside the size: time on the engine ("latency") and as C ("c_latency"), memory
            of the C ("ram"), "flash" and "instructions" on the core that ``build.form`` names.
        board: where both times are measured, as C; None is the worker's machine.
        spot_check: run one of the samples, or of the model's runs where its batch is larger, by the
            exact reference too and compare all outputs, where the evaluator computes integers.
        return_rounding: send back the rounded weights, so that they need not be computed again.
        head: ``Pipeline.pack`` of the float parts around the module, or its handle; metrics that
            compare with labels are then of the whole model, and the others of its core.
    """

    build: Build
    dataset: DatasetRef
    samples: range
    metrics: tuple[str, ...]
    reference: tuple[NDArray[Any], ...] | Handle | None = None
    collapse_after: int | None = None
    collapse_below: float = 0.5
    return_outputs: bool = False
    part: tuple[int, int] = (0, 1)
    hardware: tuple[str, str] | None = None
    asked: tuple[str, ...] = ()
    board: str | None = None
    spot_check: bool = False
    return_rounding: bool = False
    head: bytes | Handle | None = None


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Sums of one shard; shards of one candidate merge by
    ``workers.metrics.registry.merge_sums`` and become scores by ``registry.results``.

    Attributes:
        sums: metric name → accumulated state (see the metric), plain floats.
        samples: how many were scored (fewer than asked when the candidate collapsed).
        collapsed: stopped early.
        outputs_sha256: over the little-endian float32 outputs, sample after sample, batch 1; of a
            collapsed candidate over those that it ran.
        outputs: one array per model output, samples on axis 0, or None.
        compile_cpu_s, run_cpu_s: CPU seconds of building and of running the candidate.
        run_samples: samples of one run of the model (its batch size).
        cost: ``model_bytes`` (packed constants) and ``bit_operations``, and where they were asked
            for ``HardwareCost.totals``, ``ram_bytes`` (the arena of the C), with a core
            ``flash_bytes`` and ``instructions``, ``latency_ms`` and ``c_latency_ms``, CPU
            milliseconds a sample; None for the float model.
        rounding: arrays of ``Rounding``, where they were asked for.
    """

    sums: Mapping[str, Mapping[str, float]]
    samples: int
    collapsed: bool
    outputs_sha256: str
    outputs: tuple[NDArray[Any], ...] | None
    compile_cpu_s: float
    run_cpu_s: float
    peak_rss_bytes: int
    run_samples: int = 1
    cost: Mapping[str, float] = field(default_factory=dict)
    rounding: Mapping[str, NDArray[Any]] | None = None
