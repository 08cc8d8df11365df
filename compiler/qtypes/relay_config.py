"""RelayConfig: the fields of a QConfig that are Relay v0.10's, with its defaults.

Nobody is advised to run them: ``QConfig.recommended()`` changes most. Source: spec of the
quantization flow, section 1.
"""

# ruff: noqa: RUF009 - option() declares a field
from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from compiler.qtypes.config_checks import (
    calibrate_mode,
    chunk,
    conv_places,
    dtype_input,
    flag,
    integer,
    number,
    one_of,
    op_names,
)
from compiler.qtypes.options import option
from compiler.qtypes.value_list import ValueList


@dataclass(frozen=True)
class RelayConfig:
    """Settings of Relay's quantizer; checked by QConfig.

    Attributes:
        nbit_input, nbit_weight, nbit_activation: bits per kind of quantize point; they fix the clip
            bounds and the divisor of the scale.
        dtype_input, dtype_weight, dtype_activation: storage types; the last is the accumulator's.
        calibrate_mode: where activation ranges come from.
        global_scale: the range assumed by calibrate_mode "global_scale", in real units.
        weight_scale: where weight ranges come from. "pairs" is "mse" with room: no two neighbouring
            weights of 8 bits sum to more than 128, so AVX2 may multiply bytes, which takes 0.81 of
            the time on EfficientNet-Lite0 and costs 0.6 dB (0.5 less to 0.1 more on small ones).
        skip_dense_layer: leave every nn.dense in float.
        skip_conv_layers: indices of the nn.conv2d left in float, in visiting order; None: none.
        do_simulation: stop after calibration.
        round_for_shift: add half before a right shift.
        debug_enabled_ops: names of the operators whose annotate rules may run; None allows all.
        rounding: of fixed-point products, half "UPWARD" or "TONEAREST" (half away from zero);
            "TONEAREST_EVEN" sends half to the even neighbour, in shifts as well.
        calibrate_chunk_by: profile outputs handled at a time; -1 means all.
        partition_conversions: cut the module into quantize_inputs, quantized_main and
            dequantize_outputs; "fully_integral" also refuses float inside.
        percentile: fraction of |x| that calibrate_mode "percentile" keeps inside the range.
        stop_after_global_pool: nothing visited after an nn.global_avg_pool2d is quantized.
    """

    nbit_input: int = option(8, partial(integer, 2, 16), ranged=True)
    nbit_weight: int = option(8, partial(integer, 2, 16))
    nbit_activation: int = option(32, partial(integer, 8, 32), ranged=True)
    dtype_input: str = option("int8", dtype_input, ranged=True)
    dtype_weight: str = option("int8", one_of("int8", "int16", "int32"))
    dtype_activation: str = option("int32", one_of("int16", "int32"))
    calibrate_mode: str = option(
        "global_scale",
        calibrate_mode,
        recommended="percentile",
        ranged=True,
        searched=("percentile", "kl_divergence", "max", "mse", "global_scale"),
    )
    global_scale: float = option(
        8.0,
        partial(number, math.inf),
        ranged=True,
        searched=(4.0, 8.0, 16.0, 32.0),
        when=("calibrate_mode", ("global_scale",)),
    )
    weight_scale: str = option(
        "power2",
        one_of("power2", "max", "mse", "pairs"),
        recommended="max",
        searched=("max", "power2", "mse"),
    )
    skip_dense_layer: bool = option(True, flag, recommended=False, measured=True)
    skip_conv_layers: ValueList[int] | None = option(
        ValueList((0,)), conv_places, recommended=[], measured=True
    )
    do_simulation: bool = option(False, flag)
    round_for_shift: bool = option(True, flag)
    debug_enabled_ops: ValueList[str] | None = option(None, op_names, measured=True)
    rounding: str = option("UPWARD", one_of("UPWARD", "TONEAREST", "TONEAREST_EVEN"))
    calibrate_chunk_by: int = option(-1, chunk, when=("calibrate_mode", ()))
    partition_conversions: str = option(
        "disabled",
        one_of("disabled", "enabled", "fully_integral"),
        recommended="fully_integral",
        searched=("fully_integral",),
    )
    percentile: float = option(
        0.99999,
        partial(number, 1.0),
        ranged=True,
        searched=(0.999, 0.9999, 0.99999, 0.999999),
        when=("calibrate_mode", ("percentile",)),
    )
    stop_after_global_pool: bool = option(True, flag, recommended=False, measured=True)
