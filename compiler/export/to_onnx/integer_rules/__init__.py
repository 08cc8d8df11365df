"""Exact integer forms, by what they compute; importing this fills the table FToInteger."""

from compiler.export.to_onnx.integer_rules import (
    arithmetic,
    cast,
    fixed_point,
    movement,
    pool,
    product,
    table,
)

__all__ = ["arithmetic", "cast", "fixed_point", "movement", "pool", "product", "table"]
