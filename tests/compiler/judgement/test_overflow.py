"""Accumulators and biases that leave int32 are refuted, those of honest files proved."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from compiler.judgement.exact import evaluate
from compiler.judgement.layers import Network, read_network
from compiler.judgement.overflow import AT_THE_LAYER, PROVED, REFUTED, overflow, with_witnesses
from tests.compiler.judgement.small_files import dense, node, packed, random_weights
from tests.each import each

LIMIT = 2**31 - 1


def claims(network: Network) -> dict[str, str]:
    return {claim.what: claim.verdict for claim in overflow(network, {})}


def test_a_layer_of_small_sums_is_proved() -> None:
    network = read_network(dense(random_weights(8, 4, 127), np.arange(4, dtype=np.int32)))
    assert claims(network) == {"bias": PROVED, "accumulator": PROVED}


@pytest.mark.parametrize(
    ("largest", "verdict"), [(127, PROVED), (-(2**31) + 200, AT_THE_LAYER)], ids=["small", "large"]
)
def test_accumulators_in_branches_are_judged_by_their_operands(largest: int, verdict: str) -> None:
    inner = ModelProto.FromString(
        dense(np.full((8, 2), -100, np.int8), np.array([0, largest], np.int32))
    ).graph
    del inner.input[:]
    outer = dense(random_weights(8, 4, 127), np.arange(4, dtype=np.int32))
    model = ModelProto.FromString(outer)
    model.graph.node.append(
        node("If", ["c"], ["z"], name="choice", then_branch=inner, else_branch=inner)
    )
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    network = read_network(model.SerializeToString())
    sample = {"x": np.zeros((1, 8), np.float32), "c": np.array(True)}
    found = with_witnesses(network, overflow(network, {}), [sample])
    sums = [(claim.inside, claim.verdict) for claim in found if claim.what == "accumulator"]
    assert sums == [(False, PROVED), (True, verdict), (True, verdict)]


def test_bounds_hold_for_random_inputs() -> None:
    network = read_network(dense(random_weights(8, 4, 127), np.arange(4, dtype=np.int32)))
    (claim,) = (c for c in overflow(network, {}) if c.what == "accumulator")
    rng = np.random.default_rng(0)
    for _ in each(range(20)):
        sums = evaluate(network, {"x": rng.normal(0, 9, (1, 8)).astype(np.float32)}).sums["layer"]
        assert claim.low <= sums.min()
        assert sums.max() <= claim.high


@pytest.mark.parametrize("bias", [2**31 - 1, -(2**31), -(2**31) + 1])
def test_a_bias_at_an_end_of_int32_was_clipped(bias: int) -> None:
    network = read_network(dense(random_weights(8, 2, 3), np.array([5, bias], np.int32)))
    (claim,) = (c for c in overflow(network, {}) if c.what == "bias")
    assert (claim.verdict, claim.channel) == (AT_THE_LAYER, 1)
    assert "clipped" in claim.detail


@pytest.mark.parametrize("scale", [0.0, -0.03, np.nan, np.inf, 1e-42])
def test_a_scale_that_is_no_unit_is_refuted_by_name(scale: float) -> None:
    network = read_network(dense(random_weights(8, 2, 3), scales=(0.5, 0.1, scale)))
    found = with_witnesses(network, overflow(network, {}), [{"x": np.zeros((1, 8), np.float32)}])
    (claim,) = (c for c in found if c.what == "scale")
    assert claim.refuted
    assert claim.detail.startswith(f"sy of channel 0 is {np.float32(scale):g}; a scale is a finite")


def test_a_float_bias_beyond_int32_is_refuted() -> None:
    bias = np.array([5.0, -4.5], np.float32)
    network = read_network(dense(random_weights(8, 2, 3), bias, scales=(0.5, 7.8e-10, 0.1)))
    (claim,) = (c for c in overflow(network, {}) if c.what == "bias")
    assert (claim.verdict, claim.channel) == (AT_THE_LAYER, 0)
    assert "int32 ends at 2147483647" in claim.detail


@pytest.mark.parametrize("conv", [False, True])
def test_an_accumulator_that_overflows_is_refuted_by_an_input_of_the_network(conv: bool) -> None:
    weights = np.full((2, 3, 3, 3) if conv else (16, 2), -100, np.int8)
    bias = np.array([0, LIMIT - 100], np.int32)
    network = read_network(dense(weights, bias, conv=conv))
    shape = (1, 3, 4, 4) if conv else (1, 16)
    found = with_witnesses(network, overflow(network, {}), [{"x": np.zeros(shape, np.float32)}])
    (claim,) = (c for c in found if c.what == "accumulator")
    assert (claim.verdict, claim.channel) == (REFUTED, 1)
    assert claim.witness is not None
    sums = evaluate(network, claim.witness).sums["layer"]
    assert sums.max() > LIMIT
    assert claim.to_dict()["witness"]["x"]["shape"] == list(shape)


def test_a_layer_that_the_network_cannot_drive_is_refuted_at_the_layer() -> None:
    """Its input is always 0, so no input of the network makes it overflow."""
    bias = np.array([LIMIT - 10], np.int32)
    scale, zero = np.float32(1), np.uint8(0)
    nodes = [
        node("Mul", ["x", "nothing"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["q"]),
        node("QLinearMatMul", ["q", "s", "z", "w", "s", "zw", "s", "z"], ["h"], name="first"),
        node("DequantizeLinear", ["h", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w", "s", "zw"], ["v"]),
        node("DequantizeLinear", ["b", "s"], ["c"]),
        node("Gemm", ["d", "v", "c"], ["f"], name="layer"),
        node("QuantizeLinear", ["f", "s", "z"], ["y"]),
    ]
    constants = {"s": scale, "z": zero, "zw": np.int8(0), "w": np.full((1, 1), 5, np.int8)}
    constants |= {"b": bias, "nothing": np.float32(0)}
    network = read_network(packed(nodes, [1, 1], constants, out=2))
    found = with_witnesses(network, overflow(network, {}), [{"x": np.ones((1, 1), np.float32)}])
    verdicts = {(c.layer, c.what): c.verdict for c in found}
    assert verdicts["layer", "accumulator"] == AT_THE_LAYER
    assert verdicts["first", "accumulator"] == PROVED


def test_activations_of_16_bits_are_no_matter_of_int32() -> None:
    weights = random_weights(600, 2, 127)
    data = dense(weights, scales=(0.05, 0.01, 9.0), zeros=(0, 0), dtype=np.int16)
    # Opset 17 has no 16-bit points; onnxruntime takes them in com.microsoft.
    assert claims(read_network(data)) == {"accumulator": PROVED}
