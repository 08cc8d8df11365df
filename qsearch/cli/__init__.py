"""The command line: a file per kind of command; each parses, calls one function, and prints."""
