"""From a file or bytes to a ModelProto and all its weights, without trusting either.

External data is read only from plain files inside the model's own folder: no absolute path, no
``..``, no symbolic or hard link; lengths are checked against the file before anything is read.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from functools import cache
from pathlib import Path, PureWindowsPath
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import onnx
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from compiler.errors import OnnxImportError, raised_as
from compiler.ops.number_format import Array

_Kind = TypeVar("_Kind")

MAX_MODEL_BYTES = 2 << 30
_MOST_STRUCTURE = 1 << 10
"""Bytes of an initializer whose data may say a shape or an axis."""
_MAPPED_BYTES = 1 << 20
"""External data of an initializer that is mapped, not read."""
_MAPPED: dict[int, str] = {
    onnx.TensorProto.FLOAT: "<f4",
    onnx.TensorProto.INT8: "i1",
    onnx.TensorProto.UINT8: "u1",
}

# Field 1 (ir_version) as varint: what every ModelProto written by a protobuf library begins with.
_FIRST_BYTE = 0x08


class _Origin(NamedTuple):
    """Origin of a model: its name in messages, the folder of external data, and the bound on the
    bytes of each file."""

    name: str
    folder: Path | None
    max_bytes: int


def read_model(
    source: str | os.PathLike[str] | bytes,
    max_bytes: int = MAX_MODEL_BYTES,
    kinds: Collection[int] | None = None,
    mapped: dict[str, Array] | None = None,
) -> onnx.ModelProto:
    """Parse an ONNX model; external data is copied into the returned message.

    Args:
        source: path of a ``.onnx`` file, or its content.
        max_bytes: bound on the file and on each external data file.
        kinds: data types of TensorProto whose external data is read; of others it is checked only.
        mapped: takes the large initializers of external data by name, read-only and as they are in
            the file; the message then lacks their data.
    Raises:
        OnnxImportError: missing, too large, not ONNX, cut off, or external data outside the folder.
    """
    if isinstance(source, bytes):
        return _parse(source, _Origin("model given as bytes", None, max_bytes), kinds, mapped)
    path = Path(source)
    if not path.exists():
        raise OnnxImportError(
            f"there is no file {path}", where=str(path.absolute()), fix="check the path"
        )
    if not path.is_file():
        raise OnnxImportError(
            f"{path} is not a file", where=str(path), fix="give the path of a .onnx file"
        )
    if path.stat().st_size > max_bytes:
        raise OnnxImportError(
            f"{path} holds {path.stat().st_size} bytes; the limit is {max_bytes}",
            fix="store the weights as external data, or raise the limit",
        )
    what = f"{path} cannot be read"
    fix = "check its permissions"
    with raised_as(OnnxImportError, what, OSError, fix=fix):
        data = path.read_bytes()
    return _parse(data, _Origin(str(path), path.parent, max_bytes), kinds, mapped)


def read_structure(source: str | os.PathLike[str] | bytes) -> onnx.ModelProto:
    """Parse an ONNX model as ``read_model`` does, without the data of large initializers."""
    model = read_model(source, kinds=())
    structure = onnx.ModelProto(ir_version=model.ir_version, functions=model.functions)
    structure.opset_import.extend(model.opset_import)
    for field in ("node", "input", "output", "value_info"):
        getattr(structure.graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        if tensor.ByteSize() <= _MOST_STRUCTURE:
            structure.graph.initializer.append(tensor)
        else:
            structure.graph.initializer.add(
                name=tensor.name, data_type=tensor.data_type, dims=tensor.dims
            )
    return structure


def _parse(
    data: bytes,
    origin: _Origin,
    kinds: Collection[int] | None,
    mapped: dict[str, Array] | None,
) -> onnx.ModelProto:
    name = origin.name
    if not data:
        raise OnnxImportError(f"{name} is empty", fix="export the model again")
    model = onnx.ModelProto()
    cause = "it holds no graph"
    try:
        model.ParseFromString(data)
    except DecodeError:
        model.Clear()
        cause = "it does not parse"
    if not model.ir_version or not model.HasField("graph"):
        if data[0] == _FIRST_BYTE:
            raise OnnxImportError(
                f"{name} is damaged or cut off: it begins like an ONNX model, but {cause}",
                where=f"{len(data)} bytes read",
                fix="copy or export the file again",
            )
        raise OnnxImportError(
            f"{name} is not an ONNX model",
            fix="a .qmod is quantized already: give the model that it was made from"
            if name.endswith(".qmod")
            else "give a file written by an ONNX exporter (torch.onnx.export, tf2onnx, …)",
        )
    messages = list(_messages(model))
    _make_text_of_names(model, messages, name)
    if mapped is not None:
        for tensor in model.graph.initializer:
            _map_external_data(tensor, origin, mapped)
    for tensor in messages:
        if isinstance(tensor, onnx.TensorProto):
            wanted = kinds is None or tensor.data_type in kinds
            _load_external_data(tensor, origin, wanted)
    _drop_maps(model.graph)
    _number_labels(model.graph)
    return model


def _drop_maps(graph: onnx.GraphProto) -> None:
    """Replace what ZipMap makes of a tensor, a list of maps, by the tensor under the same name."""
    maps = {node.input[0]: node.output[0] for node in graph.node if node.op_type == "ZipMap"}
    if not maps:
        return
    kept = [node for node in graph.node if node.op_type != "ZipMap"]
    for node in kept:
        for names in (node.input, node.output):
            names[:] = [maps.get(name, name) for name in names]
    del graph.node[:]
    graph.node.extend(kept)
    for output in graph.output:
        if output.name in maps.values():
            shape = [None, None]
            output.CopyFrom(
                onnx.helper.make_tensor_value_info(output.name, onnx.TensorProto.FLOAT, shape)
            )


_ML: Final = "ai.onnx.ml"
_PICKS: Final = ("ArrayFeatureExtractor", "Gather")
_KEEPS: Final = (*_PICKS, "Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that give elements of their first input, and no others."""


def _number_labels(graph: onnx.GraphProto) -> None:
    """Labels that are texts become their places: those of classifiers, and a constant of texts
    that elements are picked from. The doc_string of an output holds the texts."""
    picked = {name for node in graph.node if node.op_type in _PICKS for name in node.input[:1]}
    numbered: dict[str, str] = {}
    for tensor in graph.initializer:
        if tensor.data_type == onnx.TensorProto.STRING and tensor.name in picked:
            numbered[tensor.name] = _joined(tensor.string_data)
            places = np.arange(len(tensor.string_data)).reshape(tensor.dims)
            tensor.CopyFrom(onnx.numpy_helper.from_array(places, tensor.name))
    for node in graph.node:
        read = not numbered.keys().isdisjoint(node.input)
        for attribute in node.attribute if read or node.domain == _ML else ():
            if attribute.name == "classlabels_strings" and attribute.strings:
                texts = _joined(attribute.strings)
                count = len(attribute.strings)
                named = onnx.helper.make_attribute("classlabels_int64s", range(count))
                attribute.CopyFrom(named)
                numbered |= dict.fromkeys(node.output[:1], texts)
            elif read and attribute.name == "to":
                if attribute.i != onnx.TensorProto.STRING:
                    raise OnnxImportError(
                        "labels that are texts are read as numbers",
                        where=f"ONNX node {node.name!r}",
                        fix="train with numbers as labels (sklearn.preprocessing.LabelEncoder)",
                    )
                attribute.i = onnx.TensorProto.INT64
        if read and node.op_type in _KEEPS and node.input[0] in numbered:
            numbered |= dict.fromkeys(node.output, numbered[node.input[0]])
    for info in (*graph.value_info, *graph.output):
        info.doc_string = numbered.get(info.name, "")
        if info.name in numbered:
            info.type.tensor_type.elem_type = onnx.TensorProto.INT64


def _joined(texts: Iterable[bytes]) -> str:
    return b", ".join(texts).decode("utf-8", "backslashreplace")


def _messages(root: Message) -> Iterator[Any]:
    """The message and every one in it, wherever it is."""
    pending: list[Any] = [root]
    while pending:
        message = pending.pop()
        yield message
        for field, repeated in _fields_of(message.DESCRIPTOR)[1]:
            if repeated:
                pending.extend(getattr(message, field))
            elif message.HasField(field):
                pending.append(getattr(message, field))


def _make_text_of_names(model: onnx.ModelProto, messages: Iterable[Any], name: str) -> None:
    """Write names that are not UTF-8 with escapes (``\\xff``), everywhere in the same way.

    ONNX demands UTF-8, but protobuf does not check it, and gives such a name as bytes.
    """
    places: list[tuple[Any, str, int | None, bytes]] = []
    for message in messages:
        for field, repeated in _fields_of(message.DESCRIPTOR)[0]:
            value = getattr(message, field)
            for place, text in enumerate(value if repeated else [value]):
                if isinstance(text, bytes):
                    places.append((message, field, place if repeated else None, text))
    if not places:
        return
    texts = {text: text.decode("utf-8", "backslashreplace") for *_, text in places}
    taken = {given for node in model.graph.node for given in (*node.input, *node.output)}
    if clash := taken.intersection(texts.values()):
        raise OnnxImportError(
            f"{name} holds the name {min(clash)!r} twice, as text and as bytes that are not UTF-8",
            fix="rename the tensors",
        )
    for message, field, at, text in places:
        if at is None:
            setattr(message, field, texts[text])
        else:
            getattr(message, field)[at] = texts[text]


@cache
def _fields_of(kind: Any) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Fields of a kind of message that hold text, and fields that hold messages, each with whether
    it is repeated. Contents of tensors are neither."""
    found: dict[int, list[tuple[str, bool]]] = {
        FieldDescriptor.TYPE_STRING: [],
        FieldDescriptor.TYPE_MESSAGE: [],
    }
    for field in kind.fields:
        if field.type in found:
            found[field.type].append((field.name, field.is_repeated))
    return found[FieldDescriptor.TYPE_STRING], found[FieldDescriptor.TYPE_MESSAGE]


def within(message: Message, kind: type[_Kind]) -> Iterator[_Kind]:
    """Every message of a kind in a message, in branches and attributes too, and the message."""
    return (found for found in _messages(message) if isinstance(found, kind))


def _load_external_data(tensor: onnx.TensorProto, origin: _Origin, wanted: bool) -> None:
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return
    file, start, length = _external_place(tensor, origin)
    if not wanted:
        return
    with file.open("rb") as stream:
        stream.seek(start)
        tensor.raw_data = stream.read(length)
    del tensor.external_data[:]
    tensor.data_location = onnx.TensorProto.DEFAULT


def _map_external_data(tensor: onnx.TensorProto, origin: _Origin, mapped: dict[str, Array]) -> None:
    mapped.pop(tensor.name, None)  # the last one of a name is the one that counts
    dtype = np.dtype(_MAPPED.get(tensor.data_type, "V"))
    size = math.prod(tensor.dims) * dtype.itemsize
    if tensor.data_location != onnx.TensorProto.EXTERNAL or size < _MAPPED_BYTES:
        return
    file, start, length = _external_place(tensor, origin)
    if length == size and start % dtype.itemsize == 0 and min(tensor.dims) > 0:
        data = np.memmap(file, dtype, "r", start, tuple(tensor.dims))
        mapped[tensor.name] = data.view(np.ndarray).astype(dtype.newbyteorder("="), copy=False)
        del tensor.external_data[:]
        tensor.data_location = onnx.TensorProto.DEFAULT


def _external_place(tensor: onnx.TensorProto, origin: _Origin) -> tuple[Path, int, int]:
    """The file of external data, its first byte and its length."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    where = f"tensor {tensor.name!r} of {origin.name}, location {location!r}"
    if origin.folder is None:
        raise OnnxImportError(
            "external data cannot be found for a model given as bytes",
            where=where,
            fix="give the path of the model",
        )
    file = _inside(origin.folder, location, where)
    start, length = _range(entries, file.stat().st_size, where)
    if length > origin.max_bytes:
        raise OnnxImportError(
            f"external data of {length} bytes; the limit is {origin.max_bytes}", where=where
        )
    return file, start, length


def _inside(folder: Path, location: str, where: str) -> Path:
    """The plain file ``location`` names inside ``folder``."""
    windows = PureWindowsPath(location)
    if (
        not location
        or "\0" in location
        or Path(location).is_absolute()
        or windows.drive
        or windows.root
        or ".." in windows.parts
    ):
        raise OnnxImportError(
            "external data must lie inside the model's folder",
            where=where,
            fix="use a relative location without '..'",
        )
    root = folder.resolve()
    file = root
    try:
        for part in Path(location).parts:
            file = file / part
            if file.is_symlink():
                raise OnnxImportError(
                    "external data must not be a symbolic link",
                    where=f"{where}, link {file.name!r}",
                    fix="copy the data into the model's folder",
                )
        if not file.resolve().is_relative_to(root):
            raise OnnxImportError("external data must lie inside the model's folder", where=where)
        facts = file.stat()
    except OSError as error:
        raise OnnxImportError(
            f"the external data file is missing or cannot be opened: {error.strerror}",
            where=where,
            fix="copy it beside the model",
        ) from error
    if not stat.S_ISREG(facts.st_mode):
        raise OnnxImportError("external data must be a plain file", where=where)
    # A hard link could name any file of the disk without looking like a link.
    if facts.st_nlink > 1:
        raise OnnxImportError(
            "external data must not be a hard link",
            where=where,
            fix="copy the data into the model's folder",
        )
    return file


def _range(entries: dict[str, str], size: int, where: str) -> tuple[int, int]:
    with raised_as(OnnxImportError, "offset and length must be numbers", ValueError, where=where):
        start = int(entries.get("offset", "0"))
        length = int(entries.get("length", str(size - start)))
    if start < 0 or length < 0 or start + length > size:
        raise OnnxImportError(
            f"bytes {start} to {start + length} lie outside the file of {size} bytes",
            where=where,
            fix="the data file is cut off; copy it again",
        )
    return start, length
