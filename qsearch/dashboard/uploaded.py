"""What an uploaded file says of itself, read without trusting it; runs in the inspector."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import numpy as np

from compiler.runtime.npy import read_header
from qsearch.errors import DataError, ModelFileError

MAX_UNPACKED_BYTES: Final = 8 << 30
MAX_ARRAYS: Final = 1000
_MAX_TENSOR: Final = 2 << 30
"""Elements of one tensor that a model may speak of."""


def about_onnx(file: Path) -> dict[str, Any]:
    """Inputs, outputs and operators of a model.

    Raises:
        ModelFileError: no ONNX model, one that refers to other files, or one with giant tensors.
    """
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model(str(file), load_external_data=False)
        onnx.checker.check_model(model)
    except (DecodeError, onnx.checker.ValidationError, ValueError, OSError) as error:
        raise ModelFileError(
            f"this is no valid ONNX model: {str(error).splitlines()[0][:200]}",
            where="upload",
            fix="export the model again; onnx.checker names what is wrong",
        ) from error
    for tensor in model.graph.initializer:
        if tensor.data_location == onnx.TensorProto.EXTERNAL or tensor.external_data:
            raise ModelFileError(
                "the model refers to other files",
                where=tensor.name[:200],
                fix="save it as one file: onnx.save(model, path, save_as_external_data=False)",
            )
    operators: dict[str, int] = {}
    for node in model.graph.node:
        operators[node.op_type] = operators.get(node.op_type, 0) + 1
    return {
        "inputs": [_value(value) for value in model.graph.input],
        "outputs": [_value(value) for value in model.graph.output],
        "nodes": len(model.graph.node),
        "operators": dict(sorted(operators.items(), key=lambda item: -item[1])),
        "parameters": sum(_elements(list(t.dims), t.name) for t in model.graph.initializer),
    }


def about_npz(file: Path) -> dict[str, Any]:
    """Names, shapes and dtypes of the arrays, from their headers alone.

    Raises:
        DataError: no archive of plain arrays, or one that unpacks to too much.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            infos = archive.infolist()
            if (
                len(infos) > MAX_ARRAYS
                or sum(info.file_size for info in infos) > MAX_UNPACKED_BYTES
            ):
                raise DataError(
                    "the archive unpacks to more than is allowed",
                    where=f"{MAX_ARRAYS} arrays, {MAX_UNPACKED_BYTES >> 20} MiB",
                    fix="give fewer samples",
                )
            arrays = [_header(archive, info) for info in infos]
    except (zipfile.BadZipFile, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise DataError(
            f"this is no .npz of plain arrays: {str(error)[:200]}",
            where="upload",
            fix="write it with numpy.savez",
        ) from error
    return {"arrays": arrays}


def _header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> dict[str, Any]:
    with archive.open(info) as stream:
        shape, _, dtype = read_header(cast(BinaryIO, stream))
    if dtype.hasobject:
        raise ValueError(f"{info.filename} holds Python objects")
    name = info.filename.removesuffix(".npy")
    if np.prod([1, *shape], dtype=np.float64) * dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is shorter than its shape {shape} says")
    return {"name": name, "shape": list(shape), "dtype": str(dtype)}


def _value(value: Any) -> dict[str, Any]:
    dims = [d.dim_value or d.dim_param or "?" for d in value.type.tensor_type.shape.dim]
    _elements([d for d in dims if isinstance(d, int)], value.name)
    return {"name": value.name, "shape": dims}


def _elements(dims: list[int], name: str) -> int:
    count = 1
    for size in dims:
        count *= max(size, 1)
    if count > _MAX_TENSOR:
        raise ModelFileError(
            f"a tensor of {count} elements", where=name[:200], fix="use a smaller model"
        )
    return count
