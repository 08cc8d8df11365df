"""QuantizeCalibrate: measure the quantize points on a dataset, then bind their scales."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import ModulePass, PassContext, register_pass
from compiler.ir.static_shapes import require_static
from compiler.quantize.calibration.flow import Calibration
from compiler.quantize.run_context import RunPass, context_or_new
from compiler.quantize.scales.bind_scales import bind_scales
from compiler.quantize.scales.shared_ranges import shared_ranges


@register_pass("QuantizeCalibrate", opt_level=1, required=("InferType",))
@dataclass(frozen=True, slots=True)
class QuantizeCalibrate(RunPass, ModulePass):
    """Every scale and clip bound becomes a constant.

    Args:
        dataset: batches (input name → array); calibrate_mode "global_scale" needs none.
        context: the run this pass belongs to; without one, the current QConfig counts.

    Raises:
        CalibrationError: the mode needs data and there are none, or they do not fit.
    """

    dataset: Iterable[Any] | None = None

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        main = mod["main"]
        if isinstance(main, Function):
            require_static(main, self.info.name)
        run = context_or_new(self.context)
        # Partition and annotation are done, and channels are known to the run.
        calibration = Calibration(mod, self.dataset, mark=lambda *_: (mod, run))
        plain = run.qconfig.with_overrides(smooth_alpha=None, weight_rounding="nearest")
        ranges, _ = shared_ranges(mod, run.qconfig, calibration.scales_for(plain))
        return bind_scales(mod, run, ranges)


def calibrate(dataset: Iterable[Any] | None = None) -> QuantizeCalibrate:
    """The pass, for the QConfig that is current when it runs."""
    return QuantizeCalibrate(dataset=dataset)
