"""What passes ask operators, one file a question: signature, table, temporary expression."""
