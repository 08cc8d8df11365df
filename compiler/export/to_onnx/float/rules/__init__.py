"""Export rules, one file per namespace; importing this package fills the table FToOnnx."""

# ruff: noqa: F401  (imported so that they register)

from compiler.export.to_onnx.float.rules import (
    annotation,
    indexing,
    nn,
    normalization,
    pool,
    reduce,
    tensor,
    transform,
)
