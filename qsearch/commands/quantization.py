"""One configuration without a search, in this process."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from compiler.errors import NotFullyIntegralError, check_known
from compiler.ir.blob import module_sha256
from compiler.ir.module import IRModule
from compiler.qtypes.layer_choices import REST
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, Decision, sequential_seconds
from compiler.quantize.scales.given_points import given_points
from compiler.runtime.artifact import QModule
from qsearch.data.prepared_data import Batches
from qsearch.errors import SettingsError
from qsearch.opening.import_check import check_import
from qsearch.opening.open_model import DataSource, OpenedModel, found_model, open_model
from qsearch.run.progress import Progress
from qsearch.search.audit import AUDIT, audited
from qsearch.search.closeness import KEY as CLOSENESS
from qsearch.search.closeness import Closeness, compared_whole
from qsearch.search.shipped import Shipped, samples_of
from qsearch.search.trying import fields_of_text
from qsearch.settings.launch_settings import CutAt
from qsearch.settings.parameters import (
    Calib,
    Dims,
    From,
    Model,
    Preprocess,
    Qconfig,
    Seed,
    SetInput,
    Until,
)
from workers.metrics.size import DEFAULT_FORM, RESTRICTED, fields_of
from workers.process import Stopwatch, code_version, library_versions
from workers.user_code import hashes, imported_code

log = logging.getLogger("qsearch.commands.quantization")

COMPARED_DATA: Final = "calibration data"
"""It chose the ranges: other data may be farther from the float model."""

_KEPT: Final = (
    "%d operators stay in float, as in the file (-v lists them): `qsearch verify` bounds the "
    "integers alone and exits 1, C needs a processor with floats and may round them otherwise"
)

AUTO: Final = "auto"
"""The configuration that the statistics of the data suggest."""


def quantize(
    model: Model,
    calib: Calib = None,
    qconfig: Qconfig = "auto",
    *,
    preprocess: Preprocess = None,
    seed: Seed = 0,
    dim: Dims = (),
    until: Until = (),
    from_: From = (),
    set_input: SetInput = (),
    keep_float_parts: bool = False,
    progress: Progress | None = None,
) -> QModule:
    """Quantize with one configuration, without a search, in this process.

    A model with nodes that have no integer form is cut around them: they stay in float in front of
    the module or behind it, and ``run`` runs all of them. The reasons of a choice are in the
    module's provenance (``compiler.quantize.choose``).

    Args:
        qconfig: auto chooses from the calibration data; auto,nbit_weight=4 changes its choice,
            auto,for=tflite is for that form; k=v,k=[v] or a qconfig.json changes the recommended
            configuration (auto)
        keep_float_parts: leave in float what an int8 file leaves in float (softmax, norms): the
            module is then not on integers only
        progress: shows each pass over the data; None shows nothing.
    Raises:
        CompilerError: the model, data or configuration cannot be used.
    """
    progress = progress or Progress()
    changes = changes_of_auto(qconfig)
    config = resolve_qconfig(qconfig) if changes is None else None
    if keep_float_parts:
        if config is None:
            config = None
        else:
            config = config.with_overrides(**_floats_kept(config.layers))
        if changes is None:
            changes = None
        else:
            changes = changes | _floats_kept(changes.get("layers", {}))
    data = DataSource.of(calib, preprocess, seed)
    with found_model(model, data) as (source, given, folder):
        opened = open_model(source, given, dim, CutAt(until, from_, set_input), folder)
        if keep_float_parts and not given_points(opened.module).count:
            raise SettingsError(
                "--keep-float-parts is for a model with quantization points of its own, and this "
                "one has none",
                where=str(source.path.name),
                fix="give a file with QuantizeLinear, or leave the option out",
            )
        try:
            return _quantized(opened, given, config, changes, progress)
        except NotFullyIntegralError:
            cut, _ = opened.on_integers(config or QConfig.recommended())
            if cut is opened:
                raise
        return _quantized(cut, given, config, changes, progress)


def _quantized(
    opened: OpenedModel,
    given: DataSource,
    config: QConfig | None,
    changes: Mapping[str, Any] | None,
    progress: Progress,
) -> QModule:
    """Quantize a model that was opened; ``config`` None chooses, with the changes."""
    source = opened.source
    module = opened.module
    inputs = opened.inputs
    data = opened.data(given, "calib")
    check_import(opened, data)
    # Both hold the whole model for a moment: before calibration holds more.
    kept = source.kept
    digest = module_sha256(module)
    calibration = Calibration(module, Batches(data, inputs, told=progress.reached))
    decisions: tuple[Decision, ...] = ()
    watch = Stopwatch()
    if config is None:
        config, decisions = chosen_config(calibration, module, changes or {})
        # The audit and the checks run a few of the samples, so they take half of the passes.
        if config.sequential:
            rounding = sequential_seconds(module)
        else:
            rounding = 0.0
        slower = watch.wall_s / max(watch.cpu_s, 1e-3)
        progress.expect(
            watch.wall_s / 2 + slower * rounding, "the module, its audit and its checks"
        )
    if calibration.scales_for(config) and data.synthetic:
        log.warning(
            "no calibration data was given: activation ranges come from random inputs "
            "and will not fit real ones"
        )
    progress.phase("audit of the points, and checks", 1)
    audit = audited(
        calibration,
        config,
        calibration.candidate(config),
        data,
        inputs,
        mends=changes is not None,
        fixed=changes or {},
    )
    config = audit.qconfig
    shipped = Shipped.of(audit.candidate)
    audited_as = audit.to_dict()
    del audit  # its simulated module is as large as the model
    outputs = [port.name for port in source.interface.outputs]
    for call in shipped.float_ops:
        log.info("stays float: %s", call)
    if REST in config.layers:
        log.warning(_KEPT, len(shipped.float_ops))
    whole = compared_whole(source.pipeline)
    closeness = Closeness.of(module, shipped.module, data, inputs, outputs, whole, source.structure)
    known = {
        **_told(closeness, audited_as),
        "model_sha256": source.sha256,
        "module_sha256": digest,
        "calib_sha256": data.sha256,
        "seed": int(given.seed),
        **({"decisions": [str(one) for one in decisions]} if decisions else {}),
        **({"imports": hashes(code)} if (code := imported_code()) else {}),
        **kept,
        "code_version": code_version(),
        "libraries": library_versions(),
    }
    samples = samples_of(shipped.module, data, inputs)
    around = None if source.parts is None else source.parts.around
    return shipped.packed(config, known, samples, around)


def _floats_kept(layers: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration that leaves in float what the model leaves in float."""
    return {"layers": {**layers, REST: {"float": True}}, "partition_conversions": "enabled"}


def _told(closeness: Closeness | None, audit: Mapping[str, Any]) -> dict[str, Any]:
    """The closeness and the audit as the provenance keeps them; a warning where the outputs are
    far."""
    found: dict[str, Any] = {AUDIT: audit} if audit else {}
    if closeness is None:
        return found
    if not closeness.close:
        log.warning(closeness.sentence(COMPARED_DATA, found.get(AUDIT, {}).get("worst") or ""))
    return {**found, CLOSENESS: asdict(closeness)}


def chosen_config(
    calibration: Calibration, module: IRModule, changes: Mapping[str, Any]
) -> tuple[QConfig, tuple[Decision, ...]]:
    """Choose a configuration from the statistics but for some fields, with the reasons for the
    others."""
    chosen, decisions = calibration.choose()
    config = chosen.with_overrides(**changes)
    return config, tuple(one for one in decisions if one.field not in changes)


def changes_of_auto(given: QConfig | Mapping[str, Any] | str | None) -> dict[str, Any] | None:
    """The fields that differ from the automatic choice; None where it was not asked for.

    ``auto,for=qdq`` are the fields of every module whose file that form is.

    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: a form that asks for no fields.
    """
    if given is None or given == AUTO:
        return {}
    if isinstance(given, str):
        changes = _told_to_auto(given)
    else:
        changes = None
    if changes is None:
        return None
    form = changes.pop("for", None)
    if form is not None:
        what = f"no form {form!r} asks for fields of its own"
        check_known(form, RESTRICTED, what, SettingsError, f"qconfig {given}")
        changes = {**fields_of(form), **changes}
    if form is not None or changes.get("requantization") == "tflite":
        # What would be chosen has 16 bits at some layers; these files have not.
        changes.setdefault("layers", {})
    return changes


def form_of_auto(given: str) -> str:
    """The form that ``auto,for=FORM`` names; the default where it names none."""
    return str((_told_to_auto(given) or {}).get("for", DEFAULT_FORM))


def _told_to_auto(given: str) -> dict[str, Any] | None:
    """The assignments behind ``auto,``; None where there are none."""
    found = given.removeprefix(f"{AUTO},")
    if found == given:
        return None
    return QConfig.parse_overrides(found, ("for",))


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
    if not isinstance(given, str):
        raise SettingsError(
            f"a configuration of type {type(given).__name__} cannot be used",
            where="qconfig",
            fix="give a QConfig, a mapping, 'k=v,…', or the path of a qconfig.json",
        )
    return QConfig.recommended(**fields_of_text(given))
