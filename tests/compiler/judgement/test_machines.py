"""Layers whose integers depend on the processor are named, with operands that show it."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto

from compiler.judgement.exact import evaluate
from compiler.judgement.layers import Network, read_network
from compiler.judgement.machines import (
    EXACT,
    MAY,
    SATURATES,
    UNKNOWN,
    Row,
    machines,
    pair_sums,
    smallest_tie,
)
from tests.compiler.judgement.small_files import dense, node, packed, random_weights, softmax
from tests.each import each


def rows(network: Network, *inputs: np.ndarray) -> dict[str, Row]:
    return {
        row.layer: row for row in machines(network, [evaluate(network, {"x": x}) for x in inputs])
    }


def test_a_pair_that_saturates_is_shown_by_operands_and_counted_in_samples() -> None:
    weights = np.array([[127, 1], [120, -1], [3, 2], [1, 1]], np.int8)
    quiet, loud = np.zeros((1, 4), np.float32), np.full((1, 4), 9, np.float32)
    row = rows(read_network(dense(weights)), quiet, loud)["layer"]
    assert row.cells["x86 AVX2"] == row.cells["x86 AVX512"] == SATURATES
    assert row.cells["x86 VNNI"] == row.cells["Arm dot"] == row.cells["Arm i8mm"] == EXACT
    assert row.pair is not None
    assert (row.pair["weights"], row.pair["exact"]) == ([127, 120], 62985)
    assert row.pair["saturated"] == 32767
    assert row.samples == 1  # 128 by 127 and by 120 is 31616


@pytest.mark.parametrize(
    "weights",
    [
        random_weights(8, 4, 64),
        np.array([[127], [-127], [127], [-127]], np.int8),
        np.array([[127], [1], [1], [127]], np.int8),
    ],
)
def test_weights_whose_neighbours_fit_are_exact_everywhere_in_onnxruntime(
    weights: np.ndarray,
) -> None:
    row = rows(read_network(dense(weights)))["layer"]
    assert {row.cells[m] for m in row.cells if m != "TFLM"} == {EXACT}
    assert row.pair is None


def test_int8_data_saturates_in_a_qdq_file_and_not_in_an_integer_operator() -> None:
    weights = np.full((4, 1), 127, np.int8)
    row = rows(read_network(dense(weights, zeros=(0, 0), dtype=np.int8)))["layer"]
    assert row.cells["x86 AVX2"] == SATURATES
    constants = {"s": np.float32(1), "z": np.int8(0), "w": weights}
    product = node("QLinearMatMul", ["x", "s", "z", "w", "s", "z", "s", "z"], ["y"], name="layer")
    made = packed([product], [1, 4], constants, dtype=TensorProto.INT8, out=TensorProto.INT8)
    assert rows(read_network(made))["layer"].cells["x86 AVX2"] == EXACT


def test_a_depthwise_convolution_adds_up_in_32_bits() -> None:
    weights = np.full((3, 1, 3, 3), 127, np.int8)
    constants = {"s": np.float32(1), "z": np.uint8(0), "w": weights, "zw": np.int8(0)}
    names = ["x", "s", "z", "w", "s", "zw", "s", "z"]
    product = node("QLinearConv", names, ["y"], name="layer", group=3)
    made = packed([product], [1, 3, 5, 5], constants, dtype=2, out=2)
    assert rows(read_network(made))["layer"].cells["x86 AVX2"] == EXACT


def test_pair_sums_saturate_each_pair_alone() -> None:
    data, weights = np.array([255, 255, 255, 255, 9]), np.array([127, 127, -128, 1, 2])
    assert pair_sums(data, weights) == 32767 - 255 * 127 + 18
    assert pair_sums(data, -weights) == -32768 + 255 * 127 - 18


def test_a_tie_is_shown_by_an_accumulator_and_operands_that_add_up_to_it() -> None:
    network = read_network(dense(random_weights(8, 4, 9), scales=(0.25, 0.5, 2.0)))
    tie = rows(network)["layer"].tie
    assert tie is not None
    assert tie["value"] % 1 == 0.5
    product = network.products[0]
    assert product.weights is not None
    sums = np.array(tie["operands"]) @ product.weights[:, tie["channel"]]
    assert sums == tie["accumulator"]
    values = (np.array(tie["operands"]) * 0.25).astype(np.float32)[None]
    assert evaluate(network, {"x": values}).ties["p"] >= 1


def test_ordinary_scales_meet_no_tie() -> None:
    assert smallest_tie(read_network(dense(random_weights(8, 4, 127))).products[0]) is None


def test_a_scale_that_is_odd_in_its_fraction_meets_ties_at_multiples() -> None:
    """A scale of 3/8 has halves at 4/3 of odd numbers, of which 4 is the first whole one."""
    network = read_network(dense(np.ones((8, 1), np.int8), scales=(3.0, 0.125, 1.0)))
    tie = smallest_tie(network.products[0])
    assert tie is not None
    assert (abs(tie["accumulator"]), abs(tie["value"])) == (4, 1.5)


def test_a_softmax_of_int8_whose_grid_lacks_one_wraps_in_older_runtimes() -> None:
    row = rows(read_network(softmax(1 / 256)))["softmax"]
    assert "softmax" in row.rules
    assert "128 on the grid: 127 by ONNX, -128 where it wraps" in row.witness
    assert "softmax" not in rows(read_network(softmax(1 / 255)))["softmax"].rules


def test_float_parts_and_ranges_of_a_batch_may_differ() -> None:
    constants = {"s": np.float32(0.1), "w": random_weights(4, 4, 50), "zw": np.int8(0)}
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "sq", "zq"], name="range"),
        node("MatMulInteger", ["q", "w", "zq", "zw"], ["i"], name="product"),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Softmax", ["f"], ["p"], name="softmax"),
        node("Tanh", ["p"], ["y"], name="tanh"),
    ]
    found = rows(read_network(packed(nodes, ["n", 4], constants)))
    assert found["range"].rules == ["batch"]
    assert found["softmax"].cells["Arm dot"] == found["tanh"].cells["x86 AVX2"] == MAY
    assert found["product"].cells["x86 AVX2"] == EXACT
    assert found["product"].cells["TFLM"] == UNKNOWN
    for row in each(found.values()):
        assert set(row.cells.values()) <= {EXACT, MAY, UNKNOWN}


def test_a_sample_without_rows_saturates_nothing() -> None:
    constants = {"w": np.full((8, 4), 127, np.int8)}
    product = node("MatMulInteger", ["x", "w"], ["y"], name="layer")
    made = packed([product], ["n", 8], constants, dtype=TensorProto.UINT8, out=TensorProto.INT32)
    assert rows(read_network(made), np.zeros((0, 8), np.uint8))["layer"].samples == 0
