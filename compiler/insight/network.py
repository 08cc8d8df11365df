"""A simulated network taken apart: quantized at some of its points only, looked at inside."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from compiler.errors import CalibrationError
from compiler.insight.measuring import OutputSums, PointSums, results_of
from compiler.insight.records import OutputInsight
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import function_of, nodes_of
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.qtypes.report import QuantizeReport
from compiler.quantize import build_candidate, quantize_points
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import Batch, float_executor
from compiler.runtime.executor import Executor

Scales = Sequence[float] | NDArray[Any] | None
Outputs = Sequence[Sequence[NDArray[Any]]]
"""Arrays of every sample."""


@dataclass(frozen=True, slots=True)
class Network:
    """A simulated function, from which modules with fewer points are made.

    Attributes:
        main: simulated with bound scales.
        points: its quantize points in binding order.
        report: what annotation says of its calls.
        floats: the float model's constant of every point that reads one; what the point reads
            itself may be rounded already.
    """

    main: Function
    points: list[Call]
    report: QuantizeReport
    floats: Mapping[Expr, Constant]

    @staticmethod
    def of(
        mod: IRModule,
        qconfig: QConfig,
        activation_scales: Scales,
        channels: ChannelStats | None,
    ) -> Network:
        """The network of a configuration.

        Corrected biases make up for all layers at once, and a floor stands in front of its point
        in the simulation: parts are examined without them.
        """
        bare = qconfig.uncut.with_overrides(do_simulation=True, round_for_shift=True)
        run = QuantizeContext(bare, corrects_biases=False)
        candidate = build_candidate(mod, bare, activation_scales, channels, run)
        points = quantize_points(candidate.simulated)
        exact = points
        if bare.sequential:
            nearest = bare.with_overrides(weight_rounding="nearest")
            plain = build_candidate(mod, nearest, activation_scales, channels)
            exact = quantize_points(plain.simulated)
        floats: dict[Expr, Constant] = {
            point: same.args[0]
            for point, same in zip(points, exact, strict=True)
            if isinstance(same.args[0], Constant)
        }
        return Network(candidate.simulated["main"], points, candidate.report, floats)

    def without(self, kept: Collection[Expr]) -> dict[Expr, Expr]:
        """Every node over a graph in which points outside ``kept`` hand on what they read."""
        points = set(self.points)

        def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
            if node in points and node not in kept:
                return self.floats.get(node) or new[node.args[0]]
            return None

        return rebuilt(nodes_of(self.main), made)

    def run_with(self, kept: Collection[Expr]) -> Executor:
        """The network quantized at these points only."""
        return self.returning([self.without(kept)[self.main.body]])

    def returning(self, results: Sequence[Expr]) -> Executor:
        """A module that returns these nodes; the first may be a tuple, which is flattened."""
        body, *more = results
        if more:
            body = Tuple((*results_of(body, self.main.body.checked_type), *more))
        made = function_of(self.main.params, body)
        return float_executor(infer_module(IRModule.from_expr(made)))


def through(
    network: Network, samples: Sequence[Batch]
) -> tuple[list[list[NDArray[Any]]], list[PointSums], OutputInsight]:
    """The float outputs of every sample, the sums of every point over all samples, and how far the
    outputs of the simulation are from the float ones.

    Raises:
        CalibrationError: there is no sample.
    """
    if not samples:
        raise CalibrationError("there is no sample to examine", fix="give one sample or more")
    sums = [PointSums(point) for point in network.points]
    measured = []
    for place, point in enumerate(network.points):
        known = network.floats.get(point)
        if known is not None:
            held = point.args[0]
            assert isinstance(held, Constant)
            sums[place].add(known.data, None, held.data)
        else:
            measured.append(place)
    plain = network.without(())
    tensors = [plain[network.points[place]] for place in measured]
    distinct = list(dict.fromkeys(tensors))
    column = {tensor: index for index, tensor in enumerate(distinct)}
    body = network.main.body
    exact = network.returning([plain[body], *distinct])
    simulated = network.returning([body, *(network.points[place] for place in measured)])
    count = len(results_of(body, body.checked_type))
    reference = []
    outputs = OutputSums()
    for batch in samples:
        floats = run_on(exact, batch)
        rounded = run_on(simulated, batch)
        reference.append(floats[:count])
        outputs.add(floats[:count], rounded[:count])
        for place, tensor, value in zip(measured, tensors, rounded[count:], strict=True):
            sums[place].add(floats[count + column[tensor]], value)
    return reference, sums, outputs.result()


def compared(run: Executor, samples: Sequence[Batch], reference: Outputs) -> OutputInsight:
    """The outputs of a module, compared with those of the float network on the same samples."""
    sums = OutputSums()
    for batch, wanted in zip(samples, reference, strict=True):
        sums.add(wanted, run_on(run, batch))
    return sums.result()


def run_on(run: Executor, batch: Batch) -> list[NDArray[Any]]:
    """A network cut down may read fewer inputs than the model has."""
    return run.run({name: batch[name] for name in run.input_names})
