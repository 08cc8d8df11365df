"""Measure the layers of a .qmod on the integer engine, beside onnxruntime: CPU time of a core."""

from __future__ import annotations

import json
import logging
import re
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from compiler.errors import CodegenError
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.runtime.exact_executor import exact_executor
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import adds_pairs
from compiler.targets.engine.peak import peak_macs
from compiler.targets.engine.plan import StepInfo
from compiler.targets.ort.session import ORT_ERRORS, OrtExecutor
from qsearch.commands.onnx_file import noise_for
from qsearch.commands.running import load
from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.report.page import plot_page, plot_row
from qsearch.settings.parameters import (
    Count,
    Module,
    PathLike,
)

Inputs = dict[str, NDArray[Any]]

_REFUSALS: Final[tuple[type[Exception], ...]] = (*ORT_ERRORS, CodegenError, ValueError)
"""Errors of onnxruntime and its quantizer for models they cannot take."""
_DRAWN: Final = 40
"""Layers in the plot of times."""
_FLOAT: Final = "onnxruntime float"
_NAMED: Final = re.compile(r"'([^']+)'")
_KERNEL: Final = "_kernel_time"
_PRODUCTS: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class LayerTime:
    """One layer: the steps of the engine that came from the same ONNX node.

    Attributes:
        layer: the ONNX node, or the operator.
        operator: what computes it in the module.
        steps: kinds of its kernel steps, in order: a fused group each.
        shape: of its result.
        macs: products it adds up.
        bytes: of its constants, and one for each element of its result.
        ms: CPU milliseconds, the shortest of the rounds.
        float_ms: what onnxruntime takes for the node in float, elapsed; None where it is not known.
    """

    layer: str
    operator: str
    steps: tuple[str, ...]
    shape: tuple[int, ...]
    macs: int
    bytes: int
    ms: float
    float_ms: float | None = None


@dataclass(frozen=True, slots=True)
class ModuleProfile:
    """The figures of a module.

    Attributes:
        module: name of the file.
        isa: instruction set of the kernels.
        peak_macs_per_s: of a core of this machine; None where there is no compiler to measure it.
        ms: CPU milliseconds of a whole run, median.
        layers: in the order of execution.
        peers: of others by name, each measured in turns with the module: CPU milliseconds of a run
            (``ms``), and the CPU time of the module over theirs (``ratio``), medians of the rounds.
        notes: what could not be measured, and why.
    """

    module: str
    isa: str
    peak_macs_per_s: float | None
    ms: float
    layers: tuple[LayerTime, ...]
    peers: Mapping[str, Mapping[str, float]]
    notes: tuple[str, ...] = ()

    @property
    def macs(self) -> int:
        """Products of all layers."""
        return sum(layer.macs for layer in self.layers)

    def share(self, layer: LayerTime) -> float:
        """Return the layer's share of the time of all layers."""
        return layer.ms / max(sum(each.ms for each in self.layers), 1e-12)

    def of_peak(self, macs: int, ms: float) -> float | None:
        """Products a second over the peak; None where there are none, or the peak is not known."""
        if not macs or not ms or self.peak_macs_per_s is None:
            return None
        return 1e3 * macs / ms / self.peak_macs_per_s

    def rows(self) -> list[dict[str, Any]]:
        """The layers as rows of a table."""
        with_float = any(layer.float_ms is not None for layer in self.layers)
        return [
            {
                "layer": layer.layer,
                "operator": layer.operator.removeprefix("nn."),
                "shape": "x".join(map(str, layer.shape)),
                "MMAC": f"{layer.macs / 1e6:.2f}" if layer.macs else "",
                "KB": f"{layer.bytes / 1e3:.1f}",
                "CPU us": f"{1e3 * layer.ms:.1f}",
                "%": f"{100 * self.share(layer):.1f}",
                "GMAC/s": f"{layer.macs / layer.ms / 1e6:.1f}" if layer.macs and layer.ms else "",
                "% of peak": _shown(self.of_peak(layer.macs, layer.ms), 100, 1),
                **({"float us": _shown(layer.float_ms, 1e3, 0)} if with_float else {}),
                "steps": "+".join(layer.steps),
            }
            for layer in self.layers
        ]

    def facts(self) -> dict[str, str]:
        """Return the facts of the whole module, for people."""
        used = self.of_peak(self.macs, self.ms)
        if self.ms:
            speed = f"{self.macs / self.ms / 1e6:.1f} GMAC/s"
        else:
            speed = ""
        found = {
            "module": self.module,
            "instruction set": self.isa,
            "peak of one core": "not measured: no C compiler"
            if self.peak_macs_per_s is None
            else f"{self.peak_macs_per_s / 1e9:.1f} GMAC/s",
            "run": f"{self.ms:.3f} ms CPU, {self.macs / 1e6:.1f} MMAC, {speed}"
            + ("" if used is None else f", {100 * used:.1f} % of the peak"),
        }
        for name, of in self.peers.items():
            found[name] = f"{of['ms']:.3f} ms CPU; the module takes {of['ratio']:.2f} of it"
        return found

    def html(self) -> str:
        """The figures as one page."""
        slow = sorted(self.layers, key=lambda layer: -layer.ms)[:_DRAWN]
        used = [(x, self.of_peak(x.macs, x.ms)) for x in self.layers]
        return plot_page(
            f"profile of {self.module}",
            {**self.facts(), **{f"note {n + 1}": note for n, note in enumerate(self.notes)}},
            [
                {
                    "name": "Where the time goes",
                    "about": f"CPU microseconds of the {len(slow)} slowest layers, one thread.",
                    "rows": [plot_row(x.layer, [1e3 * x.ms], f"{1e3 * x.ms:.0f}") for x in slow],
                    "unit": "us",
                },
                {
                    "name": "How well the processor is used",
                    "about": "Percent of the products a second that one core can add up.",
                    "rows": [plot_row(x.layer, [100 * p], f"{100 * p:.0f}") for x, p in used if p],
                    "unit": "%",
                },
            ],
            {"Layers": self.rows()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; times in milliseconds, the peak in products a second."""
        return {
            **asdict(self),
            "macs": self.macs,
            "layers": [
                {
                    **asdict(layer),
                    "share": self.share(layer),
                    "of_peak": self.of_peak(layer.macs, layer.ms),
                }
                for layer in self.layers
            ],
        }


def _shown(value: float | None, factor: float, places: int) -> str:
    if value is None:
        return ""
    return f"{factor * value:.{places}f}"


def profile(path: Module, model: PathLike | None = None, rounds: Count = 15) -> ModuleProfile:
    """Measure the CPU time of every layer of a module on the integer engine, one thread, batch 1.

    The first sample of the module is run, or noise where it has none.

    Args:
        path: a .qmod or a run folder
        model: the original .onnx: onnxruntime runs it in turns with the module, in float and in 8
            bits, in the form that is exact on this processor
        rounds: number of measurements
    Raises:
        ArtifactError: the file is no module.
        SettingsError: a model of other inputs.
        EvaluationError: the inputs of the model have other shapes.
    """
    module = load(path)
    inputs = [dict(given) for given, _ in module.samples] or [noise_for(module)]
    notes: list[str] = []
    form, executor, note = exact_executor(module.module)
    if isinstance(executor, EngineExecutor):
        engine = executor
    else:
        engine = None
    if note:
        notes.append(note)
    nodes: list[LayerTime] = []
    if form == "integer":
        exported = to_integer_onnx(module.module).SerializeToString()
        least = _node_times(exported, inputs[0], rounds)
        nodes = [LayerTime(name, "", (form,), (), 0, 0, ms) for name, ms in least.items()]
    if engine:
        seconds = engine.profile(inputs[0], rounds)
    else:
        seconds = np.zeros(0)
    runs: dict[str, Callable[[], object]] = {"": lambda: executor.run(inputs[0])}
    by_node: Mapping[str, float] = {}
    if model is not None:
        source = find_model(model)
        data = source.path.read_bytes()
        session = OrtExecutor(data)
        if set(session.input_names) != set(inputs[0]):
            raise SettingsError(
                f"{source.name} takes {', '.join(session.input_names)}, the module "
                f"{', '.join(inputs[0])}",
                where="--model",
                fix="name the model that the module was made from",
            )
        # The model may take float16 where the module has float32.
        given = [
            {name: np.asarray(each[name]).astype(dtype) for name, dtype, _ in session.inputs}
            for each in inputs
        ]
        session.run(given[0])
        runs[_FLOAT] = lambda: session.run(given[0])
        weights = QuantType.QUInt8 if adds_pairs() else QuantType.QInt8
        name = f"onnxruntime int8 (u8{'s8' if weights == QuantType.QInt8 else 'u8'})"
        try:
            narrow = OrtExecutor(_quantized(source.path, given, weights))
            runs[name] = lambda: narrow.run(given[0])
        except _REFUSALS as error:
            notes.append(f"{name}: {str(error).splitlines()[0]}")
        by_node = _node_times(data, given[0], rounds)
    own, *others = _in_turns(list(runs.values()), rounds)
    return ModuleProfile(
        Path(path).name,
        engine.isa if engine else f"that of the executor {form}",
        peak_macs(engine.isa) if engine else None,
        1e3 * float(np.median(own)),
        tuple(_layers(engine.steps, seconds, by_node) if engine else nodes),
        {
            name: {"ms": 1e3 * float(np.median(taken)), "ratio": float(np.median(own / taken))}
            for name, taken in zip(list(runs)[1:], others)
        },
        tuple(notes),
    )


def _in_turns(runs: Sequence[Callable[[], object]], rounds: int) -> NDArray[np.float64]:
    """CPU seconds of this thread, (runs, rounds)."""
    taken = np.zeros((len(runs), rounds))
    for run in runs:
        run()
    for turn in range(rounds):
        for number, run in enumerate(runs):
            begin = time.thread_time()
            run()
            taken[number, turn] = time.thread_time() - begin
    return np.maximum(taken, 1e-9)


def _layers(
    steps: Sequence[StepInfo], seconds: NDArray[np.float64], by_node: Mapping[str, float]
) -> list[LayerTime]:
    """The steps by ONNX node, in order of their first step."""
    groups: defaultdict[str, list[int]] = defaultdict(list)
    for number, step in enumerate(steps):
        names = _NAMED.findall(step.onnx)
        groups[names[0] if names else step.onnx or step.name].append(number)
    found = []
    for name, numbers in groups.items():
        main = max(numbers, key=lambda n: (steps[n].macs, seconds[n]))
        result = steps[numbers[-1]].out_shape
        found.append(
            LayerTime(
                name,
                steps[main].name,
                tuple(steps[n].kind for n in numbers),
                tuple(result),
                sum(steps[n].macs for n in numbers),
                sum(steps[n].bytes for n in numbers) + int(np.prod(result)),
                1e3 * float(sum(seconds[n] for n in numbers)),
                by_node.get(name),
            )
        )
    return found


class _Samples(CalibrationDataReader):  # type: ignore[misc]
    """Inputs as onnxruntime's calibration asks for them."""

    def __init__(self, inputs: Sequence[Inputs]) -> None:
        self._left = list(inputs)

    def get_next(self) -> Inputs | None:
        """The next input; None at the end."""
        if self._left:
            return self._left.pop(0)
        return None


def _quantized(path: Path, inputs: Sequence[Inputs], weights: QuantType) -> bytes:
    """The model in 8 bits by onnxruntime's own quantization, calibrated on a few samples."""
    logging.getLogger().addFilter(_silent)
    try:
        with tempfile.TemporaryDirectory(prefix="qsearch-profile-") as folder:
            target = Path(folder) / "int8.onnx"
            quantize_static(
                path,
                target,
                _Samples(inputs),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=weights,
            )
            return target.read_bytes()
    finally:
        logging.getLogger().removeFilter(_silent)


def _silent(record: logging.LogRecord) -> bool:
    """onnxruntime advises by the root logger to preprocess the model."""
    return record.levelno > logging.WARNING


def _node_times(data: bytes, inputs: Inputs, rounds: int) -> dict[str, float]:
    """Milliseconds that onnxruntime's kernels take in float, by ONNX node, the least of rounds.

    A fused kernel bears the name of its last node or tensor; it counts for its first node.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    with tempfile.TemporaryDirectory(prefix="qsearch-profile-") as folder:
        options.profile_file_prefix = str(Path(folder) / "ort")
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        for _ in range(rounds):
            session.run(None, inputs)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    least: dict[str, float] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith(_KERNEL):
            name = name.removesuffix(_KERNEL)
            least[name] = min(least.get(name, np.inf), event["dur"] / 1e3)
    graph = onnx.load_from_string(data).graph
    maker = {out: node for node in graph.node for out in node.output}
    named = {node.name: node for node in graph.node}
    last = {name: named.get(name) or maker.get(name.removesuffix("_nchwc")) for name in least}
    timed = {node.name for node in last.values() if node is not None}
    found: defaultdict[str, float] = defaultdict(float)
    for name, node in last.items():
        if node is not None:
            found[_first_of(node, maker, timed)] += least[name]
    return found


def _first_of(node: onnx.NodeProto, maker: Mapping[str, onnx.NodeProto], timed: set[str]) -> str:
    """The node that a fused kernel begins with: a product, or what follows another kernel."""
    while node.op_type not in _PRODUCTS:
        before = maker.get(node.input[0]) if node.input else None
        if before is None or before.name in timed:
            break
        node = before
    return str(node.name)
