"""What ``qsearch insight`` finds: calibrate, then measure every point and layer on samples."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.insight import Insight, examine
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration
from compiler.runtime.artifact import load_qmod
from qsearch.data import prepare_data, read_preprocess
from qsearch.errors import SettingsError
from qsearch.model_source import find_model
from qsearch.single import Batches, import_model, resolve_qconfig
from workers.batching import model_batches
from workers.datasets.registry import input_specs, open_dataset
from workers.messages import Range


@dataclass(frozen=True, slots=True)
class ModelInsight:
    """An insight and what it is of.

    Attributes:
        model: what the user called it.
        qconfig: the configuration examined.
        calib, evaluation: the data, described.
        insight: the figures.
        warnings: ranges that cut off much, in sentences.
    """

    model: str
    qconfig: QConfig
    calib: str
    evaluation: str
    insight: Insight
    warnings: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; a ratio without noise is None."""
        return {
            "model": self.model,
            "qconfig": self.qconfig.to_dict(),
            "calib": self.calib,
            "eval": self.evaluation,
            "warnings": list(self.warnings),
            **self.insight.to_dict(),
        }

    def html(self) -> str:
        """One page that needs no other file."""
        from qsearch.report.insight.page import insight_page

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
        if self.warnings:
            facts["to be looked at"] = "; ".join(self.warnings)
        mode = self.qconfig.calibrate_mode
        return insight_page(f"Insight: {self.model}", facts, self.insight, mode)


def insight_of(
    model: str | os.PathLike[str],
    calib: Any,
    evaluation: Any,
    qconfig: QConfig | Mapping[str, Any] | str | None,
    *,
    samples: int,
    preprocess: str | None,
    dim: Any,
    seed: int,
    progress: Callable[[int, int], None],
) -> ModelInsight:
    """See ``qsearch.api.insight``."""
    if samples < 1:
        raise SettingsError(f"samples is {samples}", where="samples", fix="one or more")
    config = _configuration(qconfig)
    source = find_model(model)
    module = import_model(source, dim)
    inputs = input_specs(module)
    reading = read_preprocess(preprocess)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as spool:

        def prepared(given: Any, name: str) -> Any:
            return prepare_data(
                given,
                inputs,
                name=name,
                preprocess=reading,
                spool_folder=Path(spool),
                seed=seed,
            )

        known = calib if calib is not None else source.calib
        measured = prepared(known, "calib")
        examined = measured if evaluation is None else prepared(evaluation, "eval")
        calibration = Calibration(module, Batches(measured, inputs))
        part = Range(0, min(samples, examined.count))
        batches = [
            batch.inputs
            for batch in model_batches(open_dataset(examined.ref, inputs), part, inputs, samples)
        ]
        warnings = calibration.clipping_of(config)
        stats, channels = calibration.stats_for(config), calibration.channels_for(config)
        found = examine(module, config, stats, batches, channels=channels, progress=progress)
    return ModelInsight(
        source.name, config, measured.described, examined.described, found, warnings
    )


def _configuration(given: QConfig | Mapping[str, Any] | str | None) -> QConfig:
    """As ``resolve_qconfig``; the path of a .qmod means the configuration it was made with."""
    if isinstance(given, str) and given.endswith(".qmod"):
        stored = load_qmod(given).qconfig
        if stored is None:
            raise SettingsError(
                f"{given} does not say how it was made", where="qconfig", fix="give k=v,…"
            )
        return stored
    return resolve_qconfig(given)
