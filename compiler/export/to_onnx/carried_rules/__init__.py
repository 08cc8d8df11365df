"""Rules of the integer graph, by what they compute; importing this fills the table FToCarried."""

# ruff: noqa: F401  (imported so that they register)

from compiler.export.to_onnx.carried_rules import (
    cast,
    elementwise,
    movement,
    pool,
    product,
    requantize,
    standardize,
    table,
)
