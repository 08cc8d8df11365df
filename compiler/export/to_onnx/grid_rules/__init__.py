"""Rules of the integer grid, by what they compute; importing this fills the table FToGrid."""

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

__all__ = [
    "cast",
    "elementwise",
    "movement",
    "pool",
    "product",
    "requantize",
    "standardize",
    "table",
]
