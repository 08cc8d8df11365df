"""measure: every quantize point of a built module beside the float network, in one run of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from compiler.errors import CompilerError
from compiler.insight.measuring import PointSums, add_to
from compiler.insight.network import Network, Outputs, compared, run_on, through
from compiler.insight.records import OutputInsight, Ratio
from compiler.ir.expr import Constant, Expr, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.ir.walk import nodes_of
from compiler.quantize import Candidate, QuantizeRealize, point_names, quantize_points
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.runtime.exact_executor import exact_executor

_CLEAN_DB: Final = 40.0
_NEAR_DB: Final = 45.0
"""SQNR of a tensor behind weights of 8 bits."""
SATURATED: Final = 0.02
"""Ranges by squared error cut off up to a hundredth."""
_APART_DB: Final = 6.0
"""Integers round sums, too: so much less than their simulation is no fault."""
_FEW: Final = 2


@dataclass(frozen=True, slots=True)
class PointAudit:
    """One quantize point.

    Attributes:
        name: as QConfig.layers takes it.
        sums: what was measured of it.
        integer_db: of the integers beside the simulation, where the outputs of the two differ much.
        lost_db: what it has less than the points that its value is made of, where 45 dB are the
            most that count.
    """

    name: str
    sums: PointSums
    integer_db: float | None
    lost_db: float


@dataclass(frozen=True, slots=True)
class Audit:
    """A built module on some samples.

    Attributes:
        samples: runs of the model.
        points: in binding order.
        simulated: outputs of the simulation.
        integer: outputs of the integers; None where there are none.
        network: the simulation taken apart.
        reference: outputs of the float network.
    """

    samples: Sequence[Batch]
    points: tuple[PointAudit, ...]
    simulated: OutputInsight
    integer: OutputInsight | None
    network: Network = field(repr=False)
    reference: Outputs = field(repr=False)

    @property
    def output_db(self) -> float | None:
        """SQNR of the outputs of the integers, or of the simulation if there are none."""
        return (self.integer or self.simulated).output_db


def measure(candidate: Candidate, samples: Sequence[Batch]) -> Audit:
    """Measure all points and the outputs on samples; O(samples * nodes).

    Args:
        candidate: what ships.
        samples: inputs of ``main`` by name, one run each.
    Raises:
        CalibrationError: no sample.
    """
    bound: IRModule = candidate.bound
    points = quantize_points(bound)
    floats: dict[Expr, Constant] = {}
    for point, same in zip(points, quantize_points(candidate.annotated), strict=True):
        given = same.args[0]
        if isinstance(given, Constant):  # biases with scales of their channels have their shape
            whole = np.broadcast_to(given.data, point.tensor_type.concrete_shape)
            floats[point] = given if whole.shape == given.data.shape else Constant(whole)
    network = Network(bound["main"], points, candidate.report, floats)
    reference, sums, outputs = through(network, samples)
    integer = None
    if candidate.integer is not None:
        integer = compared(exact_executor(candidate.integer).executor, samples, reference)
    apart: Mapping[Expr, float | None] = {}
    if integer is not None and _differ(outputs.output_db, integer.output_db):
        apart = _integers(candidate, network, samples[:_FEW])
    names = point_names(bound)
    lost = _lost(network, sums)
    rows = tuple(
        PointAudit(names[point], total, apart.get(point), lost.get(point, 0.0))
        for point, total in zip(points, sums)
    )
    return Audit(samples, rows, outputs, integer, network, reference)


def _differ(simulated: float | None, integer: float | None) -> bool:
    """Return whether integers lose SQNR that their simulation keeps."""
    found, wanted = (_CLEAN_DB if db is None else db for db in (integer, simulated))
    return found < min(wanted, _CLEAN_DB) - _APART_DB


def _integers(
    candidate: Candidate, network: Network, samples: Sequence[Batch]
) -> Mapping[Expr, float | None]:
    """SQNR of each computed point on integers beside the simulation: the function returns them."""
    main = network.main
    points = [point for point in network.points if point not in network.floats]
    whole = main.with_fields(body=Tuple(tuple(points)), ret_type=None)
    mod = infer_module(IRModule.from_expr(whole))
    ratios = [Ratio() for _ in points]
    try:
        with PassContext.current().inner(opt_level=3, required_pass=("QuantizeRealize",)):
            realize = Sequential(
                [QuantizeRealize(candidate.context), "FoldConstant"], name="realize"
            )
            integer = exact_executor(closed(realize(mod))).executor
    except CompilerError:
        return {}  # such as a point in front of the first step of a loop
    simulated = float_executor(mod)
    for batch in samples:
        found = zip(ratios, run_on(simulated, batch), run_on(integer, batch), strict=True)
        for ratio, wanted, held in found:
            add_to(ratio, wanted, held)
    return {point: ratio.db for point, ratio in zip(points, ratios, strict=True)}


def _lost(network: Network, sums: Sequence[PointSums]) -> Mapping[Expr, float]:
    """Return the dB between what each computed point is made of and the point; O(edges).

    What the state of a loop brings along was lost in the layers of the loop: it counts only where
    nothing else is read. What saturates is read by a function that needs no more of it, which is
    compared with what lies in front of both.
    """
    totals = dict(zip(network.points, sums, strict=True))
    reached: dict[Expr, tuple[bool, float]] = {}
    found: dict[Expr, float] = {}
    for node in nodes_of(network.main):
        read = [reached[child] for child in node.operands() if child in reached]
        given, front = min(read, key=lambda one: (not one[0], one[1]), default=(True, _NEAR_DB))
        if node in totals and node not in network.floats:
            total = totals[node]
            held = min(_NEAR_DB if total.upstream.db is None else total.upstream.db, _NEAR_DB)
            if not read and total.upstream.db != total.local.db:
                # a state
                given = False
                front = held
            held = front if total.saturated > SATURATED else held
            found[node] = front - held
            reached[node] = given, held
        elif read:
            reached[node] = given, front
    return found
