"""Diagnose a model before a search (``qsearch doctor``); examine its layers (``insight``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError
from compiler.frontend.cut import Parts
from compiler.frontend.from_onnx.model_file import read_model
from compiler.fusion.hardware.report import HardwareReport
from compiler.insight import Insight, OutputInsight, examine
from compiler.judgement.machines import padding_notes
from compiler.proof.work import refusal_expected
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Diagnosis, diagnose
from compiler.runtime.artifact import load_qmod
from compiler.runtime.interface import Port
from qsearch.commands.judgement import summary_of
from qsearch.commands.quantization import changes_of_auto, chosen_config, resolve_qconfig
from qsearch.commands.views import report_without_data
from qsearch.data.prepared_data import Batches
from qsearch.errors import SettingsError
from qsearch.opening.model_file import ModelSource
from qsearch.opening.open_model import DataSource, found_model, open_model
from qsearch.settings.config import resolve
from qsearch.settings.launch_settings import CutAt
from qsearch.settings.parameters import (
    Calib,
    Count,
    Dims,
    Eval,
    From,
    Hardware,
    Model,
    PathLike,
    Preprocess,
    Qconfig,
    Seed,
    SetInput,
    Until,
)
from qsearch.store.artifacts import write_atomically
from workers.datasets.protocol import InputSpec


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """A diagnosis and the inputs it holds for.

    Attributes:
        model: what the user called it.
        declared: the inputs as the file declares them.
        inputs: the inputs with the sizes the diagnosis was made for.
        diagnosis: operator by operator.
        hardware: the groups of the quantized model, where an accelerator was named.
        warnings: where onnxruntime may compute something else from the file than qsearch, and what
            ``verify`` would refuse.
        cut: where the model was cut; the diagnosis is of the core.
        judgement: of a quantized file, the three lines of ``qsearch verify``.
    """

    model: str
    declared: tuple[Port, ...]
    inputs: tuple[InputSpec, ...]
    diagnosis: Diagnosis
    hardware: HardwareReport | None = None
    warnings: tuple[str, ...] = ()
    cut: Parts | None = None
    judgement: tuple[str, ...] = ()

    def hints(self) -> list[str]:
        """One line per dimension that the file leaves open: what was assumed, how to change it."""
        shapes = {spec.name: spec.shape for spec in self.inputs}
        lines: dict[str, None] = {}
        for entry in self.declared:
            for axis, name in enumerate(entry.dims):
                if isinstance(name, int):
                    continue
                size = shapes[entry.name][axis]
                option = f"{entry.name}:{axis}" if name == "?" else name
                told = f"axis {axis} of {entry.name} ({name}) was taken as {size}; --dim {option}=…"
                lines[f"{told} changes it"] = None
        return list(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "model": self.model,
            "inputs": [
                {"name": s.name, "dtype": s.dtype, "shape": list(s.shape), "declared": list(d.dims)}
                for s, d in zip(self.inputs, self.declared)
            ],
            "hints": self.hints(),
            "warnings": list(self.warnings),
            **({"judgement": list(self.judgement)} if self.judgement else {}),
            **({} if self.cut is None else {"cut": self.cut.to_dict()}),
            **self.diagnosis.to_dict(),
            **({} if self.hardware is None else {"hardware": self.hardware.to_dict()}),
        }


def doctor(
    model: Model,
    qconfig: Qconfig = None,
    *,
    calib: Calib = None,
    preprocess: Preprocess = None,
    dim: Dims = (),
    until: Until = (),
    from_: From = (),
    set_input: SetInput = (),
    hw: Hardware = None,
    space_out: PathLike | None = None,
    **search: Any,
) -> ModelDiagnosis:
    """List the operators that become integer and those that do not, why, and what to do.

    Args:
        qconfig: changes to the recommended configuration, or a qconfig.json
        calib: data that give open axes their sizes
        space_out: write the space, for launch --space
        search: settings of ``launch`` that decide what it searches: ``allow_float``, ``minimize``,
            ``max_size``, ``metric``, ``sampler``.
    Raises:
        CompilerError: the model or configuration cannot be used; operators that cannot be imported
            are all named in one message.
    """
    data = DataSource.of(calib, preprocess)
    with found_model(model, data) as (found, given, _):
        config = resolve_qconfig(qconfig)
        warnings = padding_notes(read_model(found.path, kinds=()))
        try:
            opened = open_model(found, given, dim, CutAt(until, from_, set_input))
            opened, diagnosis = opened.on_integers(config)
            source = opened.source
            module = opened.module
            inputs = opened.inputs
            if space_out is not None:
                from qsearch.search.space_file import described_space

                settings = resolve(search).settings
                usual = QConfig.recommended()
                if config == usual:
                    known = diagnosis
                else:
                    known = diagnose(module, usual)
                text = described_space(settings, module, source.name, known.fully_integral)
                elsewhere = "name another file with --space-out"
                write_atomically(Path(space_out), text.encode(), fix=elsewhere)
            return ModelDiagnosis(
                source.name,
                _declared(source, inputs),
                inputs,
                diagnosis,
                None if hw is None else report_without_data(module, config, str(hw)),
                (*warnings, *filter(None, [refusal_expected(module)])),
                None if source.pipeline is None else source.parts,
                summary_of(found.path, dim),
            )
        except CompilerError as error:
            if "has no value" in error.what and given.data is None:
                error.add_note("or give --calib (and --preprocess): data say sizes of open axes")
            # A model that is quantized already may be refused; the user runs it with onnxruntime.
            for told in (*warnings, *summary_of(found.path, dim)):
                error.add_note(told)
            raise


def _declared(source: ModelSource, inputs: Sequence[InputSpec]) -> tuple[Port, ...]:
    """Inputs of what is imported, as the file declares them; of a value that crosses a cut, sizes
    are open only where --dim sets them."""
    own = {port.name: port for port in source.declared.inputs}
    names = {dim for port in own.values() for dim in port.dims} - {"?"}
    found = []
    for port, spec in zip(source.interface.inputs, inputs):
        sizes = zip(port.dims, spec.shape)
        dims = tuple(dim if dim in names else size for dim, size in sizes)
        found.append(own.get(port.name) or replace(port, dims=dims))
    return tuple(found)


# Insight ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ModelInsight:
    """An insight and what it is of.

    Attributes:
        model: what the user called it.
        qconfig: the configuration examined.
        calib, evaluation: the data, described.
        insight: the figures.
    """

    model: str
    qconfig: QConfig
    calib: str
    evaluation: str
    insight: Insight

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a ratio without noise is None."""
        return {
            "model": self.model,
            "qconfig": self.qconfig.to_dict(),
            "calib": self.calib,
            "eval": self.evaluation,
            **asdict(self.insight),
        }

    def html(self) -> str:
        """One page that needs no other file."""
        from qsearch.report.insight import insight_page

        changed = {
            name: value
            for name, value in self.qconfig.to_dict().items()
            if value != QConfig.recommended().to_dict()[name]
        }
        facts = {
            "model": self.model,
            "calibrated on": self.calib,
            "examined on": f"{self.insight.samples} runs, {self.evaluation}",
            "configuration": "recommended"
            + "".join(f", {name}={value}" for name, value in changed.items()),
        }
        mode = self.qconfig.calibrate_mode
        return insight_page(f"Insight: {Path(self.model).name}", facts, self.insight, mode)


def insight(
    model: Model,
    calib: Calib = None,
    eval: Eval = None,
    qconfig: Qconfig = None,
    *,
    preprocess: Preprocess = None,
    seed: Seed = 0,
    samples: Count = 16,
    dim: Dims = (),
    until: Until = (),
    from_: From = (),
    set_input: SetInput = (),
    progress: Callable[[int, int], None] = lambda _done, _of: None,
) -> ModelInsight:
    """Measure the loss at every layer and every quantize point of one configuration.

    A model that was cut is examined at the outputs of its core.

    Args:
        qconfig: changes to the recommended configuration, a qconfig.json, a .qmod made with it, or
            auto, as compile chooses
        samples: number of samples
        progress: called with (layers done, layers).
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    if samples < 1:
        raise SettingsError(f"samples is {samples}", where="samples", fix="one or more")
    changes = None if qconfig is None else changes_of_auto(qconfig)
    config = _configuration(qconfig) if changes is None else None
    base = config or QConfig.recommended()
    changes = changes or {}
    other = DataSource.of(eval, preprocess, seed)
    measured_on = DataSource.of(calib, preprocess, seed)
    with found_model(model, measured_on) as (found, given, folder):
        opened = open_model(found, given, dim, CutAt(until, from_, set_input), folder)
        whole = changes.get("partition_conversions", base.partition_conversions)
        opened, _ = opened.on_integers(base, floats=whole != "fully_integral")
        source = opened.source
        module = opened.module
        inputs = opened.inputs
        measured = examined = opened.data(given, "calib")
        if other.data is not None:
            examined = opened.data(other, "eval")
        calibration = Calibration(module, Batches(measured, inputs))
        batches = list(Batches(examined, inputs, samples))
        if config is None:
            config, _ = chosen_config(calibration, module, changes)
        stats = calibration.stats_for(config)
        channels = calibration.channels_for(config)
        shown = examine(module, config, stats, batches, channels=channels, progress=progress)
        names = [port.name for port in source.interface.outputs]
        named = replace(
            shown,
            simulated=_named(shown.simulated, names),
            integer=None if shown.integer is None else _named(shown.integer, names),
        )
        return ModelInsight(source.name, config, measured.described, examined.described, named)


def _named(output: OutputInsight, names: Sequence[str]) -> OutputInsight:
    known = output.worst is not None and output.worst < len(names)
    if known:
        return replace(output, worst_name=names[output.worst or 0])
    return output


def _configuration(given: QConfig | Mapping[str, Any] | str | None) -> QConfig:
    """Resolve as ``resolve_qconfig``; the path of a .qmod means the configuration it was made
    with."""
    if isinstance(given, str) and given.endswith(".qmod"):
        stored = load_qmod(given).qconfig
        if stored is None:
            raise SettingsError(
                f"{given} does not say how it was made", where="qconfig", fix="give k=v,…"
            )
        return stored
    return resolve_qconfig(given)
