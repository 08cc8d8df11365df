"""repaired: other ranges and bits for doubtful points, where that is measured to help.

    0. outputs that are far from the float ones are tried with smoothing, or without it
    1. halves of the points are quantized alone, then halves of the half by which the outputs lose
       more: these runs find the few points that cost most, wherever they stand
    2. each of these is left exact in the simulation, and so are those to come: what the outputs
       gain is what a repair can gain
    3. where that is much: ranges are tried, then more bits, cheapest first
    4. the module is built with all that helped, its weights rounded once, and runs on samples that
       nothing was chosen on; it is taken if its integers are closer to the float outputs there, or
       much closer on all samples

The grids of the points are inputs of one simulated network, so a try is a run and no build.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain, islice
from typing import Any, Final

import numpy as np

from compiler.errors import CompilerError
from compiler.insight.audit.flags import INTEGERS, LOST, flagged, worst_point
from compiler.insight.audit.measure import Audit, measure
from compiler.insight.measuring import OutputSums
from compiler.insight.network import Outputs, compared, run_on
from compiler.ir.analysis import free_vars
from compiler.ir.expr import Call, Expr, Function, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import PARAMETERS, SCALAR, quantize_kind
from compiler.ops.annotation.minus_infinity import INFINITE
from compiler.ops.annotation.wide_point import wide_headroom
from compiler.ops.rules.dom_scale import SMALLEST_RANGE, chosen_scale
from compiler.qtypes.layer_choices import POINT, SCORES, TABLES, WIDE_BITS
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize import Calibration, Candidate, measured_points, point_names, takes_bits
from compiler.quantize.bits.point_bits import Readers, chosen_bits, own_bits, point_readers
from compiler.quantize.bits.wide_inputs import TABLE_BITS
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.quantize.choice import SMOOTH_ALPHA
from compiler.quantize.scales.bind_scales import bound_grid
from compiler.quantize.scales.uneven_grid import Sidedness
from compiler.runtime.exact_executor import exact_executor
from compiler.runtime.executor import Executor

_log = logging.getLogger("compiler.insight.audit")

SAMPLES: Final = 8
"""Runs that repairs are chosen on, and as many that they are judged on."""
_SUSPECTS: Final = 8
_WORTH_DB: Final = 0.5
"""Less is within what other samples would give."""
_SHARE: Final = 0.2
"""A part of the points is divided while it adds this share of the noise at the outputs."""
_HEARD: Final = 2
"""Runs that the points with most noise are found on."""
_MUCH_DB: Final = 3.0
"""Gain over all samples that decides where those on which nothing was chosen tell little."""
_ENOUGH_DB: Final = 50.0
"""Outputs that are so near to the float ones are left as they are."""
_FAR_FROM_FLOAT_DB: Final = 20.0
"""Below it smoothing is tried, or its opposite: the prediction that decides on it may be wrong."""
_WHOLE: Final = 1.15
"""Room for values larger than calibration has seen; ranges fitted to layers have as much."""
_PARTS: Final = (_WHOLE, 2.0)
"""Multiples of the calibrated extremes that are tried as ranges. What a range cuts, few samples do
not show: parts of the extremes that gain on 8 lost up to 6 dB on others."""
BITS: Final = frozenset(("layers", "nbit_input", "dtype_input", "requantization"))
"""Fields that say how wide values are: who gives one gets no other bits."""
_USUAL: Final = 8
_BITS: Final = (_USUAL, TABLE_BITS, 15)
_AMPLIFIED: Final = "amplified"
_AMPLIFIED_DB: Final = 6.0
"""Outputs that lose so much more by a point than the point does add its error up."""
_TABULATED: Final = frozenset((TABLES, SCORES))
_PERFECT_DB: Final = 120.0
_FINE: Final = 2.0**-20

Grid = tuple[float, float, float]
"""Scale, lowest and highest integer."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One change of the configuration.

    Attributes:
        point: as QConfig.layers calls it, or a field of the QConfig.
        flags: what was doubtful.
        choice: what QConfig.layers chooses for it, or the field.
        gain_db: what the simulated outputs gained; None of a field.
    """

    point: str
    flags: tuple[str, ...]
    choice: Mapping[str, Any]
    gain_db: float | None = None

    def __str__(self) -> str:
        told = ", ".join(f"{name}={value}" for name, value in self.choice.items())
        gained = "" if self.gain_db is None else f", {self.gain_db:+.1f} dB"
        return f"{self.point} ({', '.join(self.flags)}): {told}{gained}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A configuration after its audit.

    Attributes:
        qconfig: with the repairs.
        candidate: what it makes.
        audit: of the module in front of the repairs; None where nothing was measured.
        repairs: that were taken.
        before_db, after_db: of its integers on samples that nothing was chosen on, or on all where
            those tell little; None: not run.
    """

    qconfig: QConfig
    candidate: Candidate
    audit: Audit | None
    repairs: tuple[Repair, ...] = ()
    before_db: float | None = None
    after_db: float | None = None

    @property
    def db(self) -> float:
        """SQNR of the audited outputs."""
        if self.audit is None:
            return _PERFECT_DB
        return _db(self.audit.output_db)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of a stored record, as plain JSON values."""
        if self.audit is None:
            return {}
        worst = worst_point(self.audit)
        return {
            "samples": len(self.audit.samples),
            "worst": None if worst is None else worst.name,
            "doubts": {name: list(flags) for name, flags in flagged(self.audit).items()},
            "repairs": [str(one) for one in self.repairs],
            "before_db": self.before_db,
            "after_db": self.after_db,
        }


def repaired(
    calibration: Calibration,
    qconfig: QConfig,
    candidate: Candidate,
    samples: Sequence[Batch],
    fixed: Collection[str] = (),
) -> Repaired:
    """Audit what a configuration made, and mend what can be mended.

    Args:
        calibration: of the module; nothing is measured anew.
        candidate: of ``qconfig``.
        samples: one run each. Every second one judges what is chosen on the others; with one
            sample nothing is mended.
        fixed: fields of the configuration that stay; those of ``BITS`` keep the bits of points too.
    Raises:
        CalibrationError: no sample.
    """
    chosen = samples[::2]
    fresh = samples[1::2]
    found = Repaired(qconfig, candidate, measure(candidate, chosen))
    if not fresh or found.db >= _ENOUGH_DB:
        return found
    if found.db < _FAR_FROM_FLOAT_DB and "smooth_alpha" not in fixed:
        alpha = SMOOTH_ALPHA if qconfig.smooth_alpha is None else None
        other = Repair("smooth_alpha", ("far from float",), {"smooth_alpha": alpha})
        found = _taken(calibration, found, [other], fresh)
        if found.repairs:
            found = replace(found, audit=measure(found.candidate, chosen))
    return _taken(calibration, found, _tried(calibration, found, BITS.isdisjoint(fixed)), fresh)


def _taken(
    calibration: Calibration,
    found: Repaired,
    repairs: Sequence[Repair],
    fresh: Sequence[Batch],
) -> Repaired:
    """With repairs where its integers are closer to the float outputs on fresh samples."""
    built = _built(calibration, found.qconfig, repairs)
    if built is None or found.audit is None:
        return found
    some, qconfig, candidate = built
    exact = found.audit.network.run_with(())
    audit = found.audit
    reference = [run_on(exact, batch) for batch in fresh]

    def dbs(data: Sequence[Batch], wanted: Outputs) -> list[float]:
        both = found.candidate, candidate
        return [_db(compared(_shipped(one), data, wanted).output_db) for one in both]

    was, now = dbs(fresh, reference)
    worth = _WORTH_DB * max(SAMPLES / len(fresh), 1)  # few samples say less
    if now - was < worth:  # one that the repairs were chosen on may hold the only large error
        was, now = dbs([*audit.samples, *fresh], [*audit.reference, *reference])
        worth = _MUCH_DB
    before = was if found.before_db is None else found.before_db
    if now - was < worth:
        return replace(found, before_db=before, after_db=max(was, now))
    return replace(
        found,
        qconfig=qconfig,
        candidate=candidate,
        repairs=(*found.repairs, *some),
        before_db=before,
        after_db=now,
    )


def _built(
    calibration: Calibration, qconfig: QConfig, repairs: Sequence[Repair]
) -> tuple[Sequence[Repair], QConfig, Candidate] | None:
    """The configuration with repairs and its module; without more bits where these do not fit."""
    for some in (repairs, [one for one in repairs if "nbit_input" not in one.choice]):
        fields: dict[str, Any] = {"layers": qconfig.layers.to_dict()}
        for one in some:
            if one.point.startswith(POINT):
                fields["layers"][one.point] = dict(one.choice)
            else:
                fields.update(one.choice)
        try:
            other = qconfig.with_overrides(**fields)
            if some:
                return (some, other, calibration.candidate(other))
            return None
        except CompilerError as error:
            _log.info("the repairs %s cannot be built: %s", list(map(str, some)), error.what)
    return None


def _shipped(candidate: Candidate) -> Executor:
    """Return what runs the integers, or the simulation if there are none."""
    if candidate.integer is None:
        return float_executor(candidate.bound)
    return exact_executor(candidate.integer).executor


def _tried(calibration: Calibration, found: Repaired, more_bits: bool) -> list[Repair]:
    """Repairs of points that help the simulated outputs, one after the other."""
    audit = found.audit
    qconfig = found.qconfig
    candidate = found.candidate
    assert audit is not None
    doubts = flagged(audit)
    main = candidate.bound["main"]
    calls = {row.name: point for row, point in zip(audit.points, audit.network.points)}
    extremes = _extremes(calibration, qconfig, candidate, audit)
    rows = [
        row
        for row in audit.points
        if row.sums.kind != "weight"
        and bound_grid(calls[row.name]) is not None
        and max(map(abs, extremes[row.name])) <= INFINITE
    ]
    if not rows:
        return []
    names = [row.name for row in rows]
    tries = _Tries(audit, [calls[name] for name in names])
    usual = tries.grids
    exact = [_exact(*extremes[name]) for name in names]
    for place, db in islice(_loudest(tries, exact), _SUSPECTS):
        if db < _db(rows[place].sums.local.db) - _AMPLIFIED_DB:
            doubts.setdefault(names[place], (_AMPLIFIED,))
    tries.grids = usual
    places = {name: place for place, name in enumerate(names)}
    suspects = [
        places[name]
        for name, flags in doubts.items()
        if name in places and not {*flags} <= {INTEGERS, LOST}
    ][:_SUSPECTS]
    if not suspects:
        return []
    now = tries.db()
    sided = Sidedness(nodes_of(main), qconfig)
    readers = point_readers(main)
    bits_of = chosen_bits(main, qconfig, readers)
    # The points to come are exact: one of two in a row hides what the other loses.
    tries.grids = [exact[n] if n in suspects else grid for n, grid in enumerate(usual)]
    helped: list[Repair] = []
    most = tries.db()
    if most < now + _WORTH_DB:
        return helped
    for place in suspects:
        name = names[place]
        call = calls[names[place]]
        low, high = extremes[name]
        tries.grids[place] = usual[place]
        start = tries.db()
        best = start
        taken = None
        scale, first, last = usual[place]
        # A range that reaches what calibration has seen is left to calibration.
        fits = 0.75 < scale * max(-first, last) / max(-low, high, SMALLEST_RANGE) < 1.5
        read_by = readers.get(call, ())
        held = min(_bits(usual[place]), bits_of.get(call) or own_bits(call, qconfig))
        for nbit in _bits_of(call, held, read_by, more_bits):
            if best >= most - _WORTH_DB:
                break
            wanted = nbit or held
            room = wide_headroom(wanted, _USUAL, not _TABULATED.isdisjoint(read_by))
            parts = (room, _WHOLE) if room > 1 else _PARTS
            for part in parts:
                ends = part * low, part * high
                grid = _grid(sided, call, ends, wanted)
                reached = tries.db(place, grid)
                # More bits than usual have to be worth it.
                if reached > best + (0.0 if taken is None else _WORTH_DB):
                    best = reached
                    taken = (nbit, ends, grid, part == parts[0])
        most = start
        if taken is not None and best >= start + _WORTH_DB:
            most = best
            nbit, ends, tries.grids[place], whole = taken
            choice: dict[str, Any] = {} if nbit is None else {"nbit_input": nbit}
            if nbit is None or not (fits and whole):
                choice["range"] = list(ends)
            helped.append(Repair(name, doubts[name], choice, best - start))
    return helped


def _loudest(tries: _Tries, exact: Sequence[Grid]) -> Iterator[tuple[int, float]]:
    """Yield the places of the points by which the outputs lose most, and their SQNR with only this
    point quantized; O(log points) runs.

    The half that adds more noise is halved next, until no part that is left has the share of a gain
    worth taking. A flag sees the noise at a point; this sees what the network makes of it, such as
    a sum along time of one error, or an exponential that makes absolute errors relative ones.
    """
    usual = tries.grids
    waiting = list[tuple[float, int, int]]()

    def wait(first: int, last: int) -> None:
        tries.grids = [*exact[:first], *usual[first:last], *exact[last:]]
        heappush(waiting, (-(10.0 ** (-tries.db(samples=_HEARD) / 10)), first, last))

    wait(0, len(usual))
    while waiting and waiting[0][0] <= _SHARE * sum(noise for noise, _, _ in waiting):
        noise, first, last = heappop(waiting)
        middle = (first + last) // 2
        if middle == first:
            yield first, -10 * math.log10(-noise)
        else:
            wait(first, middle)
            wait(middle, last)


def _extremes(
    calibration: Calibration, qconfig: QConfig, candidate: Candidate, audit: Audit
) -> dict[str, tuple[float, float]]:
    """Lowest and highest value of each tensor over all calibration data, 0 among them."""
    names = point_names(candidate.annotated)
    measured = measured_points(candidate.annotated)
    found = {row.name: (row.sums.minimum, row.sums.maximum) for row in audit.points}
    stats = calibration.stats_for(qconfig)
    if len(stats.point_tensor) == len(measured):  # no reader has a point of its own
        for point, tensor in zip(measured, stats.point_tensor):
            one = stats.tensors[tensor]
            found[names[point]] = float(one.minimum), float(one.maximum)
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in found.items()}


def _bits_of(point: Call, held: int, readers: Readers, more_bits: bool) -> tuple[int | None, ...]:
    """The bits that are tried: those that the point has, where these are not few, then more."""
    if not takes_bits(point) or not more_bits:
        return (None,)
    if quantize_kind(point) != QAnnotateKind.INPUT:
        if held < WIDE_BITS:
            return (WIDE_BITS,)
        return (None,)
    most = TABLE_BITS if SCORES in readers else max(_BITS)
    more = tuple(nbit for nbit in _BITS if held < nbit <= most)
    if held < _USUAL:
        return more
    return (None, *more)


def _bits(grid: Grid) -> int:
    """Return the bits of the integers of a grid."""
    return math.ceil(math.log2(grid[2] - grid[1] + 1))


def _grid(sided: Sidedness, point: Call, ends: tuple[float, float], nbit: int) -> Grid:
    """Return the grid that ``bind_scales`` gives a point with a chosen range."""
    low, high = ends
    reach = max(-low, high, SMALLEST_RANGE)
    uneven = sided.grid(point, reach, low, high, nbit)
    if uneven is not None:
        first, last = uneven.ends
        return float(uneven.step), first, last
    limit = 2.0 ** (nbit - 1)
    return float(chosen_scale(reach / limit, sided.qconfig)), 1 - limit, limit - 1


def _exact(low: float, high: float) -> Grid:
    """Return a grid whose step is negligible."""
    return max(-low, high, SMALLEST_RANGE) * _FINE, -(_FINE**-2), _FINE**-2


def _db(found: float | None) -> float:
    if found is None:
        return _PERFECT_DB
    return found


class _Tries:
    """The simulation with the grids of some points as inputs, on the samples of an audit.

    Weights and biases are those of the float network: what shipped has made up for the very points
    that are doubtful.

    Attributes:
        grids: of these points, as they are so far.
    """

    def __init__(self, audit: Audit, points: Sequence[Call]) -> None:
        main = audit.network.main
        floats = audit.network.floats
        self._audit = audit
        self.grids = [grid for grid in map(bound_grid, points) if grid is not None]
        given: dict[Expr, list[Var]] = {
            point: [Var(f"<{place}>{each}", SCALAR) for each in PARAMETERS]
            for place, point in enumerate(points)
        }

        def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            if not isinstance(node, Call) or node not in given:
                return floats.get(node)
            return node.with_fields(args=(new[node.args[0]], *given[node]))

        body = rebuilt(nodes_of(main), made)[main.body]
        self._names = [[each.name_hint for each in own] for own in given.values()]
        used = free_vars(body)
        params = (*(p for p in main.params if p in set(used)), *chain(*given.values()))
        self._run = float_executor(infer_module(IRModule.from_expr(Function(params, body))))

    def db(self, place: int = 0, grid: Grid | None = None, samples: int | None = None) -> float:
        """SQNR of the outputs, with another grid at one place, on the first samples or all."""
        grids = list(self.grids)
        grids[place] = grids[place] if grid is None else grid
        given = {
            name: np.asarray(value, np.float32)
            for names, values in zip(self._names, grids, strict=True)
            for name, value in zip(names, values, strict=True)
        }
        sums = OutputSums()
        pairs = zip(self._audit.samples, self._audit.reference, strict=True)
        for batch, wanted in islice(pairs, samples):
            sums.add(wanted, run_on(self._run, {**batch, **given}))
        return _db(sums.result().output_db)
