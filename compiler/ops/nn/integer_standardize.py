"""nn.integer_standardize(data): (x - mean) / sqrt(variance + eps) of integers, N along ``axis``.

    c = N x - sum(x)                                       exact, N times x - mean
    D = N sum(x x) - sum(x)^2 + epsilon                    exact, N^2 times the variance
    r = max(isqrt(D * 4^root_bits), 1)                     the root, root_bits of it fractional
    out = floor((c * 2^(out_bits + root_bits + 1) + r) / (2 r))

out / 2^out_bits is the normalised value, rounded half up; ``output_bound`` limits it. Without
``centred`` the sum counts as 0: x over the root of its mean square. The contract
is D * 4^root_bits < 2^62 and |c| * 2^(out_bits + root_bits + 1) < 2^62.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from compiler.core.words import FBody, Words, shape_of
from compiler.errors import TypeInferenceError
from compiler.ir.dataflow import Step, Value
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import TensorType, Type
from compiler.ops.arg_types import Types, check_dtype, normalize_axis, tensor_of_rank
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute
from compiler.ops.tensor.isqrt import integer_sqrt

OP = "nn.integer_standardize"
DTYPES = ("int8", "int16", "int32")


class IntegerStandardizeAttrs(OpAttrs):
    """``epsilon`` in units of N^2 data^2; bits behind the point of the root and of the result;
    whether the mean is taken away."""

    axis: int = -1
    epsilon: int = 0
    root_bits: int = 0
    out_bits: int = 12
    centred: bool = True


@define_op(OP, pattern=OpPattern.OPAQUE)
def integer_standardize(types: Types, attrs: IntegerStandardizeAttrs) -> Type:
    """The shape of the data, int32.

    Raises:
        TypeInferenceError: the data are no signed integers, epsilon is negative, or the bits are
            not within 0 .. 20.
    """
    data = tensor_of_rank(OP, types, 0, "data", 1, at_least=True)
    check_dtype(OP, data, DTYPES)
    normalize_axis(OP, attrs.axis, len(data.shape))
    if attrs.epsilon < 0 or not (0 <= attrs.root_bits <= 20 and 0 <= attrs.out_bits <= 20):
        raise TypeInferenceError(
            f"{OP}: epsilon {attrs.epsilon}, root_bits {attrs.root_bits}, out_bits "
            f"{attrs.out_bits}",
            fix="epsilon must be >= 0, the others between 0 and 20",
        )
    return TensorType(data.shape, "int32")


def output_bound(count: int, out_bits: int) -> int:
    """max |out| over all data: no element is farther than sqrt(N - 1) deviations from the mean, or
    more than sqrt(N) times the root of the mean square."""
    # Data that are not all equal have D >= N - 1, so the floor of the root adds less than two.
    return (math.isqrt(max(count - 1, 0)) + 3) * (1 << out_bits) + 1


@FNumpyCompute.register(integer_standardize)
def integer_standardize_numpy(
    attrs: IntegerStandardizeAttrs, args: Arrays, out_type: Type
) -> list[Any]:
    """In int64."""
    wide = args[0].astype(np.int64)
    axis = attrs.axis
    count = wide.shape[axis]
    total = wide.sum(axis=axis, keepdims=True)
    if not attrs.centred:
        total = np.zeros_like(total)
    centred = count * wide - total
    deviation = count * (wide * wide).sum(axis=axis, keepdims=True) - total * total
    squared = np.maximum(deviation + attrs.epsilon, 0) << (2 * attrs.root_bits)
    root = np.maximum(integer_sqrt(np.maximum(squared, 0)), 1)
    scaled = centred << (attrs.out_bits + attrs.root_bits + 1)
    return [((scaled + root) // (2 * root)).astype(np.int32)]


@FBody.register(integer_standardize)
def integer_standardize_body(step: Step, words: Words) -> Value:
    """As the module says; the last limits are met anyway, and tell the bounds."""
    attrs = step.attrs
    x = words.cast(step.args[0], "int64")
    axes = (attrs.axis % len(x.type.shape),)
    count = shape_of(x)[axes[0]]
    centred = words.multiply(x, count)
    spread = words.multiply(words.reduce("sum", words.multiply(x, x), axes), count)
    if attrs.centred:
        total = words.reduce("sum", x, axes)
        centred = words.subtract(centred, total)
        spread = words.subtract(spread, words.multiply(total, total))
    spread = words.maximum(words.add(spread, attrs.epsilon), 0)
    squared = words.maximum(words.multiply(spread, 1 << (2 * attrs.root_bits)), 0)
    root = words.maximum(words.isqrt(squared), 1)
    scaled = words.multiply(centred, 1 << (attrs.out_bits + attrs.root_bits + 1))
    quotient = words.binary("floor_divide", words.add(scaled, root), words.multiply(root, 2))
    bound = output_bound(count, attrs.out_bits)
    return words.cast(words.clip(quotient, -bound, bound), "int32")
