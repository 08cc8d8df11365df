"""One configuration without a search, one module on data, one text: all in this process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.drawing import draw
from compiler.frontend.from_onnx.load import load as load_onnx
from compiler.ir.blob import ModuleBlob
from compiler.ir.module import IRModule
from compiler.ir.printer import text
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, given_points, prerequisite_optimize
from compiler.runtime.artifact import QModule
from qsearch.data import PreparedData, prepare_data, read_preprocess
from qsearch.errors import SettingsError
from qsearch.model_source import ModelSource, find_model
from qsearch.module_file import read_module
from qsearch.search.study import PREREQUISITE_LEVEL
from qsearch.search.winner import build_winner, recorded_proof, samples_of
from qsearch.settings import parse_dims
from workers.batching import model_batches
from workers.code_version import code_version
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs, open_dataset
from workers.metrics.sums import MetricSums

log = logging.getLogger("qsearch.single")

_CHUNK = 16


def quantize_once(
    model: str | os.PathLike[str],
    calib: Any,
    qconfig: QConfig | Mapping[str, Any] | str | None,
    *,
    preprocess: str | None,
    dim: Any,
    seed: Any,
) -> QModule:
    """See ``qsearch.quantize``."""
    config = resolve_qconfig(qconfig)
    source = find_model(model)
    module = import_model(source, dim)
    inputs = input_specs(module)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as spool:
        given = calib if calib is not None else source.calib
        data = prepare_data(
            given,
            inputs,
            name="calib",
            preprocess=read_preprocess(preprocess),
            spool_folder=Path(spool),
            seed=int(seed),
        )
        calibration = Calibration(module, Batches(data, inputs))
        if calibration.scales_for(config) and data.synthetic:
            log.warning(
                "no calibration data was given: activation ranges come from random inputs "
                "and will not fit real ones"
            )
        for note in calibration.clipping_of(config):
            log.warning("%s", note)
        shipped, float_ops = build_winner(calibration, config)
        for call in float_ops:
            log.info("stays float: %s", call)
        return QModule(
            shipped,
            config,
            provenance={
                "model_sha256": source.sha256,
                "module_sha256": ModuleBlob.pack(module).sha256,
                "calib_sha256": data.sha256,
                "seed": int(seed),
                "code_version": code_version(),
            },
            samples=samples_of(shipped, data, inputs),
            proof=recorded_proof(shipped),
        )


def resolve_qconfig(given: QConfig | Mapping[str, Any] | str | None) -> QConfig:
    """A QConfig as it is; anything else changes ``QConfig.recommended()``.

    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: a qconfig.json that cannot be read.
    """
    if isinstance(given, QConfig):
        return given
    if given is None:
        return QConfig.recommended()
    if isinstance(given, Mapping):
        return QConfig.recommended(**given)
    if given.endswith(".json"):
        try:
            fields = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise SettingsError(
                f"the configuration {given} cannot be read: {error}",
                where="qconfig",
                fix="give a qconfig.json as `qsearch launch` writes it, or k=v,…",
            ) from error
        if not isinstance(fields, dict):
            raise SettingsError(
                f"{given} holds no mapping of fields",
                where="qconfig",
                fix='write {"calibrate_mode": "max"}',
            )
        return QConfig.recommended(**fields)
    return QConfig.recommended(**QConfig.parse_overrides(given))


def import_model(source: ModelSource, dim: Any) -> IRModule:
    """The float module after prerequisite_optimize.

    Raises:
        OnnxImportError, SettingsError: a model or dimension that cannot be used.
    """
    mod, params = load_onnx(source.path, dims=named_dims(dim))
    module = prerequisite_optimize(mod, params, opt_level=PREREQUISITE_LEVEL, simplify=True)
    note = given_points(module).note
    if note:
        log.warning("%s", note)
    return module


def named_dims(dim: Any) -> dict[str, int]:
    """``NAME=N`` words or a mapping.

    Raises:
        SettingsError: a word of another form.
    """
    try:
        return dict(parse_dims(dim))
    except (TypeError, ValueError) as error:
        raise SettingsError(
            f"dim cannot be {dim!r}: {error}", where="dim", fix="NAME=N, for example batch=1"
        ) from error


class Batches:
    """Data as batches of the model, as often as it is iterated."""

    def __init__(self, data: PreparedData, inputs: Sequence[InputSpec]) -> None:
        self._data = data
        self._inputs = tuple(inputs)

    def __iter__(self) -> Iterator[dict[str, NDArray[Any]]]:
        dataset = open_dataset(self._data.ref, self._inputs)
        for batch in model_batches(dataset, self._data.samples, self._inputs, _CHUNK):
            yield batch.inputs


def run_on_data(
    module: QModule, given: Any, *, preprocess: str | None, name: str = "eval"
) -> dict[str, Any]:
    """See ``qsearch.api.run_module``."""
    inputs = input_specs(module.module)
    with tempfile.TemporaryDirectory(prefix="qsearch-") as spool:
        data = prepare_data(
            given,
            inputs,
            name=name,
            preprocess=read_preprocess(preprocess),
            spool_folder=Path(spool),
        )
        dataset = open_dataset(data.ref, inputs)
        sums = MetricSums(
            ("top1",) if data.has_labels else (), has_labels=data.has_labels, has_reference=False
        )
        digest = hashlib.sha256()
        begin, begin_cpu = time.monotonic(), time.process_time()
        for batch in model_batches(dataset, data.samples, inputs, _CHUNK):
            outputs = [out[: batch.count] for out in module.run(batch.inputs)]
            for sample in range(batch.count):
                for out in outputs:
                    digest.update(np.ascontiguousarray(out[sample], "<f4").tobytes())
            sums.add(outputs, None, batch.labels)
        return {
            "top1": sums.results().get("top1"),
            "n": data.count,
            "outputs_sha256": digest.hexdigest(),
            "wall_s": round(time.monotonic() - begin, 3),
            "cpu_s": round(time.process_time() - begin_cpu, 3),
        }


def text_of(path: Path, after: str | None, dim: Any, brief: bool) -> str:
    """See ``qsearch.api.show_text``."""
    return text(read_module(path, dims=named_dims(dim), after=after), brief_constants=brief)


def drawing_of(path: Path, format: str, after: str | None, dim: Any) -> str:
    """See ``qsearch.api.draw``."""
    return draw(read_module(path, dims=named_dims(dim), after=after), format)
