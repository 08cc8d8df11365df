"""A LiteRT file as it grows: tensors, buffers and operators; the schema is ai-edge-litert's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import TfliteExportError

_VERSION: Final = 3
_IDENTIFIER: Final = b"TFL3"


def schema() -> Any:
    """The module of the schema's classes.

    Raises:
        TfliteExportError: ai-edge-litert or flatbuffers is not installed.
    """
    try:
        return import_module("ai_edge_litert.schema_py_generated")
    except ImportError as error:
        raise TfliteExportError(
            "LiteRT files are written with the packages flatbuffers and ai-edge-litert",
            where=str(error),
            fix="pip install 'qsearch[tflite]'",
        ) from error


@dataclass(frozen=True, slots=True)
class Grid:
    """Scale and zero point of a tensor: real value = scale * (integer - zero).

    Attributes:
        scale: one, or one per index of ``axis``.
        zero: the same for all.
    """

    scale: tuple[float, ...]
    zero: int = 0
    axis: int = 0


class FileWriter:
    """Tensors and operators of one subgraph, numbered in the order in which they are made."""

    def __init__(self) -> None:
        self._schema = schema()
        self.tensors: list[Any] = []
        self.known: dict[int, NDArray[Any]] = {}
        self._buffers = [self._schema.BufferT()]
        self._operators: list[Any] = []
        self._codes: dict[str, int] = {}
        self._constants: dict[tuple[Any, ...], int] = {}

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        grid: Grid | None = None,
        data: NDArray[Any] | None = None,
    ) -> int:
        """The number of a new tensor; with ``data`` a constant."""
        made = self._schema.TensorT()
        made.name = name
        made.shape = [int(n) for n in shape]
        made.hasRank = True
        made.type = getattr(self._schema.TensorType, dtype.upper())
        if grid is not None:
            made.quantization = self._quantization(grid)
        if data is not None:
            buffer = self._schema.BufferT()
            little = np.ascontiguousarray(data, np.dtype(dtype).newbyteorder("<"))
            buffer.data = np.frombuffer(little.tobytes(), np.uint8)
            made.buffer = len(self._buffers)
            self._buffers.append(buffer)
        self.tensors.append(made)
        return len(self.tensors) - 1

    def _quantization(self, grid: Grid) -> Any:
        made = self._schema.QuantizationParametersT()
        made.scale = np.asarray(grid.scale, np.float32)
        made.zeroPoint = np.full(len(grid.scale), grid.zero, np.int64)
        made.quantizedDimension = grid.axis
        return made

    def worth(self, tensor: int, scale: float) -> bool:
        """Let a step of a tensor that has no grid be worth this; False where it has another one."""
        held = self.tensors[tensor]
        if held.quantization is None:
            held.quantization = self._quantization(Grid((scale,)))
        return bool(held.quantization.scale[0] == np.float32(scale))

    def constant(self, data: NDArray[Any], dtype: str, grid: Grid | None = None) -> int:
        """A constant tensor; equal ones are one."""
        key = (data.shape, dtype, grid, data.astype(dtype).tobytes())
        if key not in self._constants:
            name = f"constant_{len(self._constants)}"
            self._constants[key] = self.tensor(name, data.shape, dtype, grid, data)
            self.known[self._constants[key]] = data
        return self._constants[key]

    def operator(self, name: str, inputs: Sequence[int], output: int, **fields: Any) -> None:
        """One operator with one result.

        Args:
            name: of the BuiltinOperator, such as "CONV_2D".
            fields: of its options.
        """
        options = _OPTIONS.get(name, f"{name.title().replace('_', '')}Options")
        made = self._schema.OperatorT()
        made.opcodeIndex = self._codes.setdefault(name, len(self._codes))
        made.inputs = list(inputs)
        made.outputs = [output]
        if options:
            made.builtinOptionsType = getattr(self._schema.BuiltinOptions, options)
            made.builtinOptions = getattr(self._schema, f"{options}T")()
            for field, value in fields.items():
                assert hasattr(made.builtinOptions, field), field
                setattr(made.builtinOptions, field, value)
        self._operators.append(made)

    @property
    def counts(self) -> dict[str, int]:
        """Operators by name, with their number."""
        names = list(self._codes)
        return dict(Counter(names[made.opcodeIndex] for made in self._operators))

    def finish(self, inputs: dict[str, int], outputs: dict[str, int]) -> bytes:
        """The file, with one signature."""
        flatbuffers = import_module("flatbuffers")
        schema = self._schema
        graph = schema.SubGraphT()
        graph.name = "main"
        graph.tensors = self.tensors
        graph.operators = self._operators
        graph.inputs = list(inputs.values())
        graph.outputs = list(outputs.values())
        signature = schema.SignatureDefT()
        signature.signatureKey = "serving_default"
        signature.inputs = [self._named(*pair) for pair in inputs.items()]
        signature.outputs = [self._named(*pair) for pair in outputs.items()]
        model = schema.ModelT()
        model.version = _VERSION
        model.description = "qsearch"
        model.subgraphs = [graph]
        model.buffers = self._buffers
        model.operatorCodes = [self._code(name) for name in self._codes]
        model.signatureDefs = [signature]
        builder = flatbuffers.Builder(1 << 16)
        builder.Finish(model.Pack(builder), file_identifier=_IDENTIFIER)
        return bytes(builder.Output())

    def _named(self, name: str, tensor: int) -> Any:
        made = self._schema.TensorMapT()
        made.name = name
        made.tensorIndex = tensor
        return made

    def _code(self, name: str) -> Any:
        made = self._schema.OperatorCodeT()
        made.builtinCode = getattr(self._schema.BuiltinOperator, name)
        # Readers older than the long codes look here; 127 says that the other one counts.
        made.deprecatedBuiltinCode = min(made.builtinCode, 127)
        made.version = _VERSIONS.get(name, 2)
        return made


_OPTIONS: Final = {
    "BATCH_MATMUL": "BatchMatMulOptions",
    "MAXIMUM": "MaximumMinimumOptions",
    "MAX_POOL_2D": "Pool2DOptions",
    "MEAN": "ReducerOptions",
    "MINIMUM": "MaximumMinimumOptions",
    "PADV2": "PadV2Options",
    "REDUCE_MAX": "ReducerOptions",
    "REDUCE_MIN": "ReducerOptions",
    "RELU": "",
    "RELU6": "",
}
"""BuiltinOptions of operators that have none, or not those of their names (Conv2DOptions)."""
_VERSIONS: Final = {
    "DEPTH_TO_SPACE": 1,
    "SPACE_TO_DEPTH": 1,
    "CONV_2D": 3,
    "DEPTHWISE_CONV_2D": 3,
    "RESHAPE": 1,
}
"""Versions of the operators whose int8 form is not the second one."""
