"""QConfig: every choice of one quantization run, checked when it is built.

Fields that Relay v0.10's qconfig has keep its defaults.
"""

# ruff: noqa: RUF009 - option() declares a field
from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Self

from compiler.errors import legal_names
from compiler.ir.expr import Call, Op
from compiler.qtypes.config_checks import check_fields, flag, level, one_of, share, stored_mode
from compiler.qtypes.errors import ConfigValueError, UnknownConfigKeyError
from compiler.qtypes.integer_form import FORMS, IntegerForm
from compiler.qtypes.layer_choices import LayerChoices, layer_choices
from compiler.qtypes.options import option, options_of
from compiler.qtypes.relay_config import RelayConfig
from compiler.qtypes.value_list import ValueList, split_assignments


class QAnnotateKind(IntEnum):
    """The ``kind`` attribute of simulated_quantize; the numbers are Relay's."""

    IDENTITY = 0
    INPUT = 1
    WEIGHT = 2
    ACTIVATION = 3


def kind2str(kind: int) -> str:
    """Name of a kind as texts and reports show it, such as "input".

    Raises:
        ValueError: not a kind.
    """
    return QAnnotateKind(kind).name.lower()


@dataclass(frozen=True)
class QConfig(RelayConfig):
    """One quantization run. The defaults are the reference's; ``recommended()`` is what we advise.

    ``with QConfig(...):`` makes it the current one of this thread or task.

    Attributes:
        bias_mode: constant biases in "weight" precision or at the "accumulator"'s own scale.
        keep_output_wide: results leave as accumulators, not narrowed to dtype_input. Without it
            and with integer_tables every result is narrowed, those of operators that narrow
            nothing by themselves, too.
        avg_pool_round: average pooling loses nothing; the rounding happens in the requantization.
        weight_granularity: one weight scale per "tensor" or per output "channel".
        activation_scheme: "symmetric": all narrow activations are signed. "unsigned": activations
            that are never negative are unsigned, which doubles their levels. "asymmetric": the
            others also have a zero point where their range is not even.
        integer_tables: activation functions, softmax, layer normalisation and every operator that
            moves data run on integers; the residual stream between layer norms has 16 bits; points
            that only moves, max pools and concatenations divide take one range.
        prerequisite_level: opt level of the passes before quantization; None takes the context's.
        smooth_alpha: move this share, 0 to 1, of the spread between activation channels into the
            weights first (same function); None moves nothing. Needs calibration data.
        requantization: "fixed_point" multiplies by 31 bits and shifts; "float_product" does so
            with multipliers, the nearest ones, that a float32 product gives the same integers
            for; "power_of_two" takes scales that are powers of two, the next ones upward, so that
            a shift is enough; "tflite" computes what TFLM's kernels compute, with 8 bits at every
            output and between operators, 16 in sums that norms read and in states of loops; or
            with 16 everywhere (dtype_input int16, symmetric).
        weight_rounding: "nearest": each weight goes to the nearest of its levels. "corrected":
            biases make up for the mean error of that (bias_mode "accumulator"), and the middle of
            each channel moves to 0 where only layers without padding, and sums in front of them,
            read it; the function stays the same. "sequential": all of this, layer by layer;
            weights take the levels with the least error of the layer's output, after what the
            layers in front have lost. A row with a scale of its own has 2^nbit_weight levels, one
            more than with "nearest". Activation ranges are fitted to what reads the tensor, except
            in large networks. "corrected" and "sequential" need calibration data.
        layers: what differs at single layers, by name: bits of weights and of inputs, or float.
            With integer_tables, "<sums>" names the residual sums and "<tables>" what only tables of
            functions read.

    Raises:
        UnknownConfigKeyError: an unknown field (also a TypeError).
        ConfigValueError: an illegal value (also a ValueError).
    """

    bias_mode: str = option("weight", one_of("weight", "accumulator"), recommended="accumulator")
    keep_output_wide: bool = option(False, flag, recommended=True, measured=True)
    avg_pool_round: bool = option(False, flag, recommended=True, measured=True)
    weight_granularity: str = option(
        "tensor", one_of("tensor", "channel"), recommended="channel", searched=("channel", "tensor")
    )
    activation_scheme: str = option(
        "symmetric",
        one_of("symmetric", "unsigned", "asymmetric"),
        recommended="unsigned",
        ranged=True,
        searched=("unsigned", "asymmetric", "symmetric"),
    )
    integer_tables: bool = option(False, flag, recommended=True, measured=True)
    prerequisite_level: int | None = option(None, level, recommended=3, measured=True)
    smooth_alpha: float | None = option(None, share, measured=True, searched=(None, 0.5, 0.75))
    requantization: str = option(
        "fixed_point",
        one_of("fixed_point", "float_product", "power_of_two", "tflite"),
        recommended="float_product",
    )
    weight_rounding: str = option(
        "nearest",
        one_of("nearest", "corrected", "sequential"),
        searched=("corrected", "sequential"),
    )
    layers: LayerChoices = option(LayerChoices(), layer_choices)

    def __new__(cls, *values: Any, **named: Any) -> Self:
        """Refuses unknown fields before the generated ``__init__`` does so less helpfully."""
        _check_names(cls, named)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, value in check_fields(self, options_of(type(self))).items():
            object.__setattr__(self, name, value)

    @property
    def most_input_bits(self) -> int:
        """The most bits that a stored value may have."""
        return max(self.nbit_input, self.layers.most_input_bits)

    @classmethod
    def recommended(cls, **overrides: Any) -> QConfig:
        """Return the configuration that the service starts from: no float islands, integers from
        end to end."""
        advised = {name: one.recommended for name, one in options_of(cls).items()}
        return cls(**{**advised, **overrides})

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> QConfig:
        """The inverse of ``to_dict``; absent fields take their defaults."""
        return cls(**values)

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> QConfig:
        """Return the configuration of a file; a calibrate_mode of code that is not loaded is kept
        as a name."""
        mode = values.get("calibrate_mode")
        if isinstance(mode, str):
            named = {"calibrate_mode": stored_mode(mode)}
        else:
            named = {}
        return cls(**{**values, **named})

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain JSON value."""
        return {name: _plain(getattr(self, name)) for name in self.__dataclass_fields__}

    def with_overrides(self, **overrides: Any) -> QConfig:
        """A copy with some fields changed, checked as a whole."""
        _check_names(type(self), overrides)
        return dataclasses.replace(self, **overrides)

    @property
    def uncut(self) -> QConfig:
        """The same for a module of one function, which may have float parts."""
        return self.with_overrides(partition_conversions="disabled")

    def with_whole_weights(self) -> QConfig:
        """The same with at least 8 bits for every weight."""
        layers = {
            name: dataclasses.replace(one, nbit_weight=None)
            if one.nbit_weight is not None and one.nbit_weight < _WHOLE
            else one
            for name, one in self.layers.items()
        }
        return self.with_overrides(
            nbit_weight=max(self.nbit_weight, _WHOLE), layers=LayerChoices(layers)
        )

    def calibration_fields(self) -> dict[str, Any]:
        """The fields that decide which tensors are measured: the key of cached statistics.

        Scales, bits, rounding and granularity are derived from the statistics later.
        """
        decides = (name for name, one in options_of(type(self)).items() if one.measured)
        found = {name: _plain(getattr(self, name)) for name in decides}
        narrow = self.form.stores_values or self.layers.narrow_sums
        found |= {"sums": self.layers.wide_sums, "narrow": narrow}
        return {**found, "float_layers": list(self.layers.float_layers)}

    @property
    def form(self) -> IntegerForm:
        """Return the arithmetic of the operators that a module is made for."""
        return FORMS[self.requantization]

    @property
    def is_relay(self) -> bool:
        """True if only fields that Relay's quantizer has differ from the defaults."""
        own = self.__dataclass_fields__.keys() - RelayConfig.__dataclass_fields__.keys()
        return all(getattr(self, name) == self.__dataclass_fields__[name].default for name in own)

    @property
    def narrow_results(self) -> bool:
        """Return whether every result of the function has the bits of a stored value."""
        return self.form.stores_values or (self.integer_tables and not self.keep_output_wide)

    @property
    def needs_ranges(self) -> bool:
        """True where the ranges of activations are chosen from statistics."""
        return self.calibrate_mode != "global_scale"

    @property
    def needs_channels(self) -> bool:
        """True where statistics of single channels are needed, not only of points."""
        return self.smooth_alpha is not None or self.weight_rounding != "nearest"

    @property
    def sequential(self) -> bool:
        """Return whether weights are rounded layer by layer, which needs a sample of the inputs."""
        return self.weight_rounding == "sequential"

    def get_nbit_by_kind(self, kind: int) -> int:
        """Bits of a quantize point.

        Raises:
            ConfigValueError: the kind has no bits (IDENTITY).
        """
        return int(getattr(self, f"nbit_{_field_of_kind(kind)}"))

    def get_dtype_by_kind(self, kind: int) -> str:
        """Storage dtype of a quantize point.

        Raises:
            ConfigValueError: the kind has no dtype (IDENTITY).
        """
        return str(getattr(self, f"dtype_{_field_of_kind(kind)}"))

    def guard(self, call: Call) -> bool:
        """True when the annotate rule of this call may run (``debug_enabled_ops``)."""
        enabled = self.debug_enabled_ops
        return enabled is None or (isinstance(call.op, Op) and call.op.name in enabled)

    def __enter__(self) -> Self:
        _STACK.set((*_STACK.get(), self))
        return self

    def __exit__(self, *_error: object) -> None:
        _STACK.set(_STACK.get()[:-1])

    @staticmethod
    def parse_overrides(text: str, beside: tuple[str, ...] = ()) -> dict[str, Any]:
        """Read ``k=v,k=[v,v]`` as the command line gives it; the fields check the values later.

        Args:
            beside: names that are no fields, and may be given as well.
        Raises:
            ConfigValueError: an item that is not an assignment.
            UnknownConfigKeyError: an unknown field.
        """
        found = split_assignments(text)
        _check_names(QConfig, [name for name in found if name not in beside])
        return found


_WHOLE = 8
"""Bits of a weight that is rounded as finely as any."""

_STACK: ContextVar[tuple[QConfig, ...]] = ContextVar("qconfig", default=())

_SCALARS = frozenset((bool, int, float, str, type(None)))


def _check_names(cls: type[QConfig], names: Iterable[str]) -> None:
    legal = tuple(cls.__dataclass_fields__)
    for name in names:
        if name not in legal:
            raise UnknownConfigKeyError(
                f"QConfig has no field {name!r}", fix=legal_names(name, legal)
            )


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:  # most fields; LayerChoices is a Mapping, which takes long to ask
        return value
    if isinstance(value, LayerChoices):
        return value.to_dict()
    if isinstance(value, ValueList):
        return list(value)
    return value


def _field_of_kind(kind: int) -> str:
    if kind in (QAnnotateKind.INPUT, QAnnotateKind.WEIGHT, QAnnotateKind.ACTIVATION):
        return QAnnotateKind(kind).name.lower()
    raise ConfigValueError(f"kind {kind!r} has neither bits nor a dtype")


def qconfig(**overrides: Any) -> QConfig:
    """A QConfig from the reference's defaults and overrides; use it as ``with qconfig(...):``.

    Scopes do not merge: the inner one starts from the defaults again.
    """
    return QConfig(**overrides)


def current_qconfig() -> QConfig:
    """The innermost ``with qconfig(...)`` of this thread or task, or the defaults."""
    stack = _STACK.get()
    if stack:
        return stack[-1]
    return QConfig()


def qconfig_from_text(text: str, start: QConfig | None = None) -> QConfig:
    """``start`` (``QConfig.recommended()`` unless given) changed by ``k=v,k=[v,v]``."""
    base = QConfig.recommended() if start is None else start
    return base.with_overrides(**QConfig.parse_overrides(text))
