"""The search space: which fields of a QConfig are searched, over which values, and when.

A parameter has an effect only while its conditions hold (``percentile`` only when
``calibrate_mode`` is "percentile"); one without effect is neither suggested nor hashed, so two
ways of writing one configuration are one trial.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compiler.qtypes.options import options_of
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.scales.modes import calibrate_modes
from qsearch.data.prepared_data import content_hash
from qsearch.errors import SearchError

if TYPE_CHECKING:
    from optuna import Trial

Value = str | int | float | bool | None
Params = dict[str, Value]

_OPTIONS: Final = options_of(QConfig)

LAYER_PREFIX: Final = "layers."
_WEIGHT_BITS: Final = ".nbit_weight"
_INPUT_BITS: Final = ".nbit_input"
FLOAT_LAYER: Final = "float"
"""Instead of bits: the layer stays in float."""

_FIRST: Final = (
    "weight_granularity",
    "activation_scheme",
    "weight_scale",
    "calibrate_mode",
    "percentile",
    "global_scale",
)
"""Fields in the order of a grid, those that are worth most first; the others follow."""
UNWEIGHTED: Final[dict[str, tuple[Value, ...]]] = {"smooth_alpha": (), "weight_rounding": ()}
"""Fields of a model without weights, which has nothing to rescale or to round."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One searched field of QConfig.

    Attributes:
        name: the field; ``layer_parameter`` names the bits of a single layer.
        choices: its values, in the order in which a grid visits them.
        when: earlier parameters and the values of theirs for which this one has an effect.
        costly: choices that take as long as several trials. The sampler ``auto`` proposes the best
            trial with one of them at trials 16, 64 and 256; no other proposal has one.
    """

    name: str
    choices: tuple[Value, ...]
    when: tuple[tuple[str, tuple[Value, ...]], ...] = ()
    costly: tuple[Value, ...] = ()

    @property
    def usual(self) -> tuple[Value, ...]:
        """The choices that are not costly ones, in their order."""
        if not self.costly:
            return self.choices
        return tuple(choice for choice in self.choices if choice not in self.costly)

    def active(self, params: Mapping[str, Value]) -> bool:
        """Return whether the parameter has an effect beside the values chosen so far."""
        # Asked thousands of times for each proposal: most parameters have no condition.
        return not self.when or all(params.get(name) in values for name, values in self.when)


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters in the order of suggestion; conditions look back only."""

    parameters: tuple[Parameter, ...]

    def __post_init__(self) -> None:
        known: set[str] = set()
        for parameter in self.parameters:
            missing = {name for name, _ in parameter.when} - known
            if missing or not parameter.usual or parameter.name in known:
                raise SearchError(
                    f"parameter {parameter.name!r} of the search space is not well formed",
                    where=f"conditions on {sorted(missing)}" if missing else "choices or name",
                    fix="name each parameter once, give it values, condition it on earlier ones",
                )
            known.add(parameter.name)

    def suggest(self, trial: Trial) -> Params:
        """Ask the sampler behind ``trial`` for a point of the space."""
        params: Params = {}
        for parameter in self.parameters:
            if parameter.active(params):
                choices = parameter.usual
                if len(choices) == 1:
                    params[parameter.name] = choices[0]
                else:
                    params[parameter.name] = trial.suggest_categorical(parameter.name, choices)
        return params

    def effective(self, params: Mapping[str, Value]) -> Params:
        """``params`` without parameters that have no effect; missing ones get the first choice."""
        kept: Params = {}
        for parameter in self.parameters:
            if parameter.active(kept):
                kept[parameter.name] = params.get(parameter.name, parameter.choices[0])
        return kept

    def is_costly(self, params: Mapping[str, Value]) -> bool:
        """Return whether a point has a costly choice."""
        return any(params.get(p.name) in p.costly for p in self.parameters if p.costly)

    def without_costly(self, params: Mapping[str, Value]) -> Params:
        """The point with the last usual choice in place of each costly one."""
        changed = {
            p.name: p.usual[-1]
            for p in self.parameters
            if p.costly and params.get(p.name) in p.costly
        }
        if changed:
            return self.effective({**params, **changed})
        return dict(params)

    def with_costly(self, params: Mapping[str, Value]) -> list[Params]:
        """Points that differ from ``params`` in one costly choice."""
        here = self.effective(params)
        return [
            self.effective({**here, p.name: choice})
            for p in self.parameters
            if p.active(here)
            for choice in p.costly
            if choice != here[p.name]
        ]

    def params_of(self, qconfig: QConfig) -> Params:
        """The point that stands for ``qconfig``.

        Raises:
            SearchError: a value of it is not among the choices.
        """
        fields = qconfig.to_dict()
        params: Params = {}
        for parameter in self.parameters:
            if parameter.active(params):
                value = value_in(fields, parameter.name)
                if value not in parameter.choices:
                    raise SearchError(
                        f"{parameter.name}={value!r} is not a point of the search space",
                        where=f"choices {list(parameter.choices)}",
                        fix="add the value to the space, or start from another configuration",
                    )
                params[parameter.name] = value
        return params

    def points(self) -> Iterator[Params]:
        """Every point once, the last parameter changing fastest."""
        stack: list[tuple[int, Params]] = [(0, {})]
        while stack:
            index, params = stack.pop()
            if index == len(self.parameters):
                yield params
                continue
            parameter = self.parameters[index]
            if not parameter.active(params):
                stack.append((index + 1, params))
                continue
            for choice in reversed(parameter.choices):
                stack.append((index + 1, {**params, parameter.name: choice}))

    def size(self, limit: int) -> int:
        """Number of points, or ``limit`` if there are at least so many."""
        return sum(1 for _ in islice(self.points(), limit))

    def changed(self, params: Mapping[str, Value], rng: np.random.Generator) -> list[Params]:
        """Points that differ from ``params`` in one value, in the order of the space.

        What becomes active only by the change takes a random value. Of a parameter with many
        choices some are drawn. No point has a costly choice.
        """
        here = self.effective(self.without_costly(params))
        points = []
        for parameter in self.parameters:
            if not parameter.active(here):
                continue
            others = [c for c in parameter.usual if c != here[parameter.name]]
            if len(others) > _CHANGED_AT_MOST:
                drawn = np.sort(rng.permutation(len(others))[:_CHANGED_AT_MOST])
                others = [others[int(place)] for place in drawn]
            points += [self._filled({**here, parameter.name: c}, rng) for c in others]
        return points

    def unseen_near(
        self, params: Params, seen: Callable[[Params], bool], seed: int
    ) -> Params | None:
        """A point that is not ``seen``, few changes away from ``params``.

        A seeded random walk, one parameter a step; when it finds nothing the whole space is
        enumerated if it is small. None when everything was seen but costly choices.
        """
        rng = np.random.default_rng(seed)
        here = self.without_costly(params)
        for _ in range(8 * len(self.parameters)):
            free = [p for p in self.parameters if p.active(here) and len(p.usual) > 1]
            if not free:
                break
            parameter = free[int(rng.integers(len(free)))]
            others = [c for c in parameter.usual if c != here.get(parameter.name)]
            # Newly active parameters get a random value as well, or they never leave the first.
            here[parameter.name] = others[int(rng.integers(len(others)))]
            here = self._filled(here, rng)
            if not seen(here):
                return here
        few = islice(self.points(), _ENUMERATE_AT_MOST)
        rest = [point for point in few if not self.is_costly(point) and not seen(point)]
        if rest:
            return rest[int(rng.integers(len(rest)))]
        return None

    def _filled(self, params: Params, rng: np.random.Generator) -> Params:
        filled: Params = {}
        for parameter in self.parameters:
            if parameter.active(filled):
                if parameter.name in params:
                    filled[parameter.name] = params[parameter.name]
                else:
                    choice = int(rng.integers(len(parameter.usual)))
                    filled[parameter.name] = parameter.usual[choice]
        return filled

    def to_dict(self) -> list[dict[str, Any]]:
        """Plain values, for the study's row."""
        return [
            {
                "name": p.name,
                "choices": list(p.choices),
                "when": {name: list(values) for name, values in p.when},
                **({"costly": list(p.costly)} if p.costly else {}),
            }
            for p in self.parameters
        ]

    @staticmethod
    def from_dict(rows: list[dict[str, Any]]) -> Space:
        """The space that ``to_dict`` wrote."""
        return Space(
            tuple(
                Parameter(
                    row["name"],
                    tuple(row["choices"]),
                    tuple((name, tuple(values)) for name, values in row["when"].items()),
                    tuple(row.get("costly", ())),
                )
                for row in rows
            )
        )


_ENUMERATE_AT_MOST: Final = 20_000
_CHANGED_AT_MOST: Final = 8
_SEQUENTIAL: Final = "sequential"


def modes_of(modules: Collection[str]) -> tuple[str, ...]:
    """Calibrate modes that are searched: those that QConfig declares, further ones of the compiler,
    and those of ``modules``; none that this process registered for another study."""
    usual = _OPTIONS["calibrate_mode"].searched
    homes = {n: calibrate_modes.require(n).__module__ for n in calibrate_modes.names()}
    further = {n: home for n, home in homes.items() if n not in usual}
    own = (n for n, h in further.items() if h.startswith("compiler.") or h in modules)
    return (*usual[:-1], *own, *usual[-1:])


def default_space(
    choices: Mapping[str, tuple[Value, ...]] = MappingProxyType({}),
    costly: bool = False,
    inputs: Sequence[Mapping[str, int]] = (),
) -> Space:
    """The space that ``qsearch launch`` searches by default: 1,188 points.

    Fields and values are those that QConfig declares as ``searched``. A space of one's own may name
    what seldom gains accuracy: ``rounding``, which decides ties of fixed-point products,
    ``requantization``, bits (7 bits of weights make the engine faster on AVX2) and ``layers``.

    Args:
        choices: other values of fields, as a model needs them; a field without any is left out.
        costly: whether sequential rounding is a costly choice.
        inputs: groups of layers and of reserved names, with the bits that all or none of a group
            may read.
    """
    named = {name: one.searched for name, one in _OPTIONS.items() if one.searched}
    named = {**dict.fromkeys(_FIRST, ()), **named, **choices}
    found = []
    for name, values in named.items():
        condition = _OPTIONS[name].when
        if values:
            slow = (_SEQUENTIAL,) if costly and name == "weight_rounding" else ()
            when = () if condition is None else (condition,)
            found.append(Parameter(name, values, when, slow))
    for group in inputs:
        bits = [(input_parameter(layer), nbit) for layer, nbit in group.items()]
        found += [Parameter(name, (8, nbit)) for name, nbit in bits[:1]]
        found += [Parameter(name, (nbit,), ((bits[0][0], bits[0][1:]),)) for name, nbit in bits[1:]]
    return Space(tuple(found))


def to_qconfig(params: Mapping[str, Value], start: QConfig) -> QConfig:
    """The configuration of a point: ``start`` with the point's values."""
    fields = start.to_dict() | {n: v for n, v in params.items() if not n.startswith(LAYER_PREFIX)}
    layers = {name: dict(choice) for name, choice in fields["layers"].items()}
    for name in (n for n in params if n.startswith(LAYER_PREFIX)):
        layer, _, key = name[len(LAYER_PREFIX) :].rpartition(".")
        if params[name] == FLOAT_LAYER:
            layers[layer] = {"float": True}
            continue
        choice = layers.setdefault(layer, {})
        choice.pop("float", None)
        wide_table = key == "nbit_weight" and key in choice
        choice[key] = params[name]
        if choice[key] == fields[key] and not wide_table:
            del choice[key]
    return QConfig.from_dict({**fields, "layers": layers})


def layer_parameter(layer: str) -> str:
    """The parameter that is the bits of one layer's weight, or ``FLOAT_LAYER``."""
    return f"{LAYER_PREFIX}{layer}{_WEIGHT_BITS}"


def input_parameter(layer: str) -> str:
    """The parameter that is the bits of what one layer reads."""
    return f"{LAYER_PREFIX}{layer}{_INPUT_BITS}"


def is_layer_weight(name: str) -> bool:
    """Return whether a parameter is the bits of a single layer's weight."""
    return name.startswith(LAYER_PREFIX) and name.endswith(_WEIGHT_BITS)


def input_layer(name: str) -> str | None:
    """The layer of a parameter that is the bits of what the layer reads; None for others."""
    if not (name.startswith(LAYER_PREFIX) and name.endswith(_INPUT_BITS)):
        return None
    return name[len(LAYER_PREFIX) : -len(_INPUT_BITS)]


def value_in(fields: Mapping[str, Any], name: str) -> Any:
    """The value that the fields of a QConfig give a parameter."""
    if not name.startswith(LAYER_PREFIX):
        return fields[name]
    layer, _, key = name[len(LAYER_PREFIX) :].rpartition(".")
    choice = fields["layers"].get(layer, {})
    if choice.get("float") and is_layer_weight(name):
        return FLOAT_LAYER
    return choice.get(key, fields[key])


def canonical_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a QConfig without those that have no effect, in one spelling each."""
    kept = {name: fields[name] for name in fields if _has_effect(name, fields)}
    kept["skip_conv_layers"] = kept.get("skip_conv_layers") or []  # both skip none
    return kept


def _has_effect(name: str, fields: Mapping[str, Any]) -> bool:
    when = _OPTIONS[name].when
    return when is None or fields[when[0]] in when[1]


def config_hash(fields: Mapping[str, Any]) -> str:
    """sha256 of the canonical form of a QConfig given as plain fields."""
    return content_hash(canonical_fields(fields))
