"""Range rules, by what operators compute; importing this fills the table FRange."""

# ruff: noqa: F401  (imported so that they register)

from compiler.ranges.rules import arithmetic, fixed_point, movement, pool, product, table
