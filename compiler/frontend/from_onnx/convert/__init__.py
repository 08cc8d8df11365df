"""Converters of ONNX nodes, one file per family; importing this package fills the table."""

from compiler.frontend.from_onnx.convert import (
    activation,
    before_opset_7,
    conv,
    indexing,
    integer,
    matmul,
    normalization,
    pool,
    quant,
    reduce,
    resize,
    scatter,
    tensor,
    thresholds,
    transform,
    trigonometry,
)

__all__ = [
    "activation",
    "before_opset_7",
    "conv",
    "indexing",
    "integer",
    "matmul",
    "normalization",
    "pool",
    "quant",
    "reduce",
    "resize",
    "scatter",
    "tensor",
    "thresholds",
    "transform",
    "trigonometry",
]
