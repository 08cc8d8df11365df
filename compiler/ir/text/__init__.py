"""The text form of the IR: lexer, parser and printer."""
