"""Export rules, one file per namespace; importing this package fills the table FToOnnx."""

from compiler.export.to_onnx.convert import (
    annotation,
    formula,
    indexing,
    nn,
    normalization,
    pool,
    reduce,
    tensor,
    transform,
)

__all__ = [
    "annotation",
    "formula",
    "indexing",
    "nn",
    "normalization",
    "pool",
    "reduce",
    "tensor",
    "transform",
]
