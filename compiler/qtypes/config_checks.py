"""What each QConfig field may hold; the message of a wrong value says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from numbers import Integral, Real
from typing import Any

from compiler.errors import legal_names
from compiler.ir.ty import bits
from compiler.qtypes.errors import ConfigValueError, PartitionConversionsValueError
from compiler.qtypes.layer_choices import layer_choices
from compiler.qtypes.value_list import ValueList

Check = Callable[[str, Any], Any]


def _refuse(name: str, value: Any, legal: str) -> ConfigValueError:
    return ConfigValueError(f"QConfig.{name} cannot be {value!r}", fix=f"legal: {legal}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _integer(low: int, high: int, name: str, value: Any) -> int:
    if _is_integer(value) and low <= value <= high:
        return int(value)
    raise _refuse(name, value, f"an integer from {low} to {high}")


def _flag(name: str, value: Any) -> bool:
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise _refuse(name, value, "True or False")


def _number(high: float, name: str, value: Any) -> float:
    ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if ok and 0 < value <= high:
        return float(value)
    limit = "above 0" if high == math.inf else f"above 0, at most {high:g}"
    raise _refuse(name, value, f"a number {limit}")


def _word(legal: tuple[str, ...], name: str, value: Any) -> str:
    if isinstance(value, str) and value in legal:
        return value
    if name == "calibrate_mode":
        what = f"Unknown calibrate mode {value!r}"
    elif name == "weight_scale":
        what = f"Unknown weight scale mode {value!r}"
    else:
        what = f"QConfig.{name} cannot be {value!r}"
    fix = legal_names(str(value), legal)
    if name == "calibrate_mode":
        fix += "; a mode of your own is known once its module is imported (qsearch: --import)"
    error = PartitionConversionsValueError if name == "partition_conversions" else ConfigValueError
    raise error(what, fix=fix)


def _layers(name: str, value: Any) -> ValueList[int] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(_is_integer(v) and v >= 0 for v in value):
        return ValueList(int(v) for v in value)
    raise _refuse(name, value, "None or a list of convolution indices, counted from 0")


def _op_names(name: str, value: Any) -> ValueList[str] | None:
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return ValueList(value)
    raise _refuse(name, value, 'None or a list of operator names such as ["nn.conv2d"]')


def _chunk(name: str, value: Any) -> int:
    if _is_integer(value) and (value == -1 or value >= 1):
        return int(value)
    raise _refuse(name, value, "-1 (all at once) or at least 1")


def _level(name: str, value: Any) -> int | None:
    return None if value is None else _integer(0, 3, name, value)


def _share(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1:
        return float(value)
    raise _refuse(name, value, "None or a number from 0 to 1")


def _dtype_input(name: str, value: Any) -> str:
    if value == "uint8":
        raise ConfigValueError(
            "QConfig.dtype_input cannot be 'uint8': not every tensor is without negative values",
            fix='set activation_scheme="unsigned", which stores those that are as uint8; '
            "legal here: int8, int16, int32",
        )
    return _word(("int8", "int16", "int32"), name, value)


def _residual_bits(name: str, value: Any) -> int:
    if _is_integer(value) and value in (8, 16):
        return int(value)
    raise _refuse(name, value, "8 or 16")


_LONGEST_MODE = 64
_CALIBRATE_MODES = ["global_scale", "kl_divergence", "percentile", "max", "mse"]


def allow_calibrate_mode(name: str) -> None:
    """``QConfig.calibrate_mode`` may be ``name``; the table of modes says so for each entry."""
    if name not in _CALIBRATE_MODES:
        _CALIBRATE_MODES.append(name)


class UnregisteredMode(str):
    """The calibrate_mode of a stored module whose own code registered it, which is not loaded here.

    The module runs all the same; whoever calibrates with this mode is told that it is unknown.
    """

    __slots__ = ()


def stored_mode(name: str) -> str:
    """A calibrate_mode as a file names it."""
    known = name in _CALIBRATE_MODES or not name.isidentifier() or len(name) > _LONGEST_MODE
    return name if known else UnregisteredMode(name)


def _calibrate_mode(name: str, value: Any) -> str:
    if isinstance(value, UnregisteredMode):
        return value
    return _word(tuple(_CALIBRATE_MODES), name, value)


CHECKS: dict[str, Check] = {
    "nbit_input": partial(_integer, 2, 16),
    "nbit_weight": partial(_integer, 2, 16),
    "nbit_activation": partial(_integer, 8, 32),
    "dtype_input": _dtype_input,
    "dtype_weight": partial(_word, ("int8", "int16", "int32")),
    "dtype_activation": partial(_word, ("int16", "int32")),
    "calibrate_mode": _calibrate_mode,
    "global_scale": partial(_number, math.inf),
    "weight_scale": partial(_word, ("power2", "max", "mse")),
    "skip_dense_layer": _flag,
    "skip_conv_layers": _layers,
    "do_simulation": _flag,
    "round_for_shift": _flag,
    "debug_enabled_ops": _op_names,
    "rounding": partial(_word, ("UPWARD", "TONEAREST", "TONEAREST_EVEN")),
    "calibrate_chunk_by": _chunk,
    "partition_conversions": partial(_word, ("disabled", "enabled", "fully_integral")),
    "percentile": partial(_number, 1.0),
    "bias_mode": partial(_word, ("weight", "accumulator")),
    "keep_output_wide": _flag,
    "stop_after_global_pool": _flag,
    "avg_pool_round": _flag,
    "weight_granularity": partial(_word, ("tensor", "channel")),
    "activation_scheme": partial(_word, ("symmetric", "unsigned", "asymmetric")),
    "integer_tables": _flag,
    "prerequisite_level": _level,
    "smooth_alpha": _share,
    "requantization": partial(_word, ("fixed_point", "float_product", "power_of_two")),
    "weight_rounding": partial(_word, ("nearest", "corrected", "sequential")),
    "residual_bits": _residual_bits,
    "table_bits": partial(_integer, 8, 12),
    "layers": layer_choices,
}


def check_fields(config: Any) -> dict[str, Any]:
    """Every field of a QConfig in its canonical Python form.

    Raises:
        ConfigValueError: a field, or a pair of bits and dtype, that is not legal.
    """
    values = {name: check(name, getattr(config, name)) for name, check in CHECKS.items()}
    for kind in ("input", "weight", "activation"):
        nbit, dtype = values[f"nbit_{kind}"], values[f"dtype_{kind}"]
        if nbit > bits(dtype):
            raise ConfigValueError(
                f"QConfig.nbit_{kind}={nbit} does not fit dtype_{kind}={dtype!r}",
                fix=f"lower nbit_{kind} to {bits(dtype)} or take a wider dtype",
            )
    _check_layers(values)
    if values["do_simulation"] and values["partition_conversions"] != "disabled":
        raise ConfigValueError(
            "QConfig.do_simulation=True stops in front of the integers, so there is nothing that "
            f"partition_conversions={values['partition_conversions']!r} could cut",
            fix='set partition_conversions="disabled", or do_simulation=False',
        )
    if values["weight_rounding"] == "corrected" and values["bias_mode"] != "accumulator":
        raise ConfigValueError(
            "QConfig.weight_rounding='corrected' needs finer biases than "
            f"bias_mode={values['bias_mode']!r}",
            fix='set bias_mode="accumulator", or weight_rounding="nearest"',
        )
    return values


def _check_layers(values: dict[str, Any]) -> None:
    """Bits of single layers fit the dtype, and no layer is float in a fully integral module."""
    room = bits(values["dtype_weight"])
    for name, choice in values["layers"].items():
        if (choice.nbit_weight or 0) > room:
            raise ConfigValueError(
                f"QConfig.layers[{name!r}]: nbit_weight={choice.nbit_weight} does not fit "
                f"dtype_weight={values['dtype_weight']!r}",
                fix=f"lower it to {room} or take a wider dtype_weight",
            )
    left = values["layers"].float_layers
    if left and values["partition_conversions"] == "fully_integral":
        raise ConfigValueError(
            f"QConfig.layers leaves {', '.join(left)} in float, which "
            'partition_conversions="fully_integral" does not allow',
            fix='give the layers bits, or set partition_conversions="enabled"',
        )
