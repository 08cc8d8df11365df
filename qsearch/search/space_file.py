"""The search space as data: ``--space space.yaml``, the same as a mapping in Python or below
``space:`` of a ``-c`` file, and what ``doctor --space-out`` writes.

    fields:
      weight_granularity: [channel, tensor]
      calibrate_mode: [mse, percentile]
      percentile: {values: [0.999, 0.9999], when: {calibrate_mode: [percentile]}}
      smooth_alpha: {from: 0.3, to: 0.9, step: 0.2}
    layers:
      nbit_weight: [4, 6, 8]          # and float, where the fields let a module have float parts
      except: [conv_0]
      nbit_input: {gemm_0: 16}        # bits of what a layer reads; of several values one is tried

Fields are those of QConfig, searched in the order of the file; a field that is not named stays as
``QConfig.recommended`` has it, or takes its only value. ``layers`` lets single layers differ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import yaml

from compiler.errors import (
    CompilerError,
    check_known,
    legal_names,
    raised_as,
)
from compiler.ir.module import IRModule
from compiler.pipeline import tflite_file
from compiler.qtypes.layer_choices import (
    OTHERS,
    POINT_BITS,
    SCORES,
    TABLES,
    WEIGHT_BITS,
    LayerChoices,
    layer_choices,
)
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import (
    FLOAT_BITS,
    build_candidate,
    given_points,
    sequential_seconds,
    without_data,
)
from compiler.quantize.bits.wide_inputs import WideInputs, wide_inputs
from compiler.quantize.weight_rounding.sequential_rounding import MOST_SECONDS
from compiler.quantize.weighted_calls import weighted_calls
from compiler.targets.engine.library import is_available, load_library
from qsearch.errors import SettingsError
from qsearch.search.layer_space import LayerSpace, choice_of, weighted_layers
from qsearch.search.optuna_study import AUTO
from qsearch.search.space import (
    FLOAT_LAYER,
    UNWEIGHTED,
    Parameter,
    Space,
    Value,
    default_space,
    input_layer,
    input_parameter,
    is_layer_weight,
    modes_of,
    to_qconfig,
    value_in,
)
from qsearch.settings.config import read_config_file
from qsearch.settings.launch_settings import Settings
from workers.metrics.size import LITERT, QDQ, fields_of
from workers.user_code import UserCode, imported_code

MOST_CHOICES: Final = 1000
"""Values of one field; a finer range than this gains nothing."""

_SECTIONS: Final = ("fields", "layers")
_FIELD_KEYS: Final = ("values", "when", "from", "to", "step", "costly")
_LAYER_KEYS: Final = ("nbit_weight", "only", "except", "nbit_input")
_NOT_SEARCHED: Final = ("layers", "do_simulation", "debug_enabled_ops", "prerequisite_level")


@dataclass(frozen=True, slots=True)
class SpaceFile:
    """Content of a space file.

    Attributes:
        space: the fields.
        weight_bits: choices of bits of single layers, rising, with ``FLOAT_BITS`` for layers that
            stay in float; empty where layers do not differ.
        layers: names of the layers that may differ.
        inputs: bits of what single layers read in every trial; parameters are searched ones.
    """

    space: Space
    weight_bits: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()
    inputs: LayerChoices = LayerChoices()  # noqa: RUF009 (immutable)


def read_space(source: str | Path | Mapping[str, Any], layers: Sequence[str]) -> SpaceFile:
    """Read a file, or a mapping with the same content.

    Args:
        source: path of a YAML, TOML or JSON file, or its content.
        layers: names of the model's layers that have weights.
    Raises:
        SettingsError: unknown section, field, layer or key; a value that the field may not have.
    """
    where = "space" if isinstance(source, Mapping) else str(source)
    if isinstance(source, Mapping):
        given = source
    else:
        given = read_config_file(source)
    _check_keys(given, _SECTIONS, where)
    rows = _mapping(given.get("fields", {}), f"{where}: fields")
    legal = [f.name for f in fields(QConfig) if f.name not in _NOT_SEARCHED]
    _check_keys(rows, legal, f"{where}: fields")
    found: list[Parameter] = []
    for name, row in rows.items():
        place = f"{where}: {name}"
        fixed = {p.name: p.choices[0] for p in found if len(p.choices) == 1}
        choices = _choices(name, row, place, fixed=fixed)
        when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
        if isinstance(row, Mapping) and "when" in row:
            when = _conditions(row["when"], {p.name: p.choices for p in found}, place)
        costly = _costly(name, row, choices, place)
        found.append(Parameter(name, choices, when, costly))
    if not found:
        raise SettingsError(
            "the space has no field",
            where=where,
            fix="name some under `fields:`; qsearch doctor --space-out writes those of the default",
        )
    bits, differing = _layer_section(section := given.get("layers"), layers, f"{where}: layers")
    if FLOAT_BITS in bits:
        _check_float_parts(found, f"{where}: layers")
    inputs = _inputs(section, layers, f"{where}: layers: nbit_input", found)
    return SpaceFile(Space(tuple(found)), bits, differing, inputs)


def write_space(asked: SpaceFile, heading: str = "") -> str:
    """The text of a file that ``read_space`` reads as this; the layers that differ as a comment."""
    rows: dict[str, Any] = {}
    inputs: dict[str, Any] = dict(asked.inputs.input_bits)
    for parameter in asked.space.parameters:
        row: dict[str, Any] = {"values": list(parameter.choices)}
        row["when"] = {input_layer(name) or name: list(values) for name, values in parameter.when}
        row["costly"] = list(parameter.costly)
        kept = {key: given for key, given in row.items() if given}
        layer = input_layer(parameter.name)
        name, into = (layer, inputs) if layer else (parameter.name, rows)
        into[name] = kept if len(kept) > 1 else row["values"]
    lines = [f"# {line}" for line in heading.splitlines()]
    lines.append("fields:")
    lines += [f"  {on_a_line({name: row})[1:-1]}" for name, row in rows.items()]
    if asked.weight_bits or inputs:
        lines.append("layers:")
    if inputs:
        lines.append(f"  nbit_input: {on_a_line(inputs)}")
    if asked.weight_bits:
        choices = ", ".join(str(choice_of(bits)) for bits in asked.weight_bits)
        lines.append(f"  nbit_weight: [{choices}]")
        lines.append("  # all of these unless named under `only:` or `except:`")
        lines += [f"  #   {name}" for name in asked.layers]
    return "\n".join(lines) + "\n"


def on_a_line(content: Mapping[str, Any]) -> str:
    """Return a mapping as a line of YAML, with its braces."""
    text = yaml.safe_dump(content, default_flow_style=True, sort_keys=False, width=10_000)
    return str(text).strip()


def fitting_start(space: Space, start: QConfig) -> QConfig:
    """``start``, with the first choice for each field whose value the space does not have."""
    fields_of = start.to_dict()
    changes = {
        p.name: p.choices[0]
        for p in space.parameters
        if value_in(fields_of, p.name) not in p.choices
    }
    if changes:
        return to_qconfig(changes, start)
    return start


def _choices(
    name: str,
    row: Any,
    place: str,
    layer: str | None = None,
    fixed: Mapping[str, Value] = MappingProxyType({}),
) -> tuple[Value, ...]:
    """Values of a field of QConfig, or of one of its layers.

    Args:
        fixed: fields above it that have one value.
    """
    if isinstance(row, Mapping):
        _check_keys(row, _FIELD_KEYS, place)
        if "values" in row:
            values = row["values"]
        else:
            values = _range(row, place)
    else:
        values = row
    if not isinstance(values, list):
        values = [values]
    if not values or len(values) > MOST_CHOICES:
        raise SettingsError(
            f"{name} has {len(values)} values", where=place, fix=f"give it 1 to {MOST_CHOICES}"
        )
    kept: list[Value] = []
    for value in values:
        try:
            if layer is None:
                own = {name: value}
            else:
                own = {"layers": {layer: {name: value}}}
            own = {**fixed, **own}
            made = QConfig.recommended(**own).to_dict()
            checked = (made if layer is None else made["layers"].get(layer, made))[name]
        except CompilerError as error:
            raise SettingsError(error.what, where=place, fix=error.fix) from error
        if checked not in kept or any(type(k) is not type(checked) for k in kept if k == checked):
            kept.append(checked)
    return tuple(kept)


def _costly(name: str, row: Any, choices: tuple[Value, ...], place: str) -> tuple[Value, ...]:
    if not isinstance(row, Mapping) or "costly" not in row:
        return ()
    if isinstance(row["costly"], list):
        asked = row["costly"]
    else:
        asked = [row["costly"]]
    found = tuple(value for value in choices if value in asked)
    if not 0 < len(found) == len(asked) < len(choices):
        what = f"{asked} cannot be the costly values of {name}"
        raise SettingsError(what, where=place, fix=f"name some of {list(choices)}, but not all")
    return found


def _range(row: Mapping[str, Any], place: str) -> list[Value]:
    with raised_as(
        SettingsError,
        f"the range {dict(row)} cannot be used",
        KeyError,
        TypeError,
        ValueError,
        ZeroDivisionError,
        where=place,
        fix="{from: 0.1, to: 0.9, step: 0.2}, or {values: […]}",
    ):
        low, high, step = (row[key] for key in ("from", "to", "step"))
        count = int(round((high - low) / step, 9)) + 1
        if step <= 0 or count < 1:
            raise ValueError("it has no value")
    whole = all(isinstance(number, int) for number in (low, high, step))
    points = [low + place_ * step for place_ in range(min(count, MOST_CHOICES + 1))]
    if whole:
        return points
    return [round(float(point), 9) for point in points]


def _conditions(
    when: Any, known: Mapping[str, tuple[Value, ...]], place: str
) -> tuple[tuple[str, tuple[Value, ...]], ...]:
    rows = _mapping(when, f"{place}: when")
    before = "conditions look at fields before this one"
    if not known:
        raise SettingsError(
            f"there is none before it: {before}",
            where=f"{place}: when",
            fix="write the fields it depends on above it",
        )
    _check_keys(rows, list(known), f"{place}: when", before)
    found = []
    for name, values in rows.items():
        if isinstance(values, list):
            wanted = tuple(values)
        else:
            wanted = (values,)
        for value in wanted:
            if value not in known[name]:
                legal = map(str, known[name])
                what = f"{name} is never {value!r}"
                raise SettingsError(
                    what, where=f"{place}: when", fix=legal_names(str(value), legal)
                )
        found.append((name, wanted))
    return tuple(found)


def _layer_section(
    given: Any, layers: Sequence[str], place: str
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    if given is None:
        return (), ()
    rows = _mapping(given, place)
    _check_keys(rows, _LAYER_KEYS, place)
    if set(rows) == {"nbit_input"}:
        return (), ()
    given_bits = rows.get("nbit_weight")
    low, high = WEIGHT_BITS
    bits = given_bits if isinstance(given_bits, list) else []
    fits = [b == FLOAT_LAYER or (type(b) is int and low <= b <= high) for b in bits]
    if not (bits and all(fits)):
        raise SettingsError(
            f"nbit_weight cannot be {given_bits!r}",
            where=place,
            fix=f"a list of {low} to {high}, or {FLOAT_LAYER}",
        )
    named = _layer_names(rows.get("only", list(layers)), layers, f"{place}: only")
    left_out = _layer_names(rows.get("except", []), layers, f"{place}: except")
    numbers = sorted({FLOAT_BITS if choice == FLOAT_LAYER else choice for choice in bits})
    return tuple(numbers), tuple(n for n in layers if n in named and n not in left_out)


def _inputs(given: Any, layers: Sequence[str], place: str, found: list[Parameter]) -> LayerChoices:
    """Bits of inputs in every trial; those that are searched go to ``found``."""
    rows = _mapping((given or {}).get("nbit_input", {}), place)
    _layer_names(list(rows), (*layers, *POINT_BITS), place)
    fixed: dict[str, dict[str, Any]] = {}
    known: dict[str, tuple[Value, ...]] = {}
    for layer, row in rows.items():
        if not isinstance(row, list | Mapping):
            fixed[layer] = {"nbit_input": row}
            continue
        where = f"{place}: {layer}"
        choices = _choices("nbit_input", row, where, layer)
        costly = _costly("nbit_input", row, choices, where)
        asked = row.get("when") if isinstance(row, Mapping) else None
        given_ = _conditions(asked, known, where) if asked else ()
        when = tuple((input_parameter(name), values) for name, values in given_)
        found.append(Parameter(input_parameter(layer), choices, when, costly))
        known[layer] = choices
    try:
        return layer_choices("layers", fixed)
    except CompilerError as error:
        raise SettingsError(error.what, where=place, fix=error.fix) from error


def _check_float_parts(fields_: Sequence[Parameter], place: str) -> None:
    """A layer can stay in float only where no module must be integers throughout."""
    integral = QConfig.recommended().partition_conversions
    chosen = [p.choices for p in fields_ if p.name == "partition_conversions"]
    if integral in (chosen[0] if chosen else (integral,)):
        raise SettingsError(
            f"{FLOAT_LAYER} layers do not fit partition_conversions {integral!r}",
            where=place,
            fix=f"drop {FLOAT_LAYER}, or put `partition_conversions: [enabled]` below fields",
        )


def _layer_names(given: Any, layers: Sequence[str], place: str) -> list[str]:
    names = given if isinstance(given, list) else [given]
    for name in names:
        what = f"the model has no layer {name!r} with a weight"
        check_known(name, layers, what, SettingsError, place)
    return names


def _mapping(value: Any, place: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingsError(
            f"expected names with values, got {value!r}",
            where=place,
            fix="write `name: value` lines below it",
        )
    return value


def _check_keys(
    given: Mapping[str, Any], legal: Sequence[str], place: str, why: str | None = None
) -> None:
    for key in given:
        what = f"unknown name {str(key)!r}" + (f": {why}" if why else "")
        check_known(key, legal, what, SettingsError, place)


LAYER_BITS: Final = (2, 3, 4, 5, 6, 7, 8)
"""Bits that layers may choose where size counts and no file says otherwise."""
_QDQ_BITS: Final = (2, 4, 8)
"""Those that a QDQ file stores in as many bits."""
FASTER_BITS: Final = (4, 8)
"""Those that layers may choose where only time counts."""
_OF_SIZE: Final = ("size", "bit_operations", "flash")
_SECONDS_OF_EACH: Final = 2
"""CPU seconds of sequential rounding in each trial; where it takes longer, it is a choice of few
trials (``Parameter.costly``) …"""
_SECONDS_OF_LAYERS: Final = 20
"""… but where layers choose their bits, each trial takes as long, or none."""


@dataclass(frozen=True, slots=True)
class SearchedSpace:
    """Space of a search, and its start.

    Attributes:
        space: parameters; with a sampler that knows no stages also the raw ones of the layers.
        start: the first trial.
        layers: what single layers may choose; None where they do not differ.
    """

    space: Space
    start: QConfig
    layers: LayerSpace | None


def searched_space(
    settings: Settings,
    module: IRModule,
    metric: str | None,
    fully_integral: bool = True,
    code: UserCode = (),
) -> SearchedSpace:
    """Return the space that the settings ask to search in a prepared module.

    Args:
        fully_integral: the diagnosis; otherwise modules with float parts go first, if any.
        code: the user's modules.
    Raises:
        SettingsError: the file of ``--space`` asks for what does not exist.
    """
    recommended = QConfig.recommended()
    weighted = bool(weighted_calls(module["main"]))
    weights = weighted_layers(module) if weighted else {}
    names = tuple(weights)
    fields = dict(fields_of(settings.for_, settings.assume_vnni))
    if fields:
        fields.setdefault("layers", {})
    if settings.space is not None:
        asked = read_space(settings.space, names)
        fields.pop("weight_scale", None)  # the file's own counts
        if settings.for_ == QDQ:
            asked = _for_qdq(asked, fields)
    else:
        costs = {metric, *settings.minimize, *dict(settings.at_most)}
        counts = settings.max_size is not None or bool(costs.intersection(_OF_SIZE))
        of_form = _QDQ_BITS if settings.for_ == QDQ else () if fields else LAYER_BITS
        # Files for TFLM hold bytes, and all values between operators have equal bits.
        bits: tuple[int, ...] = of_form if counts else ()
        here = "latency" in costs and settings.measure is None
        if here and weighted and not bits and not fields:
            names = faster_layers(module)
            bits = FASTER_BITS if names else ()
        seconds = sequential_seconds(module)
        # Units of accelerators take 8 bits, a quantized model those of its points.
        given = bool(fields) or settings.hw is not None or bool(given_points(module).count)
        wide = WideInputs() if given else module.view(wide_inputs)
        tiny = {} if counts or settings.minimize else wide.tiny
        modules = {source.name for each in code for source in each.sources}
        choices: dict[str, tuple[Value, ...]] = {"calibrate_mode": modes_of(modules)}
        fixed = {**wide.fields, **fields}
        choices |= {name: (value,) for name, value in fixed.items() if name != "layers"}
        if settings.allow_float:
            choices["partition_conversions"] = ("fully_integral", "enabled", "disabled")
        if not weighted:
            choices |= UNWEIGHTED
        elif seconds > (_SECONDS_OF_LAYERS if counts else MOST_SECONDS):
            choices["weight_rounding"] = ("corrected",)
        costly = weighted and _SECONDS_OF_EACH < seconds <= MOST_SECONDS and not counts
        points = [{name: nbit} for name, nbit in wide.searched.items()]
        # A table of 12 bits is as large as a small layer, values of 15 take two bytes.
        dear = ([TABLES, SCORES] if counts else []) + ([OTHERS] if "ram" in costs else [])
        points += [{n: wide.layers[n]["nbit_input"]} for n in dear if n in wide.layers]
        space = default_space(choices, costly, [*points, tiny])
        own = fields.get("layers", wide.layers)
        asked = SpaceFile(space, bits, names, layer_choices("layers", own))
    start = fitting_start(asked.space, recommended if fully_integral else _mixed(asked.space))
    start = start.with_overrides(layers=asked.inputs)
    if settings.for_ == QDQ:
        del fields["layers"]  # those of the file have been looked at
    if fields:
        _refuse_without_file(start, module, settings.for_, fields)
    if len(asked.weight_bits) < 2 or not asked.layers:
        return SearchedSpace(asked.space, start, None)
    # Tables that have more bits than other weights say so, because points may give them as few.
    wide_tables = {
        name: {"nbit_weight": weight.nbit_weight}
        for name, weight in weights.items()
        if recommended.nbit_weight < weight.nbit_weight < FLOAT_BITS
    }
    start = start.with_overrides(layers={**start.layers.to_dict(), **wide_tables})
    elements = {name: weights[name].weight_elements for name in asked.layers}
    layers = LayerSpace(elements, asked.weight_bits)
    if settings.sampler == AUTO:
        return SearchedSpace(asked.space, start, layers)
    whole = Space((*asked.space.parameters, *layers.raw()))
    return SearchedSpace(whole, fitting_start(whole, start), layers)


def _for_qdq(asked: SpaceFile, fields: Mapping[str, Any]) -> SpaceFile:
    """Return the content of a user's file with the values that all QDQ files have: 8 bits.

    Raises:
        SettingsError: it asks for weights of other bits, or for more bits of values.
    """
    inputs = (p for p in asked.space.parameters if p.name == "nbit_input" or input_layer(p.name))
    searched = [one for p in inputs for one in p.choices if isinstance(one, int)]
    most = max(asked.inputs.most_input_bits, *searched, 0)
    odd = sorted(set(asked.weight_bits) - {*_QDQ_BITS, FLOAT_BITS})
    if odd or most > fields["nbit_input"]:
        bits = ", ".join(map(str, odd or [most]))
        where, legal = ("nbit_weight", _QDQ_BITS) if odd else ("nbit_input", _QDQ_BITS[-1:])
        raise SettingsError(
            f"a QDQ file has no {bits} bits",
            where=f"layers.{where} of --space, with --for {QDQ}",
            fix=f"choose among {', '.join(map(str, legal))}, or leave --for out",
        )
    layers = {**asked.inputs.to_dict(), **fields["layers"]}
    return replace(asked, inputs=layer_choices("layers", layers))


def _refuse_without_file(
    start: QConfig, module: IRModule, form: str, fields: Mapping[str, Any]
) -> None:
    """Refuse a model that has no LiteRT file, before a search for one.

    Raises:
        SettingsError: the space holds modules that are not for it.
        TfliteExportError: an operator has no form there.
    """
    held = start.to_dict()
    for name, value in fields.items():
        if held[name] != value:
            raise SettingsError(
                f"a file for {form} has no {name} {held[name]}",
                where=f"--space, with --for {form}",
                fix=f"write {name}: [{value}] there, or leave --for out",
            )
    if form in LITERT:  # what has no form in a QDQ file is written as integers
        tflite_file(build_candidate(module, without_data(start), None).module)


def faster_layers(module: IRModule) -> tuple[str, ...]:
    """Layers that take less time on this machine with 4 bits: of one row and many weights."""
    least = load_library().nibbles if is_available() else 0
    layers = weighted_layers(module).values() if least else ()
    return tuple(
        layer.name for layer in layers if layer.multiplications == layer.weight_elements >= least
    )


def _mixed(space: Space) -> QConfig:
    """The recommended configuration, with float parts where ``space`` has them."""
    recommended = QConfig.recommended()
    name = "partition_conversions"
    for value in (v for p in space.parameters if p.name == name for v in p.choices):
        if value != recommended.partition_conversions:
            return to_qconfig({name: value}, recommended)
    return recommended


def described_space(settings: Settings, module: IRModule, model: str, fully_integral: bool) -> str:
    """The space that a search of a prepared module with these settings has, as the text of a file.

    Args:
        fully_integral: of the diagnosis of the recommended configuration.
    """
    found = searched_space(settings, module, settings.metric, fully_integral, imported_code())
    heading = (
        f"What `qsearch launch` searches in {model}. Change it and give it to --space.\n"
        "Fields are those of QConfig; a field that is not named stays as recommended."
    )
    if found.layers is not None:
        fields = Space(tuple(p for p in found.space.parameters if not is_layer_weight(p.name)))
        names = tuple(found.layers.elements)
        bits_ = found.layers.bits
        return write_space(SpaceFile(fields, bits_, names, found.start.layers), heading)
    text = write_space(SpaceFile(found.space, inputs=found.start.layers), heading)
    if not weighted_calls(module["main"]):
        return text
    if "\nlayers:" in text:
        section = ""
    else:
        section = "# layers:                  # layers may differ\n"
    return f"{text}{section}#   nbit_weight: [{', '.join(map(str, LAYER_BITS))}]\n"
