"""The questions that passes ask operators, one file each: signature, table, temporary expression."""
