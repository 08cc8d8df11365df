"""One pass, one file, Relay's name in snake case."""
