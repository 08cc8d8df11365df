"""Realized modules hold no call that changes nothing, and biases stand in requantizations."""

from __future__ import annotations

import numpy as np
import pytest

from compiler import relay
from compiler.ir.expr import Call, Expr, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.quantize import QConfig
from tests.compiler.quantize.candidates import assert_same_integers, calibrated
from tests.compiler.quantize.table_networks import Weights, images

op = relay.op


def realized(body: Expr, x: relay.Var) -> list[Call]:
    """Calls of the integer module of a network with one input, which agrees in all forms."""
    mod = infer_module(IRModule.from_expr(relay.Function([x], body)))
    data = images(4, x.tensor_type.concrete_shape)
    config = QConfig.recommended(partition_conversions="enabled")
    module = calibrated(mod, config, data).partitioned
    assert module is not None
    assert_same_integers(module, data)
    return [node for node in nodes_of(module["quantized_main"]) if isinstance(node, Call)]


def input_image() -> relay.Var:
    return relay.var("x", shape=(1, 3, 8, 8), dtype="float32")


def test_a_pool_behind_a_relu_needs_no_cast_and_no_clip() -> None:
    x = input_image()
    w = Weights()
    first = op.transpose(op.nn.relu(w.conv(x, 3, 4, 3)), axes=(0, 1, 3, 2))
    pooled = op.nn.max_pool2d(first, pool_size=(2, 2), strides=(2, 2))
    body = op.add(w.conv(pooled, 4, 4, 3), w.conv(pooled, 4, 4))
    calls = realized(body, x)
    (index,) = [i for i, call in enumerate(calls) if is_op_call(call, "nn.max_pool2d")]
    pool = calls[index]
    assert is_op_call(pool.args[0], "transpose")
    readers = [call for call in calls if pool in call.args]
    assert len(readers) == 2
    assert all(is_op_call(reader, "nn.conv2d") for reader in readers)


@pytest.mark.parametrize("bias_first", [False, True])
def test_a_bias_on_one_side_of_a_residual_sum_is_in_the_requantization(bias_first: bool) -> None:
    x = relay.var("x", shape=(4, 16), dtype="float32")
    w = Weights()
    skip = w.dense(x, 16, 16)
    normed = op.nn.layer_norm(skip, relay.const(np.ones(16, np.float32)), w.normal(16))
    product = op.nn.dense(normed, w.normal(16, 16, scale=0.25), units=16)
    bias = w.normal(16, scale=0.1)
    branch = op.add(bias, product) if bias_first else op.add(product, bias)
    total = op.add(skip, branch)
    ones = relay.const(np.ones(16, np.float32))
    calls = realized(op.nn.layer_norm(total, ones, w.normal(16)), x)
    sums = [call for call in calls if is_op_call(call, "add")]
    products = [call for call in calls if is_op_call(call, "nn.dense")]
    (residual,) = [call for call in sums if products[1] in call.args]
    (reader,) = [call for call in calls if residual in call.args]
    assert is_op_call(reader, "qnn.requantize")
    assert len(reader.args) % 2 == 0, "a vector of biases"
    assert reader.tensor_type.dtype == "int16"
