"""Statistics are taken on the float network, in visiting order, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import compiler
from compiler import relay
from compiler.errors import CalibrationError, InternalQuantizeError
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import kind2str
from compiler.quantize import (
    QConfig,
    activation_scales,
    build_candidate,
    calibration_stats,
    collect_stats,
    mark,
    prerequisite_optimize,
    quantize,
)
from compiler.quantize.calibration.kept_batches import KeptBatches
from compiler.quantize.calibration.profile_function import profile_function
from compiler.runtime.executor import Executor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.each import each

CONFIG = QConfig(skip_conv_layers=[], calibrate_mode="percentile", weight_scale="max")

Batches = list[dict[str, NDArray[np.float32]]]


@pytest.fixture
def two_convolutions() -> tuple[IRModule, Batches]:
    """conv2d, relu, conv2d with seeded weights, and two batches of unlike spread."""
    r = np.random.default_rng(31)
    w0 = r.uniform(-0.5, 0.5, (3, 2, 3, 3)).astype(np.float32)
    w1 = r.uniform(-0.7, 0.7, (2, 3, 1, 1)).astype(np.float32)
    batches = [{"x": r.normal(0.0, s, (2, 2, 5, 5)).astype(np.float32)} for s in (1, 2)]
    x = relay.var("x", (2, 2, 5, 5))
    hidden = relay.op.nn.relu(relay.op.nn.conv2d(x, relay.const(w0)))
    mod = relay.module(relay.Function((x,), relay.op.nn.conv2d(hidden, relay.const(w1))))
    return prerequisite_optimize(mod), batches


def reference(mod: IRModule) -> Executor:
    return ReferenceExecutor(mod)


def test_collected_arrays_are_those_of_the_float_network(
    two_convolutions: tuple[IRModule, Batches],
) -> None:
    mod, batches = two_convolutions
    annotated, _ = mark(mod, CONFIG)
    arrays = list(collect_stats(annotated, batches, executor=reference))
    assert [len(a) for a in arrays] == [200, 108, 72]
    largest = [float(np.abs(a).max()) for a in arrays]
    assert largest[0] == pytest.approx(3.96258116, rel=1e-8)
    # sums of a convolution depend on the order of addition
    assert largest[1:] == pytest.approx([6.40966129, 3.24460602], rel=1e-6)
    np.testing.assert_array_equal(arrays[0], np.concatenate([b["x"] for b in batches]).reshape(-1))


def test_scales_of_all_points_in_binding_order(
    two_convolutions: tuple[IRModule, Batches],
) -> None:
    mod, batches = two_convolutions
    annotated, _ = mark(mod, CONFIG)
    stats = calibration_stats(annotated, batches, percentiles=(CONFIG.percentile,))
    points = build_candidate(mod, CONFIG, activation_scales(stats, CONFIG)).report.points
    assert [point.kind for point in points] == ["input", "weight", "input", "weight", "input"]
    ranges = [3.96258116, 0.494408995, 6.40966129, 0.509990871, 3.24460602]
    assert [point.range_s for point in points] == pytest.approx(ranges, rel=1e-6)
    scales = [0.0309576653, 0.00386257027, 0.0500754789, 0.00398430368, 0.0253484845]
    assert [point.dom_scale for point in points] == pytest.approx(scales, rel=1e-6)


@pytest.mark.parametrize("chunk_by", [-1, 1, 2, 3, 100])
def test_chunks_and_streaming_give_the_same_bits(
    two_convolutions: tuple[IRModule, Batches], chunk_by: int
) -> None:
    mod, batches = two_convolutions
    annotated, _ = mark(mod, CONFIG)
    whole = list(collect_stats(annotated, batches))
    chunked = list(collect_stats(annotated, batches, chunk_by))
    for left, right in each(zip(whole, chunked, strict=True)):
        np.testing.assert_array_equal(left.view(np.int32), right.view(np.int32))
    stats = calibration_stats(annotated, batches)
    for index, values in each(enumerate(whole)):
        tensor = stats.tensors[stats.point_tensor[index]]
        assert (tensor.count, tensor.minimum, tensor.maximum) == (
            values.size,
            values.min(),
            values.max(),
        )


def test_points_that_read_one_value_share_its_statistics() -> None:
    x = relay.var("x", (1, 2, 6, 6))
    w = relay.const(np.full((2, 2, 1, 1), 0.5, np.float32))
    hidden = relay.op.nn.relu(relay.op.nn.conv2d(x, w))
    body = relay.op.add(
        relay.op.nn.conv2d(hidden, w), relay.op.nn.max_pool2d(hidden, pool_size=(1, 1))
    )
    annotated, _ = mark(prerequisite_optimize(relay.module(relay.Function((x,), body))), CONFIG)
    _, points = profile_function(annotated)
    assert len(points.labels) == len(set(points.labels))
    assert points.point_tensor.max() == len(points.labels) - 1
    assert len(points.labels) <= points.point_tensor.size
    assert {kind2str(kind) for kind in points.point_kind} <= {"input", "activation"}


@pytest.mark.parametrize(("also_added", "least"), [(False, -3.0), (True, -8.0)])
def test_what_a_function_maps_to_a_constant_does_not_widen_a_range(
    also_added: bool, least: float
) -> None:
    x = relay.var("x", (1, 1, 4, 4))
    hidden = relay.op.nn.conv2d(x, relay.const(np.ones((1, 1, 1, 1), np.float32)))
    swish = relay.op.unary_formula(
        hidden, formula="x 3.0 add 0.0 maximum 6.0 minimum x multiply 6.0 divide"
    )
    body = relay.op.add(hidden, swish) if also_added else swish
    mod = prerequisite_optimize(relay.module(relay.Function((x,), body)))
    values = np.linspace(-8, 5, 16, dtype=np.float32).reshape(1, 1, 4, 4)
    config = QConfig.recommended(activation_scheme="asymmetric", calibrate_mode="max")
    stats = calibration_stats(mark(mod, config)[0], [{"x": values}])
    read = [stats.tensors[place] for place in stats.point_tensor[1:]]  # the first is of the input
    assert min(one.minimum for one in read) == least
    assert max(one.maximum for one in read) == 5.0


def test_a_network_without_points_has_nothing_to_measure() -> None:
    x = relay.var("x", (1, 4))
    mod = relay.module(relay.Function((x,), relay.op.tanh(x)))
    with pytest.raises(InternalQuantizeError, match="nothing to calibrate"):
        profile_function(mod)


def test_a_generator_gives_what_a_list_gives(two_convolutions: tuple[IRModule, Batches]) -> None:
    mod, batches = two_convolutions
    annotated, _ = mark(mod, CONFIG)
    whole = calibration_stats(annotated, batches)
    kept = calibration_stats(annotated, (batch for batch in batches))
    for one, other in each(zip(whole.tensors, kept.tensors, strict=True)):
        np.testing.assert_array_equal(one.histogram(), other.histogram())
    rows = list(collect_stats(annotated, iter(batches), chunk_by=1))
    for row, other_row in each(zip(rows, collect_stats(annotated, batches), strict=True)):
        np.testing.assert_array_equal(row, other_row)
    texts = [
        compiler.text(quantize(mod, dataset=data, qconfig=CONFIG))
        for data in (batches, iter(batches))
    ]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("in_memory", [1, 1 << 20])
def test_kept_batches_are_read_again_from_memory_or_a_file(in_memory: int) -> None:
    buffer = np.zeros((2, 3), np.float32)

    def batches() -> Iterator[dict[str, NDArray[Any]]]:
        for value in (1, 2):
            buffer[:] = value  # one buffer for all batches
            yield {"x": buffer, "path": np.array([object()]), "name": np.array(["a"])}

    kept = KeptBatches(batches(), in_memory)
    for _ in range(2):
        assert [(sorted(b), b["x"].mean()) for b in kept] == [(["name", "x"], n) for n in (1, 2)]


@pytest.mark.parametrize(
    ("dataset", "message"),
    [([], "dataset is empty"), ([{"image": np.zeros(3)}], "lacks the input 'x'")],
)
def test_data_that_does_not_fit_names_both_sides(
    two_convolutions: tuple[IRModule, Batches],
    dataset: list[Mapping[str, NDArray[Any]]],
    message: str,
) -> None:
    annotated, _ = mark(two_convolutions[0], CONFIG)
    with pytest.raises(CalibrationError, match=message) as caught:
        calibration_stats(annotated, dataset)
    if dataset:
        assert caught.value.where == "the batch has 'image'; the network takes 'x'"


def test_other_arrays_in_a_batch_are_ignored(two_convolutions: tuple[IRModule, Batches]) -> None:
    mod, batches = two_convolutions
    annotated, _ = mark(mod, CONFIG)
    more = [{**batch, "labels": np.zeros(2)} for batch in batches]
    plain, extra = calibration_stats(annotated, batches), calibration_stats(annotated, more)
    for one, other in each(zip(plain.tensors, extra.tensors, strict=True)):
        assert one.maximum == other.maximum
