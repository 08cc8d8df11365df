"""repaired: other ranges and bits for single points, kept where the outputs gain.

    propose    smoothing, or none, for outputs that are far from the float ones; other ranges and
               more bits for doubtful points, and for those whose error the network adds up
    measure    the outputs of the simulation with the proposal for a point: points behind it are
               exact, because one of two in a row hides what the other loses
    keep       a proposal if the outputs gain by it; then the module is built with all that was
               kept, and taken if its integers are closer to the float outputs, on the samples that
               nothing was chosen on as well

The grids of the points are inputs of one simulated network, so a measurement is a run and no build.
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
from compiler.insight.audit.flags import DOUBTS_OF_VALUES, flagged, worst_point
from compiler.insight.audit.measure import Audit, PointAudit, measure
from compiler.insight.measuring import OutputSums
from compiler.insight.network import compared, run_on
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
from compiler.quantize.bits.point_bits import Readers, point_readers
from compiler.quantize.bits.wide_inputs import TABLE_BITS
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.quantize.choice import SMOOTH_ALPHA
from compiler.quantize.scales.bind_scales import bound_grid
from compiler.quantize.scales.uneven_grid import Sidedness
from compiler.runtime.exact_executor import exact_executor
from compiler.runtime.executor import Executor

_log = logging.getLogger("compiler.insight.audit")

SAMPLES: Final = 8
"""Runs that repairs are chosen on, and as many that they are judged on as well."""
BITS: Final = frozenset(("layers", "nbit_input", "dtype_input", "requantization"))
"""Fields that say how wide values are: a configuration that sets one gets no other bits."""
_GAIN_DB: Final = 0.5
"""Gain of the outputs from which a proposal is kept: less is within what other samples give."""
_ENOUGH_DB: Final = 50.0
"""Outputs that are so near to the float ones are left as they are."""
_FAR_DB: Final = 20.0
"""Below it the other choice of smoothing is proposed: the prediction that decides may be wrong."""
_SUSPECTS: Final = 8
"""Points that get proposals, at most."""
_SCREENING_SAMPLES: Final = 2
"""Samples that the points with most noise are found on."""
_SHARE: Final = 0.2
"""Share of the noise at the outputs, from which some of the points are looked at one by one."""
_AMPLIFIED_DB: Final = 6.0
"""Outputs that lose so much more by a point than the point itself does add its error up."""
_ROOM: Final = 1.15
"""Range of a point over the largest value that calibration has seen: ranges fitted to layers have
as much. Smaller ranges gained on 8 samples and lost up to 6 dB on others."""
_MORE_BITS: Final = (8, TABLE_BITS, 15)
_AMPLIFIED: Final = "amplified"
_PERFECT_DB: Final = 120.0
_FINE: Final = 2.0**-20
"""Step of an exact grid over its range."""

Grid = tuple[float, float, float]
"""Scale, lowest and highest integer."""
Bounds = tuple[float, float]


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
        choice = ", ".join(f"{name}={value}" for name, value in self.choice.items())
        if self.gain_db is None:
            gain = ""
        else:
            gain = f", {self.gain_db:+.1f} dB"
        return f"{self.point} ({', '.join(self.flags)}): {choice}{gain}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """A configuration after its audit.

    Attributes:
        qconfig: with the repairs.
        candidate: what it makes.
        audit: of the module in front of the repairs; None where nothing was measured.
        repairs: that were taken.
        before_db, after_db: of its integers on all samples; None: nothing was proposed.
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
            "repairs": [str(repair) for repair in self.repairs],
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
        samples: one run each. Repairs are chosen on every second one and judged on all; with one
            sample nothing is mended.
        fixed: fields of the configuration that stay; those of ``BITS`` keep the bits of points too.
    Raises:
        CalibrationError: no sample.
    """
    chosen = samples[::2]
    fresh = samples[1::2]
    state = Repaired(qconfig, candidate, measure(candidate, chosen))
    if not fresh or state.db >= _ENOUGH_DB:
        return state
    if state.db < _FAR_DB and "smooth_alpha" not in fixed:
        alpha = SMOOTH_ALPHA if qconfig.smooth_alpha is None else None
        smoothing = Repair("smooth_alpha", ("far from float",), {"smooth_alpha": alpha})
        state = _judged(calibration, state, [smoothing], fresh)
        if state.repairs:
            state = replace(state, audit=measure(state.candidate, chosen))
    repairs = _repairs_of_points(calibration, state, BITS.isdisjoint(fixed))
    return _judged(calibration, state, repairs, fresh)


def _judged(
    calibration: Calibration, state: Repaired, repairs: Sequence[Repair], fresh: Sequence[Batch]
) -> Repaired:
    """Return the module with repairs if its integers are closer to the float outputs."""
    built = _built(calibration, state.qconfig, repairs)
    if built is None or state.audit is None:
        return state
    taken, qconfig, candidate = built
    exact = state.audit.network.run_with(())
    reference = [*state.audit.reference, *(run_on(exact, batch) for batch in fresh)]
    samples = [*state.audit.samples, *fresh]
    was, now = (
        _db(compared(_shipped(one), samples, reference).output_db)
        for one in (state.candidate, candidate)
    )
    before = was if state.before_db is None else state.before_db
    if now < was + _GAIN_DB:
        return replace(state, before_db=before, after_db=was)
    return replace(
        state,
        qconfig=qconfig,
        candidate=candidate,
        repairs=(*state.repairs, *taken),
        before_db=before,
        after_db=now,
    )


def _built(
    calibration: Calibration, qconfig: QConfig, repairs: Sequence[Repair]
) -> tuple[Sequence[Repair], QConfig, Candidate] | None:
    """The configuration with repairs and its module; without more bits where these do not fit."""
    for taken in (repairs, [one for one in repairs if "nbit_input" not in one.choice]):
        fields: dict[str, Any] = {"layers": qconfig.layers.to_dict()}
        for repair in taken:
            if repair.point.startswith(POINT):
                fields["layers"][repair.point] = dict(repair.choice)
            else:
                fields.update(repair.choice)
        try:
            other = qconfig.with_overrides(**fields)
            if taken:
                return (taken, other, calibration.candidate(other))
            return None
        except CompilerError as error:
            _log.info("the repairs %s cannot be built: %s", list(map(str, taken)), error.what)
    return None


def _shipped(candidate: Candidate) -> Executor:
    """Return what runs the integers, or the simulation if there are none."""
    if candidate.integer is None:
        return float_executor(candidate.bound)
    return exact_executor(candidate.integer).executor


def _repairs_of_points(calibration: Calibration, state: Repaired, more_bits: bool) -> list[Repair]:
    """Return the repairs of points that help the simulated outputs, one after the other."""
    points = _Points(calibration, state)
    suspects = points.suspects()
    helped: list[Repair] = []
    if not suspects:
        return helped
    grids = [exact if at in suspects else points.usual[at] for at, exact in enumerate(points.exact)]
    limit = points.db(grids)
    for at, flags in suspects.items():
        grids[at] = points.usual[at]
        start = best = points.db(grids)
        repair: Repair | None = None
        for choice, grid in points.proposals(at, more_bits):
            if best >= limit - _GAIN_DB:
                break
            reached = points.db([*grids[:at], grid, *grids[at + 1 :]])
            if reached >= best + _GAIN_DB:
                best = reached
                grids[at] = grid
                repair = Repair(points.rows[at].name, flags, choice, reached - start)
        limit = best
        if repair is not None:
            helped.append(repair)
    return helped


class _Points:
    """Points whose grids may change, and the simulation with these grids as inputs.

    Weights and biases are those of the float network: what shipped has made up for the very points
    that are doubtful.

    Attributes:
        rows: their measurements.
        usual: their grids in the module.
        exact: grids whose step is negligible.
    """

    def __init__(self, calibration: Calibration, state: Repaired) -> None:
        audit = state.audit
        assert audit is not None
        self._audit = audit
        main = state.candidate.bound["main"]
        bounds = _bounds(calibration, state.qconfig, state.candidate, audit)
        self._points: list[Call] = []
        self.rows: list[PointAudit] = []
        self.usual: list[Grid] = []
        for row, point in zip(audit.points, audit.network.points, strict=True):
            grid = bound_grid(point)
            masked = max(map(abs, bounds[row.name])) > INFINITE
            if row.sums.kind != "weight" and grid is not None and not masked:
                self._points.append(point)
                self.rows.append(row)
                self.usual.append(grid)
        self._bounds = [bounds[row.name] for row in self.rows]
        self.exact = [_exact(*ends) for ends in self._bounds]
        self._sided = Sidedness(nodes_of(main), state.qconfig)
        self._readers = point_readers(main)
        self._inputs = [_inputs_of(at) for at in range(len(self.rows))]
        self._run = self._with_inputs()

    def _with_inputs(self) -> Executor:
        main = self._audit.network.main
        floats = self._audit.network.floats
        inputs: dict[Expr, list[Var]] = dict(zip(self._points, self._inputs))

        def changed(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            if not isinstance(node, Call) or node not in inputs:
                return floats.get(node)
            return node.with_fields(args=(new[node.args[0]], *inputs[node]))

        body = rebuilt(nodes_of(main), changed)[main.body]
        used = set(free_vars(body))
        data = (param for param in main.params if param in used)
        function = Function((*data, *chain(*self._inputs)), body)
        return float_executor(infer_module(IRModule.from_expr(function)))

    def db(self, grids: Sequence[Grid], samples: int | None = None) -> float:
        """SQNR of the outputs with these grids, on the first samples or all."""
        values = {
            variable.name_hint: np.asarray(value, np.float32)
            for variable, value in zip(chain(*self._inputs), chain(*grids), strict=True)
        }
        sums = OutputSums()
        pairs = zip(self._audit.samples, self._audit.reference, strict=True)
        for batch, reference in islice(pairs, samples):
            sums.add(reference, run_on(self._run, {**batch, **values}))
        return _db(sums.result().output_db)

    def suspects(self) -> dict[int, tuple[str, ...]]:
        """Return the indices of doubtful points, and of those whose error is amplified."""
        if not self.rows:
            return {}
        index = {row.name: at for at, row in enumerate(self.rows)}
        doubts = flagged(self._audit)
        found = {
            index[name]: flags
            for name, flags in doubts.items()
            if name in index and not DOUBTS_OF_VALUES.isdisjoint(flags)
        }
        for at, db in islice(self._loudest(), _SUSPECTS):
            if db < _db(self.rows[at].sums.local.db) - _AMPLIFIED_DB:
                found.setdefault(at, (_AMPLIFIED,))
        return dict(islice(found.items(), _SUSPECTS))

    def _loudest(self) -> Iterator[tuple[int, float]]:
        """Yield the points by which the outputs lose most, and their SQNR with only this point
        quantized; O(log points) runs each.

        The half that adds more noise is halved next, while it adds a share of all noise. A flag
        sees the noise at a point; this sees what the network makes of it, such as a sum along time
        of one error, or an exponential that makes absolute errors relative ones.
        """
        waiting: list[tuple[float, int, int]] = []

        def wait(first: int, last: int) -> None:
            grids = [*self.exact[:first], *self.usual[first:last], *self.exact[last:]]
            noise = 10.0 ** (-self.db(grids, _SCREENING_SAMPLES) / 10)
            heappush(waiting, (-noise, first, last))

        wait(0, len(self.rows))
        while waiting and waiting[0][0] <= _SHARE * sum(noise for noise, _, _ in waiting):
            noise, first, last = heappop(waiting)
            middle = (first + last) // 2
            if middle == first:
                yield first, -10 * math.log10(-noise)
            else:
                wait(first, middle)
                wait(middle, last)

    def proposals(self, at: int, more_bits: bool) -> Iterator[tuple[dict[str, Any], Grid]]:
        """Yield choices for a point and their grids: ranges, then more bits, cheapest first."""
        point = self._points[at]
        low, high = self._bounds[at]
        readers = self._readers.get(point, ())
        own = math.ceil(math.log2(self.usual[at][2] - self.usual[at][1] + 1))
        for nbit in (None, *(_more_bits(point, own, readers) if more_bits else ())):
            tabulated = not {TABLES, SCORES}.isdisjoint(readers)
            room = wide_headroom(nbit or own, tabulated=tabulated)
            for factor in dict.fromkeys((max(room, _ROOM), _ROOM)):
                bounds = factor * low, factor * high
                choice: dict[str, Any] = {"range": list(bounds)}
                if nbit is not None:
                    choice["nbit_input"] = nbit
                yield choice, _grid(self._sided, point, bounds, nbit or own)


def _inputs_of(at: int) -> list[Var]:
    return [Var(f"<{at}>{name}", SCALAR) for name in PARAMETERS]


def _bounds(
    calibration: Calibration, qconfig: QConfig, candidate: Candidate, audit: Audit
) -> dict[str, Bounds]:
    """Lowest and highest value of each tensor over all calibration data, 0 among them."""
    names = point_names(candidate.annotated)
    measured = measured_points(candidate.annotated)
    bounds = {row.name: (row.sums.minimum, row.sums.maximum) for row in audit.points}
    stats = calibration.stats_for(qconfig)
    if len(stats.point_tensor) == len(measured):  # no reader has a point of its own
        for point, index in zip(measured, stats.point_tensor):
            tensor = stats.tensors[index]
            bounds[names[point]] = float(tensor.minimum), float(tensor.maximum)
    return {name: (min(low, 0.0), max(high, 0.0)) for name, (low, high) in bounds.items()}


def _more_bits(point: Call, own: int, readers: Readers) -> Iterator[int]:
    """Yield the bits that a point of ``own`` bits may have instead, fewest first."""
    if not takes_bits(point):
        return
    options: tuple[int, ...] = _MORE_BITS
    if quantize_kind(point) != QAnnotateKind.INPUT:
        options = (WIDE_BITS,)
    most = TABLE_BITS if SCORES in readers else WIDE_BITS
    yield from (nbit for nbit in options if own < nbit <= most)


def _grid(sided: Sidedness, point: Call, bounds: Bounds, nbit: int) -> Grid:
    """Return the grid that ``bind_scales`` gives a point with a chosen range."""
    low, high = bounds
    reach = max(-low, high, SMALLEST_RANGE)
    uneven = sided.grid(point, reach, low, high, nbit)
    if uneven is not None:
        return float(uneven.step), *uneven.ends
    limit = 2.0 ** (nbit - 1)
    return float(chosen_scale(reach / limit, sided.qconfig)), 1 - limit, limit - 1


def _exact(low: float, high: float) -> Grid:
    """Return a grid whose step is negligible."""
    return max(-low, high, SMALLEST_RANGE) * _FINE, -(_FINE**-2), _FINE**-2


def _db(value: float | None) -> float:
    """Return dB of an SQNR; None is that of equal outputs."""
    if value is None:
        return _PERFECT_DB
    return value
