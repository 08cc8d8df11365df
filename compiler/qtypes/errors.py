"""Errors of the quantization flow that also belong to a class of the standard library."""

from __future__ import annotations

from compiler.errors import BindError, QuantizeError


class UnknownConfigKeyError(QuantizeError, TypeError):
    """A key that QConfig does not have; the message names the nearest one."""


class ConfigValueError(QuantizeError, ValueError):
    """A value that a QConfig field may not take."""


def refused(place: str, value: object, legal: str) -> ConfigValueError:
    """The error of a value that ``QConfig.place`` may not take."""
    return ConfigValueError(f"QConfig.{place} cannot be {value!r}", fix=f"legal: {legal}")


class PartitionConversionsValueError(ConfigValueError, AssertionError):
    """A value that ``partition_conversions`` may not take."""


class WeightNotConstantError(QuantizeError, AssertionError):
    """The weight of a convolution or dense layer is computed, or an input of the model."""


class IntegerOverflowError(QuantizeError, ValueError):
    """A sum that could leave its integer dtype for some input, by its static bound."""


class DuplicateParameterError(BindError, ValueError):
    """Two function parameters share the name that is being bound."""


class ModuleShapeError(QuantizeError, AssertionError):
    """partition_conversions was given something other than one plain function."""
