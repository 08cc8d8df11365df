"""Converters of ONNX nodes, one file per family; importing this package fills the table."""

# ruff: noqa: F401  (imported so that they register)

from compiler.frontend.from_onnx.convert import (
    activation,
    attention,
    conv,
    einsum,
    fused,
    indexing,
    machine_learning,
    matmul,
    normalization,
    pool,
    qlinear,
    quant,
    recurrent,
    reduce,
    resize,
    signal,
    tensor,
    transform,
)
