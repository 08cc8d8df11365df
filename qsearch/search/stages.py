"""The stages of a search, and the first stage: the error of each layer with fewer bits.

    sensitivity   every layer alone with fewer bits, all else as a base; on a few samples
    global        what holds for all layers: good first guesses, then the sampler
    layers        bits per layer: programmes over the sensitivities, then the sampler around them

Sensitivities are no trials: they are bounded by the layers, kept in the store, and made once. The
base is the start or the first good guess, whichever errs less: what one layer adds drowns in the
noise of a base that has lost the signal, and then the layer seems to need no bits. A
search whose layers may not differ has the global stage only; the store says why the others are
skipped. Where layers may stay in float, damages are counted from there, not from the base, and
every layer that is measured in float costs a calibration of its own. Source: leave-one-out
sensitivities as in Yao et al., "HAWQ-V3", 2021, with measured damages in place of Hessian traces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log10
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from compiler.qtypes.qconfig import QConfig
from compiler.quantize import FLOAT_BITS
from qsearch.search.context import StudyContext
from qsearch.search.layer_space import LayerSpace, choice_of
from qsearch.search.running_trials import await_workers, run_requests
from qsearch.search.scoring import Scorer
from qsearch.search.space import layer_parameter, to_qconfig
from qsearch.store.records import SENSITIVITY, STAGES, LayerFigures, Stage
from workers.messages import EvaluationResult
from workers.metrics.sqnr import relative_noise

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

MEASURED_BITS: Final = 4
"""Bits that are measured: of the choices below the base's the nearest to it; the noise of the
others follows from the step size: four times less for every bit."""
_LEAST_SHARE: Final = 1 / 16
"""Least share of the median that a layer adds: what few samples do not show is not nothing."""

_MOST_NOISE: Final = 1e12
"""Stands for outputs that are not finite; programmes take finite damages."""

Damage = dict[str, dict[int, float]]
Ranges = tuple[float, ...] | None
Base = tuple[QConfig, Ranges]
"""A configuration and its activation ranges."""


@dataclass(slots=True)
class Sensitivities:
    """Measures layers one by one, or reads what was measured before.

    Args:
        context: the study; its pool must be idle.
        scorer: how candidates are scored; the first part of the samples is used.
        layers: what layers may choose.
        bases: configurations, with their activation ranges, in one of which single layers are
            changed: the one that errs least, the first of equals.
        ranges_of: activation ranges of a configuration that leaves a layer in float.
        flash: whether code counts as well.
    """

    context: StudyContext
    scorer: Scorer
    layers: LayerSpace
    bases: Sequence[Base]
    ranges_of: Callable[[QConfig], Ranges]
    flash: bool
    cpu_s: float = 0.0
    """CPU seconds that workers spent on it in this run."""
    other_bytes: float = 0.0
    """Bytes that count beside the packed weights of the layers, once damages are known."""

    def damages(self) -> Damage:
        """Squared error over signal that each choice adds, by layer and bits; never negative."""
        return self._stored() or self._measured()

    def _stored(self) -> Damage | None:
        rows = self.context.repository.layers_of(self.context.study.id, SENSITIVITY)
        found = {
            row.layer: {int(bits): float(d) for bits, d in row.figures["damage"].items()}
            for row in rows
        }
        self.other_bytes = max((row.figures["other_bytes"] for row in rows), default=0.0)
        wanted = set(self.layers.bits)
        names = set(self.layers.elements)
        complete = set(found) == names and all(set(row) == wanted for row in found.values())
        if complete:
            return {name: found[name] for name in self.layers.elements}
        return None

    def _measured(self) -> Damage:
        choices = self._to_measure(self.bases[0][0].nbit_weight)
        await_workers(self.context.pool, self.context.progress)
        self.context.progress.phase(SENSITIVITY, len(self.bases))
        bases = self._results(self.bases, ("flash",) if self.flash else ())
        noise, place = min((_noise(one.sums["sqnr"]), at) for at, one in enumerate(bases))
        base, scales = self.bases[place]
        changed = [
            to_qconfig({layer_parameter(name): choice_of(bits)}, base) for name, bits in choices
        ]
        ranges = [self.ranges_of(c) if c.layers.float_layers else scales for c in changed]
        self.context.progress.phase(SENSITIVITY, len(choices))
        results = self._results(list(zip(changed, ranges, strict=True)))
        alone = {one: _noise(r.sums["sqnr"]) for one, r in zip(choices, results, strict=True)}
        sizes = dict(zip(choices, map(_bytes, results), strict=True))
        self.other_bytes = self._others(base.nbit_weight, _bytes(bases[place]), sizes)
        self.other_bytes += _code(bases[place])
        damage = self._filled(alone, noise, base.nbit_weight)
        self._keep(damage, alone, noise)
        return damage

    def _results(
        self, candidates: Sequence[Base], asked: tuple[str, ...] = ()
    ) -> list[EvaluationResult]:
        first = [self.scorer.requests(*candidate)[0] for candidate in candidates]
        plain: dict[str, Any] = {"collapse_after": None, "return_outputs": False, "hardware": None}
        requests = [replace(request, asked=asked, **plain) for request in first]
        return run_requests(self.context.pool, requests, SENSITIVITY, self._note)

    def _others(self, full: int, base: float, alone: Mapping[tuple[str, int], float]) -> float:
        """Bytes of all that is no packed weight; signs of rows, which few bits may need, included.

        Args:
            full: bits of the layers of the base.
            base, alone: bytes of the base, and of the modules in which one layer has other bits.
        """
        packed = {name: -(-n * full // 8) for name, n in self.layers.elements.items()}
        others = base - sum(packed.values())
        more = dict.fromkeys(packed, 0.0)
        for (name, bits), size in alone.items():
            changed = size - (base - packed[name] + self.layers.sizes[name][bits])
            more[name] = max(more[name], changed)
        return others + sum(more.values())

    def _note(self, result: EvaluationResult) -> None:
        self.cpu_s += result.compile_cpu_s + result.run_cpu_s
        self.context.progress.advance(1)

    def _to_measure(self, full: int) -> list[tuple[str, int]]:
        fewer = [bits for bits in self.layers.bits if bits < full]
        measured = sorted(fewer, key=lambda bits: abs(bits - MEASURED_BITS))[:1]
        measured += [bits for bits in self.layers.bits if bits > full]
        return [(name, bits) for name in self.layers.elements for bits in measured]

    def _filled(self, alone: Mapping[tuple[str, int], float], base: float, full: int) -> Damage:
        damage: Damage = {}
        least = min((bits for _, bits in alone), default=full)
        hurt = [noise - base for (_, bits), noise in alone.items() if bits == least < full]
        floor = median([added for added in hurt if added > 0] or [0.0]) * _LEAST_SHARE
        for name in self.layers.elements:
            row = {
                bits: alone[name, bits] - base for bits in self.layers.bits if (name, bits) in alone
            }
            if FLOAT_BITS not in self.layers.bits or FLOAT_BITS in row:
                row[full] = 0.0
            unhurt = min(row.get(FLOAT_BITS, 0.0), 0.0)
            if least < full:
                row[least] = max(row[least], floor)
            law = max(row.get(least, 0.0), 0.0)
            for bits in self.layers.bits:
                row.setdefault(bits, law * 4.0 ** (least - bits))
            damage[name] = {bits: max(row[bits] - unhurt, 0.0) for bits in self.layers.bits}
        return damage

    def _keep(self, damage: Damage, alone: Mapping[tuple[str, int], float], base: float) -> None:
        rows = []
        for place, (name, row) in enumerate(damage.items()):
            bits = min((bits for layer, bits in alone if layer == name), default=min(row))
            after = _db(alone.get((name, bits), base))
            before = _db(base)
            figures = {
                "damage": {str(choice): value for choice, value in row.items()},
                "bits": bits,
                "sqnr_db": after,
                "sqnr_loss_db": None if after is None or before is None else before - after,
                "weight_elements": self.layers.elements[name],
                "other_bytes": self.other_bytes,
            }
            rows.append(LayerFigures(SENSITIVITY, name, place, figures))
        self.context.repository.save_layers(self.context.study.id, rows)


@dataclass(slots=True)
class StageTracker:
    """Stores the state of each stage.

    Args:
        repository, study_id: where.
    """

    repository: Repository
    study_id: int
    _running: set[str] = field(default_factory=set)

    def plan(self, skipped: Mapping[str, str]) -> None:
        """Note all stages that are not noted yet; ``skipped`` names those left out, and why."""
        known = {stage.name: stage for stage in self.repository.stages_of(self.study_id)}
        for position, name in enumerate(STAGES):
            if name in known:
                continue
            reason = skipped.get(name)
            state = "planned" if reason is None else "skipped"
            data = None if reason is None else {"why": reason}
            self.repository.save_stage(self.study_id, Stage(name, position, state, None, data))

    def begin(self, name: str, planned: int | None = None) -> None:
        """Store that a stage runs; further calls cost nothing."""
        if name in self._running:
            return
        self._running.add(name)
        old = self._known(name)
        if old.state != "running":
            started = old.started_at or time.time()
            new = replace(old, state="running", planned=planned, started_at=started)
            self.repository.save_stage(self.study_id, replace(new, finished_at=None))

    def end(self, name: str, data: Mapping[str, object] | None = None) -> None:
        """A stage is over; one that never began, or was skipped, stays as it is."""
        self._running.discard(name)
        old = self._known(name)
        if old.state == "running":
            done = replace(old, state="complete", data=data or old.data, finished_at=time.time())
            self.repository.save_stage(self.study_id, done)

    def _known(self, name: str) -> Stage:
        return next(s for s in self.repository.stages_of(self.study_id) if s.name == name)


def _noise(state: Mapping[str, float]) -> float:
    return min(relative_noise(state), _MOST_NOISE)


def _bytes(result: EvaluationResult) -> float:
    return result.cost.get("model_bytes", 0.0)


def _code(result: EvaluationResult) -> float:
    """Bytes of flash beside the constants, where flash was asked for."""
    return result.cost.get("flash_bytes", _bytes(result)) - _bytes(result)


def _db(noise: float) -> float | None:
    if noise > 0:
        return -10.0 * log10(noise)
    return None
