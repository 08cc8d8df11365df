"""quantize(mod, params, dataset): the whole flow in one call."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import compiler.passes.fold_constant  # noqa: F401  (named below)
from compiler.errors import CalibrationError
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import Pass, PassContext, Sequential
from compiler.ir.ty import bits
from compiler.ops.rules.realize import WIDE_INPUT
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.quantize._given_points import for_given_points
from compiler.quantize._integer_products import refuse_integer_products
from compiler.quantize._layers import begin_report
from compiler.quantize._prerequisite import Params, prerequisite_optimize
from compiler.quantize._recognize import recognized
from compiler.quantize._rescaling import rescaled
from compiler.quantize._run_context import context_or_new
from compiler.quantize.calibration.channel_stats import channel_stats
from compiler.quantize.calibration.collect_stats import require_reiterable
from compiler.quantize.calibration.quantize_calibrate import QuantizeCalibrate
from compiler.quantize.conversions import partition_conversions
from compiler.quantize.correct_rounding import CorrectRounding
from compiler.quantize.quantize_annotate import QuantizeAnnotate
from compiler.quantize.quantize_partition import QuantizePartition
from compiler.quantize.quantize_realize import QuantizeRealize

REQUIRED = ("QuantizeAnnotate", "QuantizeCalibrate", "QuantizeRealize")


def quantize(
    mod: IRModule,
    params: Params | None = None,
    dataset: Iterable[Any] | None = None,
    context: QuantizeContext | None = None,
) -> IRModule:
    """Quantize a float module after the current QConfig.

    Args:
        mod: the module; ``main`` is quantized.
        params: weights by parameter name, bound as constants.
        dataset: calibration batches (input name → array), iterable more than once.
        context: a run of one's own, to read its ``report`` afterwards; its QConfig counts.

    Returns:
        The integer module, partitioned as ``partition_conversions`` says; with do_simulation the
        float module with simulated_quantize.

    Raises:
        CalibrationError: data are missing or do not fit (also a ValueError).
        NotFullyIntegralError: "fully_integral" was asked for and float is left.
        IntegerOverflowError: a sum may leave its dtype (also a ValueError).
        TypeError: the dataset can be read only once.
        QuantizeError: layers of the model multiply integers already.
    """
    run = context_or_new(context)
    cfg = run.qconfig
    if dataset is not None and cfg.calibrate_mode != "global_scale":
        require_reiterable(dataset)
    if cfg.partition_conversions == "fully_integral" and cfg.skip_conv_layers:
        warnings.warn(
            f"fully_integral with skip_conv_layers={list(cfg.skip_conv_layers)}: skipped "
            "convolutions stay float; give skip_conv_layers=[] to quantize all",
            stacklevel=2,
        )
    mod = prerequisite_optimize(mod, params, cfg.prerequisite_level)
    refuse_integer_products(mod)
    mod = _rescaled(mod, dataset, run)
    run.qconfig = cfg = for_given_points(mod, cfg)
    mod = recognized(mod, cfg)
    begin_report(run, mod["main"])
    steps: list[Pass | str] = [
        QuantizePartition(run),
        QuantizeAnnotate(run),
        QuantizeCalibrate(dataset, run),
        CorrectRounding(run),
        "InferType",
    ]
    if not cfg.do_simulation:
        steps.append(QuantizeRealize(run))
    steps.append("FoldConstant")
    with PassContext.current().inner(opt_level=3, required_pass=REQUIRED):
        mod = Sequential(steps, name="quantize")(mod)
    return partitioned(mod, cfg)


def _rescaled(mod: IRModule, dataset: Iterable[Any] | None, run: QuantizeContext) -> IRModule:
    """The module as equalization and smoothing leave it; the run learns of its channels."""
    channels = None
    if run.qconfig.needs_channels:
        if dataset is None:
            raise CalibrationError(
                "smooth_alpha, bias_correction and adaptive weight_rounding need a dataset",
                fix="pass dataset=[{input name: array}, …], or unset these fields",
            )
        require_reiterable(dataset)
        channels = channel_stats(mod, dataset, grams=run.qconfig.needs_grams)
    mod, run.channel_ranges = rescaled(mod, run.qconfig, channels)
    return mod


def partitioned(mod: IRModule, cfg: QConfig) -> IRModule:
    """The quantized module in the form ``cfg.partition_conversions`` asks for."""
    if cfg.partition_conversions == "disabled":
        return mod
    return partition_conversions(
        mod, integer_dtypes(cfg), cfg.partition_conversions == "fully_integral"
    )


def integer_dtypes(cfg: QConfig) -> set[str]:
    """What the integers of a quantized module are stored in."""
    dtypes = {cfg.dtype_input, cfg.dtype_weight, cfg.dtype_activation}
    if cfg.layers.most_input_bits > bits(cfg.dtype_input):
        dtypes.add(WIDE_INPUT)
    return dtypes
