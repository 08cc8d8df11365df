"""QuantizeCalibrate: measure the quantize points on a dataset, then bind their scales.

With ``calibrate_passes`` 2 the ranges are measured again on the network with the first ones in
place, its weights and biases corrected: what a point reads then carries the error from upstream.
Source: spec/quantize.md section 6 and W-5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compiler.errors import CalibrationError
from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import ModulePass, PassContext, register_pass
from compiler.qtypes.context import QuantizeContext
from compiler.quantize._run_context import context_or_new
from compiler.quantize._static_shapes import require_static
from compiler.quantize.calibration.activation_scales import activation_scales
from compiler.quantize.calibration.bind_scales import bind_scales, measured_points
from compiler.quantize.calibration.collect_stats import calibration_stats
from compiler.quantize.correct_rounding import corrected


@register_pass("QuantizeCalibrate", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizeCalibrate(ModulePass):
    """Every scale and clip bound becomes a constant.

    Args:
        dataset: batches (input name → array), read twice; calibrate_mode "global_scale" needs none.
        context: the run this pass belongs to; without one, the current QConfig counts.

    Raises:
        CalibrationError: the mode needs data and there are none, or they do not fit.
        TypeError: the dataset can be read only once.
    """

    dataset: Iterable[Any] | None = None
    context: QuantizeContext | None = None

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        main = mod["main"]
        if isinstance(main, Function):
            require_static(main, self.info.name)
        run = context_or_new(self.context)
        cfg = run.qconfig
        if cfg.calibrate_mode == "global_scale":
            return bind_scales(mod, run, None)
        if not measured_points(mod):
            return bind_scales(mod, run, [])
        if self.dataset is None:
            raise CalibrationError(
                f"calibrate_mode {cfg.calibrate_mode!r} needs a dataset",
                fix="pass dataset=[{input name: array}, …], or use calibrate_mode='global_scale'",
            )
        stats = calibration_stats(mod, self.dataset, percentiles=(cfg.percentile,))
        simulated = bind_scales(mod, run, activation_scales(stats, cfg))
        if cfg.calibrate_passes == 1:
            return simulated
        stats = calibration_stats(
            corrected(simulated, run), self.dataset, percentiles=(cfg.percentile,), simulated=True
        )
        return bind_scales(mod, run, activation_scales(stats, cfg))

    def __str__(self) -> str:
        return self.info.name


def calibrate(dataset: Iterable[Any] | None = None) -> QuantizeCalibrate:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizeCalibrate(dataset)
