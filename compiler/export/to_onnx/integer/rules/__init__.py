"""Exact integer forms, by what they compute; importing this fills the table FToInteger."""

# ruff: noqa: F401  (imported so that they register)

from compiler.export.to_onnx.integer.rules import (
    arithmetic,
    fixed_point,
    movement,
    pool,
    product,
    table,
)
