"""The models inside the ``onnx`` package: whole architectures, and what PyTorch once exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = tuple(sorted(path.stem.removeprefix("light_") for path in DATA.glob("light/*.onnx")))
PYTORCH = tuple(
    sorted(f"{folder.parent.name}/{folder.name}" for folder in DATA.glob("pytorch-*/test_*"))
)

Arrays = dict[str, NDArray[Any]]


def light_model(name: str, seed: int = 0) -> onnx.ModelProto:
    """An architecture with random weights in place of the zeros it is shipped with.

    Its weights are ConstantOfShape nodes; each becomes an initializer, scaled by its fan-in so that
    activations neither vanish nor explode. What is added to a variance (1-D) is positive. Dense
    layers of 4,096 units have 256, and images of vgg19 112 pixels: more shows nothing more.
    """
    smaller = {4096: 256, **({224: 112, 512 * 7 * 7: 512 * 3 * 3} if name == "vgg19" else {})}
    rng = np.random.default_rng(seed)
    model = onnx.load(DATA / "light" / f"light_{name}.onnx")
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            dim.dim_value = smaller.get(dim.dim_value, dim.dim_value)
    for held in model.graph.initializer:
        if held.data_type == onnx.TensorProto.INT64:
            sizes = [smaller.get(size, size) for size in numpy_helper.to_array(held).tolist()]
            held.CopyFrom(numpy_helper.from_array(np.array(sizes, np.int64), held.name))
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    nodes: list[onnx.NodeProto] = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            nodes.append(node)
            continue
        shape = tuple(map(int, shapes[node.input[0]]))
        if len(shape) > 1:
            fan_in = int(np.prod(shape[1:]))
            weight = rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / fan_in))
        else:
            weight = rng.uniform(0.5, 1.5, shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(weight, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def pytorch_model(name: str) -> tuple[onnx.ModelProto, list[tuple[Arrays, list[NDArray[Any]]]]]:
    """A small model with its inputs and the outputs PyTorch gave."""
    folder = DATA / name
    model = onnx.load(folder / "model.onnx")
    initialized = {t.name for t in model.graph.initializer}
    names = [i.name for i in model.graph.input if i.name not in initialized]
    pairs: list[tuple[Arrays, list[NDArray[Any]]]] = []
    for data_set in sorted(folder.glob("test_data_set_*")):
        inputs = [_read(data_set / f"input_{i}.pb") for i in range(len(names))]
        outputs = [_read(data_set / f"output_{i}.pb") for i in range(len(model.graph.output))]
        pairs.append((dict(zip(names, inputs)), outputs))
    return model, pairs


def _read(path: Path) -> NDArray[Any]:
    tensor = onnx.TensorProto()
    tensor.ParseFromString(path.read_bytes())
    return numpy_helper.to_array(tensor)
