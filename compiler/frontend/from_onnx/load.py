"""load: an ONNX file becomes a Relay module and its weights.

The import is literal: one ONNX node becomes the operators that mean the same, no pass runs. Only
what is constant and small is computed at once, which folds the shape arithmetic exporters write.
Every node carries the span ``onnx:<node name>``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import onnx

import compiler.frontend.from_onnx.convert
import compiler.ops  # noqa: F401  (registers the operators)
from compiler.errors import OnnxImportError
from compiler.frontend.from_onnx.graph import import_graph
from compiler.frontend.from_onnx.graph_inputs import InputShapes
from compiler.frontend.from_onnx.inlining import inline_functions
from compiler.frontend.from_onnx.model_file import MAX_MODEL_BYTES, read_model
from compiler.frontend.from_onnx.opsets import (
    NEWEST_OPSET,
    OLDEST_OPSET,
    STANDARD_DOMAINS,
    plain_domain,
)
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import closed
from compiler.ir.module import INTEGER_WEIGHTS, IRModule
from compiler.ops.number_format import Array


@collector_rests
def load(
    source: str | os.PathLike[str] | bytes,
    *,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    keep_dynamic: bool = False,
    max_bytes: int = MAX_MODEL_BYTES,
) -> tuple[IRModule, dict[str, Array]]:
    """Import an ONNX model.

    Args:
        source: path of the file, or its content as bytes.
        dims: value of a named dimension, such as {"sequence": 128}; {"x:2": 128} is axis 2 of
            input x, with or without a name.
        input_shapes: whole shape of an input by its name; goes before ``dims``.
        keep_dynamic: keep unknown dimensions as ``?`` instead of choosing values.
        max_bytes: largest file that is read.
    Returns:
        module whose @main has the graph inputs and then the weights as parameters, all typed; and
        the weights by parameter name (initializer name), mapped where external data has their
        form. Outputs are one tensor or a tuple.
    Raises:
        OnnxImportError: the file is missing, damaged, not ONNX, or an exact export; operators or
            attributes that are not supported (all of them in one message); a dimension without a
            value. An unknown leading dimension is taken as 1.
    """
    mapped: dict[str, Array] = {}
    model = read_model(source, max_bytes, mapped=mapped)
    if any((one.key, one.value) == ("qsearch.form", "onnx") for one in model.metadata_props):
        raise OnnxImportError(
            "the file holds the exact integers of a module, as arithmetic and no layers",
            fix="give the .qmod that it was exported from, or its float model",
        )
    opsets = _opsets(model)
    model = inline_functions(model)
    functions = {(own.domain, own.name): own for own in model.functions}
    shapes = InputShapes(dict(dims or {}), dict(input_shapes or {}), keep_dynamic)
    main, params, integers = import_graph(model.graph, opsets, shapes, mapped, functions)
    attrs = {INTEGER_WEIGHTS: 1} if integers else None
    return closed(infer_module(IRModule({"main": main}, attrs=attrs))), params


def _opsets(model: onnx.ModelProto) -> dict[str, int]:
    opsets = {plain_domain(entry.domain): entry.version for entry in model.opset_import}
    if not any(node.domain in STANDARD_DOMAINS for node in model.graph.node):
        opsets.setdefault("", NEWEST_OPSET)  # what the converters of other domains build
    version = opsets.get("")
    if version is None:
        raise OnnxImportError(
            "the model names no opset of the standard operators",
            fix="export it again, or add opset_import",
        )
    if not OLDEST_OPSET <= version <= NEWEST_OPSET:
        raise OnnxImportError(
            f"opset {version} is not supported",
            where=f"supported are opsets {OLDEST_OPSET} to {NEWEST_OPSET}",
            fix="convert it with onnx.version_converter.convert_version(model, 17)",
        )
    return opsets
