"""Range rules, by what operators compute; importing this fills the table FRange."""

from compiler.proof.range_rules import arithmetic, fixed_point, movement, pool, product, table

__all__ = ["arithmetic", "fixed_point", "movement", "pool", "product", "table"]
