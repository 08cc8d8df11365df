"""Converters of ONNX nodes, one file per family; importing this package fills the table."""

from compiler.frontend.from_onnx.convert import (
    activation,
    conv,
    indexing,
    matmul,
    normalization,
    pool,
    quant,
    reduce,
    resize,
    tensor,
    transform,
)

__all__ = [
    "activation",
    "conv",
    "indexing",
    "matmul",
    "normalization",
    "pool",
    "quant",
    "reduce",
    "resize",
    "tensor",
    "transform",
]
