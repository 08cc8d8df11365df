"""Checks of the fields of QConfig, with the message for a wrong value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any

from compiler.errors import legal_names
from compiler.ir.ty import bits
from compiler.qtypes.errors import ConfigValueError, PartitionConversionsValueError, refused
from compiler.qtypes.layer_choices import WIDE_BITS
from compiler.qtypes.options import Check, Option
from compiler.qtypes.value_list import ValueList


def _is_integer(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def integer(low: int, high: int, name: str, value: Any) -> int:
    """An integer from ``low`` to ``high``."""
    if _is_integer(value) and low <= value <= high:
        return int(value)
    raise refused(name, value, f"an integer from {low} to {high}")


def flag(name: str, value: Any) -> bool:
    """True or False."""
    if type(value).__name__ in ("bool", "bool_"):
        return bool(value)
    raise refused(name, value, "True or False")


def number(high: float, name: str, value: Any) -> float:
    """A number above 0, at most ``high``."""
    ok = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    if ok and 0 < value <= high:
        return float(value)
    if high == math.inf:
        limit = "above 0"
    else:
        limit = f"above 0, at most {high:g}"
    raise refused(name, value, f"a number {limit}")


def word(legal: tuple[str, ...], name: str, value: Any) -> str:
    """One of a few words."""
    if isinstance(value, str) and value in legal:
        return value
    mode = {"calibrate_mode": "calibrate mode", "weight_scale": "weight scale mode"}.get(name)
    if mode is None:
        what = f"QConfig.{name} cannot be {value!r}"
    else:
        what = f"Unknown {mode} {value!r}"
    fix = legal_names(str(value), legal)
    if name == "calibrate_mode":
        fix += "; a mode of your own is known once its module is imported (qsearch: --import)"
    error = PartitionConversionsValueError if name == "partition_conversions" else ConfigValueError
    raise error(what, fix=fix)


def one_of(*legal: str) -> Check:
    """The check of a field that takes these words."""
    return partial(word, legal)


def conv_places(name: str, value: Any) -> ValueList[int] | None:
    """Places of convolutions, or None."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(_is_integer(v) and v >= 0 for v in value):
        return ValueList(int(v) for v in value)
    raise refused(name, value, "None or a list of convolution indices, counted from 0")


def op_names(name: str, value: Any) -> ValueList[str] | None:
    """Names of operators, or None."""
    if value is None:
        return None
    if isinstance(value, (list, tuple)) and all(isinstance(v, str) for v in value):
        return ValueList(value)
    raise refused(name, value, 'None or a list of operator names such as ["nn.conv2d"]')


def chunk(name: str, value: Any) -> int:
    """A number of outputs, or -1 for all."""
    if _is_integer(value) and (value == -1 or value >= 1):
        return int(value)
    raise refused(name, value, "-1 (all at once) or at least 1")


def level(name: str, value: Any) -> int | None:
    """The level of a pass, or None."""
    if value is None:
        return None
    return integer(0, 3, name, value)


def share(name: str, value: Any) -> float | None:
    """A number from 0 to 1, or None."""
    if value is None:
        return None
    if isinstance(value, Real) and not isinstance(value, bool) and 0 <= float(value) <= 1:
        return float(value)
    raise refused(name, value, "None or a number from 0 to 1")


def dtype_input(name: str, value: Any) -> str:
    """A signed storage type."""
    if value == "uint8":
        raise ConfigValueError(
            "QConfig.dtype_input cannot be 'uint8': not every tensor is without negative values",
            fix='set activation_scheme="unsigned", which stores those that are as uint8; '
            "legal here: int8, int16, int32",
        )
    return word(("int8", "int16", "int32"), name, value)


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
    if known:
        return name
    return UnregisteredMode(name)


def calibrate_mode(name: str, value: Any) -> str:
    """A registered mode, or one of a stored module whose code is not loaded."""
    if isinstance(value, UnregisteredMode):
        return value
    return word(tuple(_CALIBRATE_MODES), name, value)


def check_fields(config: Any, options: Mapping[str, Option]) -> dict[str, Any]:
    """Every field of a QConfig in its canonical Python form.

    Raises:
        ConfigValueError: a field, or a pair of bits and dtype, that is not legal.
    """
    values = {name: one.check(name, getattr(config, name)) for name, one in options.items()}
    for kind in ("input", "weight", "activation"):
        nbit = values[f"nbit_{kind}"]
        dtype = values[f"dtype_{kind}"]
        if nbit > bits(dtype):
            raise ConfigValueError(
                f"QConfig.nbit_{kind}={nbit} does not fit dtype_{kind}={dtype!r}",
                fix=f"lower nbit_{kind} to {bits(dtype)} or take a wider dtype",
            )
    _check_layers(values)
    if values["requantization"] == "tflite" and values["dtype_input"] != "int8":
        dtype = values["dtype_input"]
        raise ConfigValueError(
            f"QConfig.requantization='tflite' has no form for dtype_input={dtype!r}",
            fix="take int8",
        )
    if values["do_simulation"] and values["partition_conversions"] == "fully_integral":
        raise ConfigValueError(
            "QConfig.do_simulation=True stops in front of the integers, so the module cannot be "
            "fully_integral",
            fix='set partition_conversions to "enabled" or "disabled", or do_simulation=False',
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
        if room < (choice.nbit_weight or 0) != WIDE_BITS:
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
