"""What a study searches: the file of ``--space``, or what suits the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._calibrate.weighted_calls import weighted_calls
from qsearch.search.layer_space import LayerSpace, weight_elements
from qsearch.search.space import PERCENTILES, Space, default_space
from qsearch.search.space_file import SpaceFile, fitting_start, read_space, write_space
from qsearch.settings import Settings

LAYER_BITS: Final = (4, 6, 8)
"""Bits that layers may choose where size counts and no file says otherwise."""
_OF_SIZE: Final = ("size", "bit_operations")


@dataclass(frozen=True, slots=True)
class SearchedSpace:
    """What is searched, and from where.

    Attributes:
        space: parameters; with a sampler that knows no stages also the raw ones of the layers.
        start: the first trial.
        layers: what single layers may choose; None where they do not differ.
    """

    space: Space
    start: QConfig
    layers: LayerSpace | None


def searched_space(settings: Settings, module: IRModule, metric: str) -> SearchedSpace:
    """What the settings ask to search in a prepared module.

    Raises:
        SettingsError: the file of ``--space`` asks for what does not exist.
    """
    recommended = QConfig.recommended()
    weighted = bool(weighted_calls(module["main"]))
    elements = weight_elements(module, recommended) if weighted else {}
    if settings.space is not None:
        asked = read_space(settings.space, tuple(elements))
    else:
        costs = {metric, *settings.minimize, *dict(settings.at_most)}
        counts = settings.max_size is not None or bool(costs.intersection(_OF_SIZE))
        bits = LAYER_BITS if counts else ()
        asked = SpaceFile(default_space(settings.allow_float, weighted), bits, tuple(elements))
    start = fitting_start(asked.space, recommended)
    if len(asked.weight_bits) < 2 or not asked.layers:
        return SearchedSpace(asked.space, start, None)
    layers = LayerSpace({name: elements[name] for name in asked.layers}, asked.weight_bits)
    if settings.sampler == "tpe":
        return SearchedSpace(asked.space, start, layers)
    whole = Space((*asked.space.parameters, *layers.raw()))
    return SearchedSpace(whole, fitting_start(whole, start), layers)


def percentiles_of(space: Space) -> list[float]:
    """The percentiles that calibration must measure: those of the space and the usual ones."""
    asked = [p.choices for p in space.parameters if p.name == "percentile"]
    found = {float(value) for choices in asked for value in choices if value is not None}
    return sorted(found.union(PERCENTILES))


def described_space(module: IRModule, model: str) -> str:
    """The default space of a prepared module as the text of a file, layers included."""
    weighted = bool(weighted_calls(module["main"]))
    elements = weight_elements(module, QConfig.recommended()) if weighted else {}
    heading = (
        f"What `qsearch launch` searches in {model}. Change it and give it to --space.\n"
        "Fields are those of QConfig; the section `layers` is searched where it is there."
    )
    bits = LAYER_BITS if elements else ()
    return write_space(default_space(weighted=weighted), bits, tuple(elements), heading)
