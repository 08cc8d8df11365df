"""Closeness of the outputs of a quantized module to those of its float model.

``compile`` and ``launch`` have one definition: the SQNR of the worst float output of the whole
model, float parts included.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.frontend.from_onnx.model_file import read_model
from compiler.insight.groups import Fields, Group, groups_of, joined_fields, lost_channels
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import given_points
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.runtime.artifact import QModule
from compiler.runtime.pipeline import Pipeline
from qsearch.data.prepared_data import PreparedData
from workers.batching import ModelBatch, spread_batches
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import open_dataset
from workers.metrics.sqnr import Sqnr, worst_output

KEY: Final = "closeness"
"""Key of the provenance of a module: the fields of a ``Closeness``."""
_BYTES: Final = ("int8", "uint8")
COMPARED: Final = 16
"""Samples that ``Closeness.of`` compares at least; more where the outputs have few numbers."""
_NUMBERS: Final = 1 << 12
_MOST_COMPARED: Final = 256
CLOSE_DB: Final = 20.0
"""From here on the noise has at most a hundredth of the power of the outputs."""
WRONG_DB: Final = 6.0
"""Below it the noise has more than a quarter of their power: the function is another one."""
_CHOOSING: Final = frozenset(
    ("ArgMax", "ArgMin", "Compress", "NonMaxSuppression", "NonZero", "TopK", "Unique")
)
"""ONNX operators that choose: a small error moves their result to another place."""

Outputs = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Closeness:
    """SQNR of the worst float output, or of the worst group of its channels.

    Attributes:
        sqnr_db: in dB; None where the outputs are equal.
        output: name of the worst of several outputs; "" for an only one.
        samples: the number of samples that were compared.
        group: the worst group of channels; "" where no output has several.
        output_db: of the worst whole output, in dB; None where the outputs are equal.
        lost: outputs and groups that keep less than a tenth of their variance.
        to: what the outputs are close to: "float", or "the given file" of a model that is quantized
            already.
    """

    sqnr_db: float | None
    output: str
    samples: int
    to: str = "float"
    group: str = ""
    output_db: float | None = None
    lost: Sequence[str] = ()

    @staticmethod
    def of(
        model: IRModule,
        module: IRModule,
        data: PreparedData,
        inputs: tuple[InputSpec, ...],
        names: Sequence[str],
        pipeline: Pipeline | None,
        graph: onnx.ModelProto | None = None,
    ) -> Closeness | None:
        """Compare a module with its float model on samples spread over the data.

        Args:
            model, module: the float core and what was made of it.
            names: of the outputs of the core.
            pipeline: float parts around the core whose outputs are compared, as of
                ``compared_whole``; None compares the outputs of the core.
            graph: the model, whose structure tells the groups of an output; None for its values
                alone.
        Returns:
            None where no output is float, or every float output is 0 on these samples.
        """
        dataset = open_dataset(data.ref, inputs)
        batches = list(spread_batches(dataset, COMPARED, inputs, COMPARED))
        # One after the other: a large model is not held beside its module.
        run = float_executor(model, arena=False).run
        exact = _outputs_of(run, batches)
        numbers = sum(out.size for outputs in exact for out in outputs)
        if numbers < _NUMBERS and len(dataset) > COMPARED:
            samples = COMPARED
            while samples * numbers < COMPARED * _NUMBERS and samples < _MOST_COMPARED:
                samples *= 2
            batches = list(spread_batches(dataset, samples, inputs, COMPARED))
            exact = _outputs_of(run, batches)
        del run
        rounded = _outputs_of(QModule(module).run, batches)
        if pipeline is not None:
            names = [port.name for port in pipeline.whole.outputs]
            exact = _finished(pipeline, batches, exact)
            rounded = _finished(pipeline, batches, rounded)
        to = "the given file" if given_points(model).count else "float"
        count = sum(batch.count for batch in batches)
        if graph is not None:
            fields = joined_fields(graph, names)
        else:
            fields = {}
        found = Closeness.between(exact, rounded, names, count, fields)
        if found is None:
            return None
        return replace(found, to=to)

    @staticmethod
    def between(
        exact: Sequence[Outputs],
        rounded: Sequence[Outputs],
        names: Sequence[str],
        samples: int,
        fields: Mapping[str, Fields] = MappingProxyType({}),
    ) -> Closeness | None:
        """Compare outputs that are there already, run after run.

        Args:
            fields: of ``joined_fields``, by the names of outputs.
        """
        # Integers of one byte are those of a QuantizeLinear: labels and indices have more.
        kinds = [out.dtype.kind == "f" or out.dtype in _BYTES for out in exact[0]]
        names = names if len(names) > 1 else [""]
        parts: list[tuple[str, str, list[NDArray[Any]], list[NDArray[Any]]]] = []
        for place in [place for place, compared in enumerate(kinds) if compared]:
            name = names[place]
            wanted = [out[place] for out in exact]
            found = [out[place] for out in rounded]
            parts.append((name, "", wanted, found))
            for group in _groups(fields, name, wanted):
                channels = [*map(group.of, wanted)], [*map(group.of, found)]
                parts.append((name, str(group), *channels))
        worst = _worst([part for part in parts if not part[1]])
        if worst is None:
            return None
        output, _, output_db = worst
        output, group_name, sqnr_db = _worst(parts) or worst
        lost = [
            f"{name} {channels}".strip() or "the output"
            for name, channels, wanted, found in parts
            if wanted[0].ndim
            and len({out.shape[1:] for out in wanted}) == 1
            and lost_channels(np.concatenate(wanted), np.concatenate(found))
        ]
        return Closeness(
            sqnr_db, output, samples, group=group_name, output_db=output_db, lost=tuple(lost)
        )

    @property
    def close(self) -> bool:
        """The outputs may be called close to those of the float model."""
        return self.sqnr_db is None or self.sqnr_db >= CLOSE_DB

    @property
    def wrong(self) -> bool:
        """The module computes another function than the float model."""
        far = self.output_db is not None and self.output_db < WRONG_DB
        return far or bool(self.lost)

    def told(self, data: str) -> str:
        """Say the figure, the part that it is of, and what is lost; ``data`` names the samples."""
        if self.sqnr_db is None:
            figure = "the same outputs"
        else:
            figure = f"{self.sqnr_db:.1f} dB SQNR"
        named = [f"output {self.output!r}"] if self.output else []
        named += [self.group] if self.group else []
        worst = f" ({' '.join(named)}, the worst)" if named else ""
        told = f"{figure}{worst} on {self.samples} samples of the {data}"
        if self.lost:
            told += f"; lost, nearly constant in integers: {', '.join(self.lost)}"
        return told

    def sentence(self, data: str, point: str = "") -> str:
        """Say how close the outputs are; ``data`` names the samples, ``point`` the quantize point
        that loses most."""
        told = self.told(data)
        if self.close and not self.lost:
            return f"close to {self.to}: {told}"
        told += f"; most is lost at {point}" if point else ""
        return (
            f"far from {self.to}: {told}; `qsearch insight --qconfig auto` names the layers that "
            "lose, --until and --from leave parts in float"
        )

    @staticmethod
    def recorded(provenance: Mapping[str, Any]) -> Closeness | None:
        """Read what ``compile`` wrote into the provenance of its module."""
        found = provenance.get(KEY)
        if found is None:
            return None
        return Closeness(**{**found, "lost": tuple(found.get("lost", ()))})


def _groups(
    fields: Mapping[str, Fields], name: str, wanted: Sequence[NDArray[Any]]
) -> tuple[Group, ...]:
    """Return the groups of an output of all runs; () where runs differ in their shapes."""
    if len({out.shape[1:] for out in wanted}) > 1 or wanted[0].ndim < 2:
        return ()
    known = fields.get(name)
    if name == "" and len(fields) == 1:
        (known,) = fields.values()
    return groups_of(known, np.concatenate(wanted))


def _worst(
    parts: Sequence[tuple[str, str, Sequence[NDArray[Any]], Sequence[NDArray[Any]]]],
) -> tuple[str, str, float | None] | None:
    """Return output, group and SQNR in dB of the worst part; None where no part has power."""
    metric = Sqnr()
    state = metric.init()
    for runs in zip(*(zip(wanted, found) for _, _, wanted, found in parts), strict=True):
        metric.update(state, [found for _, found in runs], [wanted for wanted, _ in runs], None)
    if not any(value for key, value in state.items() if key.startswith("signal")):
        return None
    index, sqnr_db = worst_output(state) or (0, metric.result(state))
    rounded = None if sqnr_db is None else round(sqnr_db, 1) + 0.0
    return parts[index][0], parts[index][1], rounded


def has_few_bits(config: QConfig) -> bool:
    """Return True if the bits are fewer than the recommended ones, in a layer or everywhere."""
    least = QConfig.recommended()
    names = ("nbit_input", "nbit_weight")
    layers: Mapping[str, Mapping[str, Any]] = config.to_dict()["layers"]
    return any(
        (bits := fields.get(name)) is not None and bits < getattr(least, name)
        for fields in (config.to_dict(), *layers.values())
        for name in names
    )


def _finished(
    pipeline: Pipeline, batches: Sequence[ModelBatch], outputs: Sequence[Outputs]
) -> list[list[NDArray[Any]]]:
    """Return the outputs of the whole model for those of its core."""
    return [
        pipeline.finish({**batch.inputs, **batch.beside}, found)
        for batch, found in zip(batches, outputs, strict=True)
    ]


def _outputs_of(run: Any, batches: Sequence[ModelBatch]) -> list[list[NDArray[Any]]]:
    return [list(map(np.asarray, run(batch.inputs))) for batch in batches]


def compared_whole(pipeline: Pipeline | None) -> Pipeline | None:
    """Return the pipeline if the outputs behind its core are compared, and None otherwise.

    There has to be a float part behind the core, and it may choose among values nowhere, as the one
    of a detector does.
    """
    if pipeline is None or pipeline.after is None:
        return None
    choosing = _CHOOSING.intersection(n.op_type for n in read_model(pipeline.after).graph.node)
    if choosing:
        return None
    return pipeline
