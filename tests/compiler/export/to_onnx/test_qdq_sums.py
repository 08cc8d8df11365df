"""QDQ graphs have the sums and limits of their module, whose values have 8 bits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from compiler.errors import OnnxExportError
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.qtypes.layer_choices import SUMS
from compiler.runtime.artifact import QModule
from tests.compiler.export.to_onnx.qdq_graphs import (
    kernels,
    multiplier_and_shift,
    of_file,
    outputs_of,
    residual_network,
    sqnr_db,
)


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ({SUMS: {"nbit_input": 16}}, "Tensor[(1, 8, 6, 6)"),
        ({"conv2d_1": {"nbit_input": 12}}, "Tensor[(1, 8, 6, 6)"),
        ({"conv2d_6": {"nbit_input": 16}}, "Tensor[(1, 8, 6, 6)"),
    ],
    ids=["a residual sum", "a layer", "the last layer"],
)
def test_the_first_value_of_more_than_8_bits_is_named_with_the_command(
    layers: dict[str, dict[str, int]], named: str
) -> None:
    module, _ = residual_network(layers=layers)
    with pytest.raises(OnnxExportError, match=r"a value has (12|16) bits, and 8 bit") as caught:
        to_qdq_onnx(module.module)
    assert named in str(caught.value)
    assert "qsearch compile --qconfig auto,for=qdq" in str(caught.value)


def test_a_norm_reads_more_than_8_bits_in_float() -> None:
    module, data = residual_network(normalized=True, layers={SUMS: {"nbit_input": 8}})
    assert "high=32767" in str(module.module)
    made = to_qdq_onnx(module.module)
    assert made.float_ops == {"nn.integer_standardize": 1}
    wanted, found = (outputs_of(run, data) for run in (module.run, of_file(made.model).run))
    assert sqnr_db(found, wanted) > 30


def test_sums_of_8_bits_are_added_by_8_bit_kernels(tmp_path: Path) -> None:
    module, _ = residual_network()
    assert len(re.findall(r"requantize\(%\w+, shift=", str(module.module))) == 3
    kinds = kernels(to_qdq_onnx(module.module).model, tmp_path)
    # The first sum reads the input of the network.
    assert (kinds["QLinearConv"], kinds["QLinearAdd"], kinds["Add"]) == (6, 2, 1)


FREE = 2**31 - 1


@pytest.mark.parametrize(
    ("ends", "kept"),
    [
        ([12_750, 25_500, 51_000, 102_000], True),
        ([12_745, 25_500, FREE, FREE], True),
        ([12_750, 25_500, 25_500, FREE], False),
    ],
    ids=["one real number", "free channels", "another number"],
)
def test_clips_of_channels_that_8_bits_have_are_left_out(ends: list[int], kept: bool) -> None:
    """Sums of 4 channels become 8 bits that a depthwise convolution reads."""
    from compiler import relay

    rng, op, nn = np.random.default_rng(8), relay.op, relay.op.nn

    def constant(values: Any, dtype: str = "int32") -> Any:
        return relay.const(np.asarray(values, dtype))

    x = relay.var("x", (1, 3, 6, 6))
    data = op.cast(op.clip(op.round(x), a_min=-127, a_max=127), dtype="int8")
    weight = constant(rng.integers(-90, 90, (4, 3, 3, 3)), "int8")
    total = nn.conv2d(data, weight, out_dtype="int32")
    sums = op.maximum(
        op.minimum(total, constant(np.reshape(ends, (4, 1, 1)))), constant(np.zeros((4, 1, 1)))
    )
    pairs = [multiplier_and_shift(1 / 50 / 2**place) for place in range(4)]
    m, e = (constant([pair[i] for pair in pairs]) for i in (0, 1))
    scaled = op.fixed_point_multiply_per_axis(op.cast(sums, dtype="int64"), m, e, axis=1)
    held = op.cast(op.clip(scaled, a_min=0, a_max=255), dtype="int32")
    held = op.cast(held, dtype="uint8")
    deep = constant(rng.integers(1, 90, (4, 1, 3, 3)), "int8")
    result = nn.conv2d(held, deep, groups=4, channels=4, out_dtype="int32")
    mod = relay.module(op.multiply(op.cast(result, dtype="float32"), constant(0.5, "float32")))
    made = to_qdq_onnx(mod)
    onnx.checker.check_model(made.model, full_check=True)
    assert (made.float_products == ()) == kept
    inputs = [{"x": rng.normal(0, 60, (1, 3, 6, 6)).astype("float32")} for _ in range(6)]
    wanted, found = (outputs_of(run, inputs) for run in (QModule(mod).run, of_file(made.model).run))
    assert sqnr_db(found, wanted) > 30


def test_positions_behind_a_layer_norm_have_a_number_for_each_token() -> None:
    """A decoder that normalizes embeddings in front of the positions, as BlenderBot does."""
    from compiler import relay
    from compiler.quantize import Calibration, QConfig

    rng, op = np.random.default_rng(3), relay.op

    def const(*shape: int) -> Any:
        return relay.const(rng.normal(0, 0.5, shape).astype("float32"))

    x = relay.var("x", (1, 5, 8))
    gamma = relay.const(np.arange(1, 9, dtype="float32"))
    value = op.nn.layer_norm(op.nn.dense(x, const(8, 8)), gamma, const(8))
    value = op.add(value, const(5, 8))
    mod = relay.module(op.nn.dense(value, const(4, 8)))
    data = [{"x": rng.normal(0, 1, (1, 5, 8)).astype("float32")} for _ in range(8)]
    module = QModule(Calibration(mod, data).candidate(QConfig.recommended()).module)
    assert "nn.integer_standardize" in str(module.module)
    wanted = outputs_of(module.run, data)
    made = to_qdq_onnx(module.module).model
    onnx.checker.check_model(made, full_check=True)
    assert sqnr_db(outputs_of(of_file(made).run, data), wanted) > 20
