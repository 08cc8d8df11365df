"""Rules of the integer grid, by what they compute; importing this fills the table FToGrid."""

# ruff: noqa: F401  (imported so that they register)

from compiler.export.to_onnx.grid_rules import (
    cast,
    elementwise,
    movement,
    pool,
    product,
    requantize,
    standardize,
    table,
)
