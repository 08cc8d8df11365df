"""Files for NPUs: ours keep the published rules, and so do those of the makers' own tools; each
rule refuses what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config

import qsearch
from compiler.errors import OnnxExportError
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.runtime.artifact import QModule
from compiler.targets.npu.profiles import PROFILES
from compiler.targets.npu.rules import broken, require
from compiler.targets.ort.session import OrtExecutor
from tests.compiler.export.to_onnx.qdq_graphs import sqnr_db

MODELS = Path(qsearch.__file__).parent / "models"


@cache
def module(npu: str) -> QModule:
    """The shipped CNN as an NPU takes it."""
    return qsearch.quantize("digits", qconfig=dict(PROFILES[npu].fields))


@cache
def _file(npu: str) -> bytes:
    return to_qdq_onnx(module(npu).module, npu).model.SerializeToString()


def file(npu: str) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(_file(npu))


def images(count: int = 64) -> np.ndarray:
    with np.load(MODELS / "digits_dev.npz") as held:
        return np.asarray(held["input"][:count])


@pytest.mark.parametrize("npu", PROFILES)
def test_a_file_keeps_all_rules_and_is_near_the_module(npu: str) -> None:
    model = file(npu)
    assert broken(model, PROFILES[npu]) == ()
    session = OrtExecutor(model, optimize=False)
    x = images()
    found = np.concatenate([session.run([one[None]])[0] for one in x])
    (wanted,) = module(npu).run([x])
    assert sqnr_db(found, wanted) > 30


def test_a_module_for_other_runtimes_is_refused_with_the_fields_that_it_lacks() -> None:
    model = to_qdq_onnx(qsearch.quantize("digits").module, "ryzenai").model
    with pytest.raises(OnnxExportError, match="ryzenai takes") as caught:
        require(model, PROFILES["ryzenai"])
    assert "auto,for=ryzenai" in (caught.value.fix or "")


def test_what_onnxruntime_writes_for_qnn_is_taken(tmp_path: Path) -> None:
    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self.left = iter([{"input": one[None]} for one in images(8)])

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    path = tmp_path / "float.onnx"
    path.write_bytes((MODELS / "digits_cnn.onnx").read_bytes())
    config = get_qnn_qdq_config(
        path, Reader(), activation_type=QuantType.QUInt16, weight_type=QuantType.QInt8
    )
    quantize(path, tmp_path / "qdq.onnx", config)
    found = broken(onnx.load(tmp_path / "qdq.onnx"), PROFILES["qnn"])
    assert {one.rule for one in found} <= {"static shapes"}


def node(model: onnx.ModelProto, kind: str, place: int = 0) -> onnx.NodeProto:
    return [one for one in model.graph.node if one.op_type == kind][place]


def of_weight(model: onnx.ModelProto, place: int = 0, argument: int = 1) -> onnx.NodeProto:
    """What dequantizes the weight, or the bias, of a convolution."""
    name = node(model, "Conv", place).input[argument]
    return next(one for one in model.graph.node if name in one.output)


def stored(model: onnx.ModelProto, reader: onnx.NodeProto, place: int, value: np.ndarray) -> None:
    """Another constant for one input of a node."""
    reader.input[place] = f"changed_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(value, reader.input[place]))


def constant(model: onnx.ModelProto, reader: onnx.NodeProto, place: int) -> np.ndarray:
    held = {one.name: one for one in model.graph.initializer}
    return numpy_helper.to_array(held[reader.input[place]])


def times(model: onnx.ModelProto, reader: onnx.NodeProto, place: int, factor: float) -> None:
    old = constant(model, reader, place)
    stored(model, reader, place, (old * factor).astype(old.dtype))


def followed(model: onnx.ModelProto, writer: onnx.NodeProto, place: int) -> None:
    """Who reads a computed tensor has the scale, or the zero point, of who writes it."""
    for one in model.graph.node:
        if one.op_type == "DequantizeLinear" and one.input[0] == writer.output[0]:
            one.input[place] = writer.input[place]


def scaled(model: onnx.ModelProto, kind: str, place: int, factor: float) -> None:
    """Another scale of a computed tensor, for who writes and who reads it."""
    writer = node(model, kind, place)
    times(model, writer, 1, factor)
    followed(model, writer, 1)


def zeroed(model: onnx.ModelProto, zero: np.ndarray, place: int = 1) -> None:
    """Another zero point, and so another dtype, of a computed tensor."""
    writer = node(model, "QuantizeLinear", place)
    stored(model, writer, 2, zero)
    followed(model, writer, 2)


def opset(model: onnx.ModelProto, version: int) -> None:
    model.opset_import[0].version = version


def free(model: onnx.ModelProto, of: str) -> None:
    getattr(model.graph, of)[0].type.tensor_type.shape.dim[0].dim_param = "batch"


def renamed(model: onnx.ModelProto, kind: str, other: str, domain: str = "") -> None:
    found = node(model, kind)
    found.op_type, found.domain = other, domain


def computed_scale(model: onnx.ModelProto) -> None:
    found = node(model, "QuantizeLinear", 1)
    model.graph.node.insert(0, helper.make_node("Identity", [found.input[1]], ["computed"]))
    found.input[1] = "computed"


def several_scales(model: onnx.ModelProto) -> None:
    found = node(model, "QuantizeLinear", 1)
    stored(model, found, 1, np.full(16, constant(model, found, 1), np.float32))


def retyped_weight(model: onnx.ModelProto, dtype: str, zero: int = 0) -> None:
    found = of_weight(model)
    stored(model, found, 0, constant(model, found, 0).astype(dtype))
    old = constant(model, found, 2)
    stored(model, found, 2, np.full(old.shape, zero, dtype))


def float_bias(model: onnx.ModelProto) -> None:
    found = node(model, "Conv")
    stored(model, found, 2, np.zeros(16, np.float32))


def short_bias(model: onnx.ModelProto) -> None:
    found = of_weight(model, 0, 2)
    stored(model, found, 0, constant(model, found, 0).astype(np.int16))
    stored(model, found, 2, constant(model, found, 2).astype(np.int16))


def shifted_bias(model: onnx.ModelProto) -> None:
    found = of_weight(model, 0, 2)
    stored(model, found, 0, constant(model, found, 0).astype(np.int8))
    stored(model, found, 2, constant(model, found, 2).astype(np.int8))
    times(model, found, 1, 2.0**20)


def float_between(model: onnx.ModelProto) -> None:
    """The pool reads what the activation gives, without a border."""
    pool = node(model, "MaxPool")
    makers = {name: one for one in model.graph.node for name in one.output}
    pool.input[0] = makers[makers[pool.input[0]].input[0]].input[0]


def float_output(model: onnx.ModelProto) -> None:
    makers = {name: one for one in model.graph.node for name in one.output}
    last = makers[model.graph.output[0].name]
    result = makers[makers[last.input[0]].input[0]]
    model.graph.node.remove(last)
    result.output[0] = model.graph.output[0].name


def appended(model: onnx.ModelProto, kind: str, inputs: list[str], result: str) -> onnx.NodeProto:
    model.graph.node.append(helper.make_node(kind, inputs, [result]))
    return model.graph.node[-1]


def sum_of_scales(model: onnx.ModelProto, factors: tuple[float, float], result: float = 1) -> None:
    """A sum of two tensors of other scales at the end."""
    border = node(model, "QuantizeLinear", 1)
    for place, factor in enumerate(factors):
        made = appended(model, "QuantizeLinear", [*border.input], f"q_{place}")
        times(model, made, 1, factor)
        appended(model, "DequantizeLinear", [made.output[0], *made.input[1:]], f"operand_{place}")
    appended(model, "Add", ["operand_0", "operand_1"], "sum")
    times(model, appended(model, "QuantizeLinear", ["sum", *border.input[1:]], "sum_q"), 1, result)


def function_of_16_bits(model: onnx.ModelProto, kind: str) -> None:
    read = node(model, "DequantizeLinear", 3)
    appended(model, kind, [read.output[0]], "function")
    times(model, appended(model, "QuantizeLinear", ["function", *read.input[1:]], "q"), 1, 1.1)


def product_of_activations(model: onnx.ModelProto) -> None:
    read = node(model, "DequantizeLinear")
    appended(model, "MatMul", [read.output[0]] * 2, "product")
    appended(model, "QuantizeLinear", ["product", *read.input[1:]], "product_q")


def along_another_axis(model: onnx.ModelProto) -> None:
    found = next(one for one in of_weight(model, 1).attribute if one.name == "axis")
    found.i = 1


BREAKS: list[tuple[str, str, Callable[[onnx.ModelProto], None]]] = [
    ("ryzenai", "opset", lambda m: opset(m, 21)),
    ("ryzenai", "opset", lambda m: opset(m, 13)),
    ("ryzenai", "static shapes", lambda m: free(m, "input")),
    ("ryzenai", "static shapes", lambda m: free(m, "output")),
    ("ryzenai", "operators", lambda m: renamed(m, "MaxPool", "Loop")),
    ("ryzenai", "operators", lambda m: renamed(m, "Relu", "Relu", "my.domain")),
    ("ryzenai", "constant scales", computed_scale),
    ("ryzenai", "constant scales", lambda m: scaled(m, "QuantizeLinear", 1, 0)),
    ("ryzenai", "constant scales", lambda m: scaled(m, "QuantizeLinear", 1, -1)),
    ("ryzenai", "one scale", lambda m: times(m, node(m, "QuantizeLinear", 2), 1, 2)),
    ("ryzenai", "one scale", several_scales),
    ("ryzenai", "power of two", lambda m: scaled(m, "QuantizeLinear", 1, 0.75)),
    ("ryzenai", "power of two", lambda m: times(m, of_weight(m), 1, 1.1)),
    ("ryzenai", "power of two", several_scales),
    ("ryzenai", "dtypes", lambda m: zeroed(m, np.asarray(3, np.int8))),
    ("ryzenai", "dtypes", lambda m: zeroed(m, np.asarray(0, np.uint8))),
    ("ryzenai", "dtypes", lambda m: zeroed(m, np.asarray(0, np.int16))),
    ("ryzenai", "dtypes", lambda m: retyped_weight(m, "uint8")),
    ("ryzenai", "dtypes", lambda m: retyped_weight(m, "int8", 1)),
    ("ryzenai", "biases", float_bias),
    ("ryzenai", "biases", short_bias),
    ("ryzenai", "biases", lambda m: times(m, of_weight(m, 0, 2), 1, 2)),
    ("ryzenai", "quantized", float_between),
    ("ryzenai", "quantized", float_output),
    ("ryzenai", "moves keep the scale", lambda m: scaled(m, "QuantizeLinear", 3, 2)),
    ("ryzenai", "shift cut", lambda m: times(m, of_weight(m), 1, 2.0**12)),
    ("ryzenai", "shift cut", lambda m: times(m, of_weight(m), 1, 2.0**-20)),
    ("ryzenai", "shift cut", shifted_bias),
    ("ryzenai", "elementwise shifts", lambda m: sum_of_scales(m, (1, 256))),
    ("ryzenai", "elementwise shifts", lambda m: sum_of_scales(m, (1, 1), 2.0**30)),
    ("qnn", "opset", lambda m: opset(m, 10)),
    ("qnn", "opset", lambda m: opset(m, 25)),
    ("qnn", "opset of 16 bits", lambda m: opset(m, 17)),
    ("qnn", "static shapes", lambda m: free(m, "input")),
    ("qnn", "operators", lambda m: renamed(m, "MaxPool", "If")),
    ("qnn", "operators", lambda m: renamed(m, "Relu", "Erf")),
    ("qnn", "constant scales", computed_scale),
    ("qnn", "constant scales", lambda m: scaled(m, "QuantizeLinear", 1, np.inf)),
    ("qnn", "one scale", lambda m: times(m, node(m, "QuantizeLinear", 2), 1, 1.01)),
    ("qnn", "one scale", several_scales),
    ("qnn", "dtypes", lambda m: zeroed(m, np.asarray(0, np.int16))),
    ("qnn", "dtypes", lambda m: zeroed(m, np.asarray(0, np.int8))),
    ("qnn", "dtypes", lambda m: retyped_weight(m, "int16")),
    ("qnn", "dtypes", lambda m: retyped_weight(m, "int8", 1)),
    ("qnn", "biases", float_bias),
    ("qnn", "biases", short_bias),
    ("qnn", "biases", lambda m: times(m, of_weight(m, 0, 2), 1, 1.5)),
    ("qnn", "quantized", float_between),
    ("qnn", "quantized", float_output),
    ("qnn", "weights by channel", along_another_axis),
    ("qnn", "one dtype", product_of_activations),
    ("qnn", "one dtype", lambda m: zeroed(m, np.asarray(0, np.uint8), 2)),
    ("qnn", "moves keep the scale", lambda m: scaled(m, "QuantizeLinear", 3, 2)),
    ("qnn", "sigmoid and tanh", lambda m: function_of_16_bits(m, "Sigmoid")),
    ("qnn", "sigmoid and tanh", lambda m: function_of_16_bits(m, "Tanh")),
]


@pytest.mark.parametrize("place", range(len(BREAKS)))
def test_what_breaks_a_rule_is_refused(place: int) -> None:
    npu, rule, change = BREAKS[place]
    model = file(npu)
    change(model)
    assert rule in {one.rule for one in broken(model, PROFILES[npu])}
    with pytest.raises(OnnxExportError, match=npu):
        require(model, PROFILES[npu])


def test_every_rule_of_every_npu_is_broken_here() -> None:
    for npu, profile in PROFILES.items():
        assert {rule for one, rule, _ in BREAKS if one == npu} == set(profile.rules)


def test_sums_whose_operands_are_near_each_other_are_taken() -> None:
    model = file("ryzenai")
    sum_of_scales(model, (1, 128))
    assert broken(model, PROFILES["ryzenai"]) == ()
