"""Questions of passes to operators, one file a question: signature, table, temporary expression."""
