"""Single layers with bits of their own: names, points, numbers in every form, and the cost."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compiler import parse
from compiler.export.to_onnx.integer.model import to_integer_onnx
from compiler.ir.expr import Constant
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.proof.derive import derive_static
from compiler.qtypes.errors import ConfigValueError, IntegerOverflowError
from compiler.quantize import (
    QConfig,
    bind_params,
    build_candidate,
    diagnose,
    layer_names,
    mark,
    prerequisite_optimize,
)
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.quantize.candidates import calibrated

NETWORK = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, {c}, 6, 6), float32], %w0: Tensor[({d}, {c}, 3, 3), float32],
          %b0: Tensor[({d}), float32], %w1: Tensor[({d}, {d}, 3, 3), float32],
          %w2: Tensor[({d}, 1, 3, 3), float32], %w3: Tensor[(5, {d}), float32]) {{
  %0 = nn.relu(nn.bias_add(nn.conv2d(%x, %w0, padding=[1, 1, 1, 1]), %b0));
  %1 = nn.conv2d(%0, %w1, padding=[1, 1, 1, 1]);
  %2 = nn.conv2d(%0, %w2, padding=[1, 1, 1, 1], groups={d});
  %3 = nn.relu(add(%1, %2));
  nn.dense(nn.batch_flatten(nn.global_avg_pool2d(%3)), %w3)
}}
"""
NAMES = ("conv2d_0", "conv2d_1", "conv2d_2", "dense_3")


def network(rng: np.random.Generator, c: int = 3, d: int = 4) -> IRModule:
    mod = infer_module(parse(NETWORK.format(c=c, d=d)))
    shapes = {
        p.name_hint: p.tensor_type.concrete_shape for p in mod["main"].params if p.name_hint != "x"
    }
    params = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
    return prerequisite_optimize(bind_params(mod, params), None, 3)


def inputs(rng: np.random.Generator, c: int = 3, count: int = 3) -> list[dict[str, Any]]:
    return [{"x": rng.normal(0, 1, (2, c, 6, 6)).astype(np.float32)} for _ in range(count)]


def test_layers_without_onnx_nodes_are_called_after_operator_and_place() -> None:
    assert layer_names(network(np.random.default_rng(0))) == NAMES


def test_doctor_says_what_layers_are_called() -> None:
    mod = network(np.random.default_rng(0))
    found = diagnose(mod, QConfig.recommended())
    assert tuple(entry.layer for entry in found.operators if entry.layer) == NAMES


def test_an_unknown_layer_is_refused_with_the_nearest_names() -> None:
    mod = network(np.random.default_rng(0))
    config = QConfig.recommended(layers={"conv2d_9": {"nbit_weight": 4}})
    with pytest.raises(ConfigValueError, match=r"no layer 'conv2d_9'(.|\n)*conv2d_0"):
        mark(mod, config)


def test_a_float_layer_stays_float_and_says_so() -> None:
    rng = np.random.default_rng(1)
    mod, data = network(rng), inputs(rng)
    config = QConfig.recommended(
        layers={"conv2d_1": {"float": True}}, partition_conversions="enabled"
    )
    candidate = calibrated(mod, config, data)
    records = {record.layer: record for record in candidate.report.calls if record.layer}
    assert (records["conv2d_1"].status, records["conv2d_1"].reason) == ("float", "skipped_layer")
    assert records["conv2d_2"].status == "integer"
    (entry,) = (e for e in diagnose(mod, config).operators if e.layer == "conv2d_1")
    assert "conv2d_1" in entry.advice
    costs = {layer.name: layer for layer in candidate.cost.layers}
    assert (costs["conv2d_1"].nbit_weight, costs["conv2d_1"].nbit_input) == (32, 32)


def test_a_value_has_the_most_bits_that_any_of_its_readers_asks_for() -> None:
    rng = np.random.default_rng(2)
    mod, data = network(rng), inputs(rng)
    config = QConfig.recommended(
        layers={"conv2d_1": {"nbit_input": 4}, "conv2d_2": {"nbit_input": 6}}
    )
    costs = {layer.name: layer.nbit_input for layer in calibrated(mod, config, data).cost.layers}
    assert costs == {"conv2d_0": 8, "conv2d_1": 6, "conv2d_2": 6, "dense_3": 8}


def test_weights_are_counted_packed_and_work_by_its_bits() -> None:
    rng = np.random.default_rng(3)
    mod, data = network(rng), inputs(rng)
    config = QConfig.recommended(
        nbit_weight=5, layers={"conv2d_0": {"nbit_weight": 3}, "dense_3": {"nbit_input": 16}}
    )
    cost = calibrated(mod, config, data).cost
    elements = [4 * 3 * 9, 4 * 4 * 9, 4 * 9, 20]
    assert [layer.weight_elements for layer in cost.layers] == elements
    packed = [-(-n * bits // 8) for n, bits in zip(elements, [3, 5, 5, 5], strict=True)]
    assert cost.weight_bytes == sum(packed)
    work = [2 * 36 * 4 * 27, 2 * 36 * 4 * 36, 2 * 36 * 4 * 9, 2 * 20]
    assert [layer.multiplications for layer in cost.layers] == work
    assert cost.layers[3].bit_operations == 2 * 20 * 5 * 16


def test_a_weight_that_two_layers_read_is_one_weight() -> None:
    text = """
    #[version = "0.0.5"]
    def @main(%x: Tensor[(2, 6), float32], %w: Tensor[(6, 6), float32]) {
      nn.dense(nn.relu(nn.dense(%x, %w)), %w)
    }
    """
    rng = np.random.default_rng(4)
    held = {"w": rng.normal(size=(6, 6)).astype(np.float32)}
    mod = prerequisite_optimize(bind_params(infer_module(parse(text)), held), None, 3)
    data = [{"x": rng.normal(size=(2, 6)).astype(np.float32)} for _ in range(3)]
    config = QConfig.recommended(layers={"dense_0": {"nbit_weight": 3}})
    candidate = calibrated(mod, config, data)
    assert [layer.weight_elements for layer in candidate.cost.layers] == [36, 0]
    assert [layer.nbit_weight for layer in candidate.cost.layers] == [3, 3]
    assert candidate.cost.weight_bytes == -(-36 * 3 // 8)


EMBEDDING = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 7), int64], %table: Tensor[(50, 8), float32],
          %place: Tensor[(1, 7, 8), float32], %g: Tensor[(8), float32],
          %w: Tensor[(5, 8), float32]) {
  %0 = nn.layer_norm(add(take(%table, %x, axis=0), %place), %g, %g);
  nn.dense(mean(%0, axis=[1]), %w)
}
"""


def embedding() -> tuple[IRModule, list[dict[str, Any]]]:
    rng = np.random.default_rng(6)
    shapes = {"table": (50, 8), "place": (1, 7, 8), "g": (8,), "w": (5, 8)}
    held = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    mod = prerequisite_optimize(bind_params(infer_module(parse(EMBEDDING)), held), None, 3)
    return mod, [{"x": rng.integers(0, 50, (2, 7))} for _ in range(8)]


@pytest.mark.parametrize("bits", [None, 2, 4, 7, 8, 16])
def test_a_table_that_indices_pick_from_has_bits_of_its_own(bits: int | None) -> None:
    """Without a choice it has 16, since its rows are summed up for a layer norm."""
    mod, data = embedding()
    assert layer_names(mod) == ("dense_0", "take_0")
    choice = {} if bits is None else {"take_0": {"nbit_weight": bits}}
    candidate = calibrated(mod, QConfig.recommended(layers=choice), data)
    dense, table = candidate.cost.layers
    assert (table.weight_elements, table.multiplications) == (400, 0)
    assert (dense.nbit_weight, table.nbit_weight) == (8, bits or 16)
    assert candidate.cost.weight_bytes == 40 + 50 * (bits or 16)
    module = candidate.partitioned
    assert module is not None
    most = max(
        int(np.abs(node.data.astype(np.int64)).max())
        for node in nodes_of(module["quantized_main"])
        if isinstance(node, Constant) and node.data.shape == (50, 8)
    )
    assert most == 2 ** ((bits or 16) - 1) - 1
    form = OrtExecutor(to_integer_onnx(module))
    for batch in data:
        wanted = ReferenceExecutor(module).run(batch)
        np.testing.assert_array_equal(form.run(batch)[0], wanted[0])


@pytest.mark.parametrize(
    ("layers", "what"),
    [
        ({"take_0": {"nbit_input": 8}}, "'take_0', which is a table"),
        ({"dense_0": {"nbit_weight": 16}}, "16 bits of a weight do not fit"),
    ],
)
def test_bits_that_a_table_or_a_product_cannot_have_are_refused(layers: Any, what: str) -> None:
    mod, data = embedding()
    with pytest.raises(ConfigValueError, match=what):
        calibrated(mod, QConfig.recommended(layers=layers), data)


weights = st.none() | st.integers(2, 8)
narrow = st.none() | st.integers(3, 16)


@settings(max_examples=12, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.tuples(st.integers(1, 5), st.integers(1, 6)),
    st.tuples(*[st.tuples(weights, narrow)] * 4),
)
def test_all_forms_of_a_mixed_module_agree_bit_for_bit(
    seed: int, sizes: tuple[int, int], bits: Any
) -> None:
    rng = np.random.default_rng(seed)
    mod, data = network(rng, *sizes), inputs(rng, sizes[0])
    layers = {
        name: {"nbit_weight": w, "nbit_input": x} for name, (w, x) in zip(NAMES, bits, strict=True)
    }
    config = QConfig.recommended(layers=layers, calibrate_mode="max")
    module = calibrated(mod, config, data).partitioned
    assert module is not None
    assert derive_static(module).holds
    reference = ReferenceExecutor(module)
    form = OrtExecutor(to_integer_onnx(module))
    for batch in inputs(rng, sizes[0]):
        (wanted,) = reference.run(batch)
        np.testing.assert_array_equal(form.run(batch)[0], wanted)


POOLED = """
#[version = "0.0.5"]
def @main(%x: Tensor[(2, 3, 8, 8), float32], %w0: Tensor[(4, 3, 3, 3), float32],
          %w1: Tensor[(4, 4, 3, 3), float32], %w2: Tensor[(4, 4, 1, 1), float32]) {
  %0 = nn.max_pool2d(nn.relu(nn.conv2d(%x, %w0)), pool_size=[2, 2], strides=[2, 2]);
  add(nn.conv2d(%0, %w1, padding=[1, 1, 1, 1]), nn.conv2d(%0, %w2))
}
"""


@pytest.mark.parametrize("scheme", ["symmetric", "unsigned", "asymmetric"])
@pytest.mark.parametrize("nbit", [4, 11, 16])
def test_what_a_pool_hands_on_keeps_the_bits_its_reader_asks_for(nbit: int, scheme: str) -> None:
    rng = np.random.default_rng(7)
    mod = infer_module(parse(POOLED))
    shapes = {p.name_hint: p.tensor_type.concrete_shape for p in mod["main"].params[1:]}
    weights = {n: rng.normal(0, 1, s).astype(np.float32) for n, s in shapes.items()}
    mod = prerequisite_optimize(bind_params(mod, weights), None, 3)
    data = [{"x": rng.normal(0, 1, (2, 3, 8, 8)).astype(np.float32)} for _ in range(3)]
    config = QConfig.recommended(
        calibrate_mode="max",
        activation_scheme=scheme,
        nbit_input=5,
        layers={name: {"nbit_input": nbit} for name in ("conv2d_1", "conv2d_2")},
    )
    candidate = calibrated(mod, config, data)
    assert [layer.nbit_input for layer in candidate.cost.layers] == [5, nbit, nbit]
    module = candidate.partitioned
    assert module is not None
    assert derive_static(module).holds
    for batch in data:
        (wanted,) = ReferenceExecutor(module).run(batch)
        form = OrtExecutor(to_integer_onnx(module))
        np.testing.assert_array_equal(form.run(batch)[0], wanted)
        simulated = ReferenceExecutor(candidate.simulated).run(batch)[0]
        assert np.abs(wanted - simulated).max() < 0.1 * np.abs(simulated).max()


def test_more_bits_where_they_are_asked_for_lose_less() -> None:
    rng = np.random.default_rng(5)
    mod, data = network(rng), inputs(rng, count=8)
    plain = [ReferenceExecutor(mod).run(batch)[0] for batch in data]

    def error(layers: Any) -> float:
        config = QConfig.recommended(calibrate_mode="max", layers=layers)
        run = ReferenceExecutor(calibrated(mod, config, data).partitioned)
        return float(sum(np.square(run.run(b)[0] - p).sum() for b, p in zip(data, plain)))

    wide = {name: {"nbit_input": 16} for name in NAMES}
    coarse = {"conv2d_1": {"nbit_weight": 3}}
    assert error(wide) < error({}) < error(coarse)


def test_sums_of_wide_inputs_that_int32_cannot_hold_are_refused_with_node_and_bound() -> None:
    mod = parse(
        """
        #[version = "0.0.5"]
        def @main(%x: Tensor[(1, 4096), float32], %w: Tensor[(2, 4096), float32]) {
          nn.dense(%x, %w)
        }
        """
    )
    rng = np.random.default_rng(0)
    weight = rng.choice([-1.0, 1.0], (2, 4096)) * rng.uniform(0.999, 1, (2, 4096))
    weight = weight.astype(np.float32)
    mod = prerequisite_optimize(bind_params(mod, {"w": weight}), None, 3)
    config = QConfig.recommended(
        activation_scheme="symmetric", layers={"dense_0": {"nbit_input": 16}}
    )
    with pytest.raises(IntegerOverflowError, match=r"nn\.dense.*17045131264") as caught:
        build_candidate(mod, config, [1.0])
    assert "use at least 3 bits fewer" in str(caught.value)
    fewer = config.with_overrides(layers={"dense_0": {"nbit_input": 16, "nbit_weight": 4}})
    assert build_candidate(mod, fewer, [1.0]).partitioned is not None


def test_the_example_of_the_readme_holds() -> None:
    rng = np.random.default_rng(6)
    mod, data = network(rng), inputs(rng)
    first, *_, last = layer_names(mod)
    config = QConfig.recommended(
        nbit_weight=4,
        layers={first: {"nbit_weight": 6}, last: {"nbit_weight": 8, "nbit_input": 16}},
    )
    cost = calibrated(mod, config, data).cost
    assert [layer.nbit_weight for layer in cost.layers] == [6, 4, 4, 8]
    assert [layer.nbit_input for layer in cost.layers] == [8, 8, 8, 16]
    assert cost.weight_bytes == sum(layer.weight_bytes for layer in cost.layers)
    assert cost.bit_operations == sum(layer.bit_operations for layer in cost.layers)
    assert cost.to_dict()["layers"][0]["name"] == first
