"""Bias correction: biases compensate the mean error that quantized weights cause.

    before                                    after
    add(nn.conv2d(q(%x), q(w)), q(b))         add(nn.conv2d(q(%x), q(w)), q(b - e))

e = what a convolution with the error q(w) - w gives on the mean of %x, channel by channel, as
calibration measured it on the float network. Works where the product's only reader adds a constant
that is quantized; others are left alone.
Source: Nagel et al., "Data-free quantization through weight equalization and bias correction",
2019, section 4.2, with measured means in place of the means of batch normalisation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.ir.analysis import count_uses
from compiler.ir.expr import Call, Constant, Expr, Function
from compiler.ir.module import IRModule
from compiler.ir.rebuild import with_operands
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import is_quantized_constant
from compiler.ops.evaluate import evaluate_call
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.quantize.rewriting import rewritten
from compiler.quantize.scales.bias_room import add_operands
from compiler.quantize.weighted_calls import weight_of, weighted_calls


def correct_biases(simulated: IRModule, ranges: Sequence[ChannelRanges]) -> IRModule:
    """The simulated module with corrected biases.

    Args:
        simulated: result of ``bind_scales``.
        ranges: of the data of each weighted operator, in visiting order.
    """
    main: Function = simulated["main"]
    errors: dict[Expr, NDArray[np.float64]] = {}
    for (call, response), one in zip(weighted_calls(main), ranges, strict=True):
        weight = call.args[1]
        given = weight_of(call)
        if isinstance(weight, Call) and given is not None:
            errors[call] = response.respond(_error(weight, given), one.mean)
    replaced: dict[Expr, Expr] = {}
    for product, bias in biases_of(main).items():
        if product in errors:
            replaced[bias] = corrected_bias(bias, product, errors[product])
    return rewritten(simulated, lambda node, _: replaced.get(node))


def biases_of(main: Function) -> dict[Call, Call]:
    """Weighted product → the point of the constant bias that its only reader adds."""
    uses = count_uses(main)
    found: dict[Call, Call] = {}
    for node in nodes_of(main):
        for bias, product in add_operands(node):
            if uses[product] == uses[bias] == 1 and is_quantized_constant(bias):
                assert isinstance(bias, Call)
                if isinstance(product, Call):
                    found[product] = bias
    return found


def _error(point: Call, given: Constant) -> NDArray[np.float64]:
    """Return the difference between the levels of a bound quantize point and the given weight."""
    values = [arg.data for arg in point.args if isinstance(arg, Constant)]
    quantized = evaluate_call(point, values)
    assert isinstance(quantized, np.ndarray)
    return np.subtract(quantized, given.data, dtype=np.float64)


def corrected_bias(bias: Call, product: Call, error: NDArray[np.float64]) -> Expr:
    """The point of a bias without the mean error of the product, one number per output channel."""
    held = bias.args[0]
    assert isinstance(held, Constant)
    trailing = FQProductShape.require(product.op)(product).out_trailing
    along = error.reshape(-1, *(1,) * (trailing or 0))
    data = (held.data.astype(np.float64) - along).astype(np.float32)
    return with_operands(bias, (bias.op, Constant(data, span=held.span), *bias.args[1:]))
