"""What a quantized module is shown to be: dtypes, ranges of every value, and agreeing executors."""

from compiler.proof import range_rules as range_rules  # fills the table FRange
