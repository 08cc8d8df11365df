"""Ways in which an ONNX file can be damaged, foreign or hostile; each changes one model in place.

A mutation is a function ``(file, rng)``; ``file`` holds a ModelProto, the folder it will be written
to, and may get its bytes replaced at the end. All randomness comes from ``rng``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator


@dataclass
class ModelFile:
    """A model about to be written into ``folder``; ``data`` overrides what the proto says."""

    model: onnx.ModelProto
    folder: Path
    data: bytes | None = None

    def write(self) -> Path:
        """The file on disk."""
        path = self.folder / "model.onnx"
        path.write_bytes(self.model.SerializeToString() if self.data is None else self.data)
        return path


Mutation = Callable[[ModelFile, Rng], None]
MUTATIONS: dict[str, Mutation] = {}

SIZES = (0, -1, 1, 3, 2**16, 2**24, 2**30, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
GIGABYTES = (1 << 28, 1 << 30, 1 << 32, 1 << 40)


def mutation(function: Mutation) -> Mutation:
    """Decorator: the function is one of the ways."""
    MUTATIONS[function.__name__] = function
    return function


def some(rng: Rng, items: list[object]) -> object:
    return items[int(rng.integers(len(items)))]


def a_node(file: ModelFile, rng: Rng) -> onnx.NodeProto:
    if not file.model.graph.node:
        file.model.graph.node.append(helper.make_node("Relu", ["x"], ["y"]))
    return file.model.graph.node[int(rng.integers(len(file.model.graph.node)))]


# Bytes


@mutation
def flip_bits(file: ModelFile, rng: Rng) -> None:
    data = bytearray(file.model.SerializeToString())
    for _ in range(int(rng.integers(1, 17))):
        data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    file.data = bytes(data)


@mutation
def cut_off(file: ModelFile, rng: Rng) -> None:
    data = file.model.SerializeToString()
    file.data = data[: int(rng.integers(len(data)))]


@mutation
def overwrite_a_run(file: ModelFile, rng: Rng) -> None:
    data = bytearray(file.model.SerializeToString())
    start = int(rng.integers(len(data)))
    for i in range(start, min(start + int(rng.integers(1, 64)), len(data))):
        data[i] = int(rng.choice([0, 0xFF, 0x7F, 0x80, rng.integers(256)]))
    file.data = bytes(data)


@mutation
def claim_four_gigabytes_in_the_wire_format(file: ModelFile, rng: Rng) -> None:
    # Field 7 (graph), length-delimited, with a length of 2**32 - 1 and little behind it.
    data = file.model.SerializeToString()
    file.data = data[:8] + b"\x3a\xff\xff\xff\xff\x0f" + data[8:64]


@mutation
def random_bytes(file: ModelFile, rng: Rng) -> None:
    head = b"\x08\x08" if rng.integers(2) else b""
    file.data = head + rng.bytes(int(rng.integers(0, 4096)))


# Fields


def _messages(root: Message) -> list[Message]:
    found: list[Message] = []
    stack = [root]
    while stack and len(found) < 5000:
        top = stack.pop()
        found.append(top)
        for field, value in top.ListFields():
            if field.type == field.TYPE_MESSAGE:
                stack.extend(value if isinstance(value, Sequence) else [value])
    return found


@mutation
def drop_fields(file: ModelFile, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 4))):
        messages = [m for m in _messages(file.model) if m.ListFields()]
        if not messages:
            return
        message = messages[int(rng.integers(len(messages)))]
        fields = [field for field, _ in message.ListFields()]
        message.ClearField(fields[int(rng.integers(len(fields)))].name)


@mutation
def change_numbers(file: ModelFile, rng: Rng) -> None:
    for _ in range(int(rng.integers(1, 4))):
        message = some(rng, list(_messages(file.model)))
        assert isinstance(message, Message)
        for field, value in message.ListFields():
            wide = field.type in (field.TYPE_INT64, field.TYPE_INT32)
            if not wide or rng.integers(2):
                continue
            limit = 2**31 - 1 if field.type == field.TYPE_INT32 else 2**63 - 1
            new = max(-limit - 1, min(limit, int(rng.choice(np.array(SIZES, object)))))
            if not isinstance(value, Sequence):
                setattr(message, field.name, new)
            elif len(value):
                value[int(rng.integers(len(value)))] = new


@mutation
def repeat_a_node(file: ModelFile, rng: Rng) -> None:
    copy = onnx.NodeProto()
    copy.CopyFrom(a_node(file, rng))
    file.model.graph.node.insert(int(rng.integers(len(file.model.graph.node) + 1)), copy)


@mutation
def strange_names(file: ModelFile, rng: Rng) -> None:
    strange = ["", "\n", "\0", "a" * 100_000, "%0", "@main", '"', "/* x", "../..", "\u202e", "{}"]
    node = a_node(file, rng)
    name = str(some(rng, list(strange)))
    choice = int(rng.integers(4))
    if choice == 0:
        node.name = name
    elif choice == 1:
        node.op_type = name
    elif choice == 2:
        node.domain = name
    else:
        old = {i.name: name for i in file.model.graph.input[:1]}
        for other in file.model.graph.node:
            for i, word in enumerate(other.input):
                other.input[i] = old.get(word, word)
        for info in file.model.graph.input[:1]:
            info.name = name


@mutation
def another_opset(file: ModelFile, rng: Rng) -> None:
    for entry in file.model.opset_import:
        entry.version = int(rng.choice([-5, 0, 1, 2, 5, 8, 9, 11, 13, 18, 22, 99, 2**40]))


# Graph


@mutation
def make_a_cycle(file: ModelFile, rng: Rng) -> None:
    node, other = a_node(file, rng), a_node(file, rng)
    if node.input and other.output:
        node.input[int(rng.integers(len(node.input)))] = other.output[0]


@mutation
def read_nothing(file: ModelFile, rng: Rng) -> None:
    node = a_node(file, rng)
    if node.input:
        node.input[int(rng.integers(len(node.input)))] = str(rng.choice(["", "nowhere"]))


@mutation
def more_or_fewer_inputs(file: ModelFile, rng: Rng) -> None:
    node = a_node(file, rng)
    if rng.integers(2) and node.input:
        del node.input[int(rng.integers(len(node.input))) :]
    else:
        node.input.extend([node.input[0] if node.input else "x"] * int(rng.integers(1, 300)))


@mutation
def write_twice(file: ModelFile, rng: Rng) -> None:
    a_node(file, rng).output[:] = a_node(file, rng).output


@mutation
def shuffle_nodes(file: ModelFile, rng: Rng) -> None:
    nodes = list(file.model.graph.node)
    del file.model.graph.node[:]
    file.model.graph.node.extend(nodes[i] for i in rng.permutation(len(nodes)))


@mutation
def promise_other_outputs(file: ModelFile, rng: Rng) -> None:
    if rng.integers(2):
        del file.model.graph.output[:]
    else:
        file.model.graph.output.add().name = str(rng.choice(["nowhere", "", "x"]))


@mutation
def exchange_the_operator(file: ModelFile, rng: Rng) -> None:
    names = sorted({schema.name for schema in onnx.defs.get_all_schemas()})
    a_node(file, rng).op_type = str(rng.choice(names))


# Shapes and types


@mutation
def absurd_input_shape(file: ModelFile, rng: Rng) -> None:
    for info in file.model.graph.input:
        shape = info.type.tensor_type.shape
        if rng.integers(4) == 0:
            for _ in range(int(rng.choice([1, 10, 1000]))):
                shape.dim.add().dim_value = int(rng.choice([1, 2]))
        elif shape.dim:
            dim = shape.dim[int(rng.integers(len(shape.dim)))]
            dim.dim_value = int(rng.choice(np.array(SIZES, object)))


@mutation
def absurd_weight_shape(file: ModelFile, rng: Rng) -> None:
    weights = file.model.graph.initializer
    if not weights:
        weights.append(numpy_helper.from_array(np.zeros(3, np.float32), "w"))
    tensor = weights[int(rng.integers(len(weights)))]
    if rng.integers(3) == 0:
        tensor.dims.extend([int(rng.choice(np.array(SIZES, object)))])
    elif tensor.dims:
        tensor.dims[int(rng.integers(len(tensor.dims)))] = int(rng.choice(np.array(SIZES, object)))


@mutation
def another_dtype(file: ModelFile, rng: Rng) -> None:
    kind = int(rng.choice([*range(27), 99, -1]))
    weights, inputs = file.model.graph.initializer, file.model.graph.input
    if weights and rng.integers(2):
        weights[int(rng.integers(len(weights)))].data_type = kind
    elif inputs:
        inputs[0].type.tensor_type.elem_type = kind


@mutation
def weight_without_data(file: ModelFile, rng: Rng) -> None:
    tensor = TensorProto(name=f"huge{rng.integers(10)}", data_type=TensorProto.FLOAT)
    tensor.dims.extend([int(rng.choice(GIGABYTES)), int(rng.choice([1, 4]))])
    file.model.graph.initializer.append(tensor)
    node = a_node(file, rng)
    if node.input:
        node.input[-1] = tensor.name


@mutation
def change_attributes(file: ModelFile, rng: Rng) -> None:
    node = a_node(file, rng)
    values: list[object] = [-1, 0, 7, 2**40, -(2**62), 0.5, float("nan"), "NOTSET", [], [0, 0]]
    values += [[-1] * 4, [2**40, 2**40], [2**31, 2**31], [1] * 200, [0.0], ["a"]]
    names = [a.name for a in node.attribute]
    names += ["axis", "perm", "kernel_shape", "strides", "pads", "group", "axes", "to", "dilations"]
    name = str(some(rng, list(names)))
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
    value = some(rng, list(values))
    if value == []:
        node.attribute.append(onnx.AttributeProto(name=name, type=onnx.AttributeProto.INTS))
    else:
        node.attribute.append(helper.make_attribute(name, value))


# Things that grow


def _constant(file: ModelFile, name: str, value: object, dtype: str = "int64") -> str:
    file.model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, dtype), name))
    return name


def _use(file: ModelFile, nodes: list[onnx.NodeProto]) -> None:
    """Put nodes in front and make the last one's output an output of the graph."""
    for entry in file.model.opset_import:
        if entry.domain == "":
            entry.version = 17
    for i, node in enumerate(nodes):
        file.model.graph.node.insert(i, node)
    file.model.graph.output.append(
        helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    )


@mutation
def constants_that_expand(file: ModelFile, rng: Rng) -> None:
    size = int(rng.choice(GIGABYTES))
    one = _constant(file, "bomb_one", [1.0], "float32")
    shape = _constant(file, "bomb_shape", [size, 1] if rng.integers(2) else [size])
    kinds = {
        "ConstantOfShape": ["bomb_shape"],
        "Expand": [one, shape],
        "Tile": [_constant(file, "bomb_row", [[1.0, 2.0]], "float32"), "bomb_reps"],
        "Pad": [one, "bomb_pads"],
        "Range": ["bomb_start", "bomb_stop", "bomb_step"],
        "OneHot": ["bomb_index", "bomb_stop", "bomb_values"],
        "EyeLike": ["bomb_eye"],
    }
    _constant(file, "bomb_reps", [size, 4])
    _constant(file, "bomb_pads", [0, size])
    _constant(file, "bomb_start", 0)
    _constant(file, "bomb_stop", size)
    _constant(file, "bomb_step", 1)
    _constant(file, "bomb_index", [1, 2])
    _constant(file, "bomb_values", [0.0, 1.0], "float32")
    kind = str(rng.choice(sorted(kinds)))
    nodes = []
    if kind == "EyeLike":
        nodes.append(helper.make_node("Expand", [one, shape], ["bomb_eye"]))
    _use(file, [*nodes, helper.make_node(kind, kinds[kind], ["boom"])])


@mutation
def constants_that_double(file: ModelFile, rng: Rng) -> None:
    value = _constant(file, "seed", np.ones((1, 64)), "float32")
    nodes: list[onnx.NodeProto] = []
    how = int(rng.integers(4))
    for i in range(40):
        name = f"double{i}"
        if how == 0:
            nodes.append(helper.make_node("Concat", [value, value], [name], axis=0))
        elif how == 1:
            reps = _constant(file, f"reps{i}", [2, 1])
            nodes.append(helper.make_node("Tile", [value, reps], [name]))
        elif how == 2:
            scales = _constant(file, f"scales{i}", [2.0, 1.0], "float32")
            nodes.append(helper.make_node("Resize", [value, "", scales], [name]))
        else:
            perm = f"turned{i}"
            nodes.append(helper.make_node("Flatten", [value], [f"flat{i}"], axis=2))
            nodes.append(helper.make_node("Transpose", [f"flat{i}"], [perm]))
            nodes.append(helper.make_node("Add", [f"flat{i}", perm], [name]))
        value = name
    _use(file, nodes)


@mutation
def functions_that_multiply(file: ModelFile, rng: Rng) -> None:
    """Each function calls the one before it twice: 2**30 nodes once all are inlined."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("bomb", 1)]
    recursive = bool(rng.integers(2))
    for i in range(30):
        callee = "f0" if recursive and i == 0 else f"f{max(i - 1, 0)}"
        inner = ("bomb", callee) if i or recursive else ("", "Relu")
        nodes = [
            helper.make_node(inner[1], ["a"], ["t"], domain=inner[0]),
            helper.make_node(inner[1], ["t"], ["b"], domain=inner[0]),
        ]
        file.model.functions.append(
            helper.make_function("bomb", f"f{i}", ["a"], ["b"], nodes, opsets)
        )
    file.model.opset_import.append(helper.make_opsetid("bomb", 1))
    x = file.model.graph.input[0].name if file.model.graph.input else "x"
    _use(file, [helper.make_node("f29", [x], ["boom"], domain="bomb")])


@mutation
def branches_in_branches(file: ModelFile, rng: Rng) -> None:
    depth = int(rng.choice([1, 5, 12]))
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["r"])], "leaf", [], [])
    graph.output.append(helper.make_tensor_value_info("r", TensorProto.FLOAT, None))
    # Both branches hold the whole rest, so the file doubles with every level.
    for i in range(depth):
        node = helper.make_node("If", ["c"], [f"r{i}"], then_branch=graph, else_branch=graph)
        out = helper.make_tensor_value_info(f"r{i}", TensorProto.FLOAT, None)
        graph = helper.make_graph([node], f"level{i}", [], [out])
    _constant(file, "c", True, "bool")
    _use(file, list(graph.node))


# External data


def _external(file: ModelFile, rng: Rng, location: str, **facts: object) -> None:
    weights = file.model.graph.initializer
    if not weights:
        _constant(file, "w", np.ones(4), "float32")
    tensor = weights[int(rng.integers(len(weights)))]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in {"location": location, **facts}.items():
        tensor.external_data.add(key=key, value=str(value))


def _secret(file: ModelFile) -> Path:
    """A readable file outside the model's folder."""
    path = file.folder.parent / "secret.bin"
    path.write_bytes(b"s" * 4096)
    return path


@mutation
def data_outside_the_folder(file: ModelFile, rng: Rng) -> None:
    secret = _secret(file)
    inner = file.folder / "sub"
    inner.mkdir(exist_ok=True)
    places = ["../secret.bin", str(secret), "sub/../../secret.bin", "./../secret.bin"]
    places += ["..\\secret.bin", "C:\\secret.bin", "//host/share", "sub/..//../secret.bin"]
    places += ["/etc/passwd", "/dev/zero"]
    _external(file, rng, str(some(rng, list(places))))


@mutation
def data_behind_a_link(file: ModelFile, rng: Rng) -> None:
    secret = _secret(file)
    link = file.folder / "link.bin"
    kind = int(rng.integers(4))
    if kind == 0:
        link.symlink_to(secret)
        _external(file, rng, "link.bin")
    elif kind == 1:
        os.link(secret, link)
        _external(file, rng, "link.bin")
    elif kind == 2:
        (file.folder / "folder").symlink_to(file.folder.parent)
        _external(file, rng, "folder/secret.bin")
    else:
        link.symlink_to(link.name)
        _external(file, rng, "link.bin")


@mutation
def data_that_is_no_file(file: ModelFile, rng: Rng) -> None:
    kind = int(rng.integers(4))
    if kind == 0:
        os.mkfifo(file.folder / "pipe")
        _external(file, rng, "pipe")
    elif kind == 1:
        _external(file, rng, str(rng.choice([".", "sub", "", "\0", "missing.bin", "a" * 5000])))
        (file.folder / "sub").mkdir(exist_ok=True)
    elif kind == 2:
        _external(file, rng, "model.onnx")
    else:
        _external(file, rng, "missing/" * 50 + "w.bin")


@mutation
def data_of_claimed_gigabytes(file: ModelFile, rng: Rng) -> None:
    path = file.folder / "w.bin"
    with path.open("wb") as stream:
        stream.write(b"\0" * 64)
        if rng.integers(2):
            # Sparse: 4 GB long without a block on the disk.
            stream.truncate(1 << 32)
    facts: list[dict[str, object]] = [
        {"length": 1 << 32},
        {"offset": 1 << 40},
        {"offset": -1, "length": 64},
        {"length": -5},
        {"offset": "x"},
        {"length": "1e9"},
        {"offset": 0, "length": 1 << 63},
        {},
    ]
    choice = facts[int(rng.integers(len(facts)))]
    _external(file, rng, "w.bin", **choice)
    if rng.integers(2):
        weights = file.model.graph.initializer
        for tensor in weights:
            if tensor.data_location == TensorProto.EXTERNAL:
                del tensor.dims[:]
                tensor.dims.append(1 << 30)
