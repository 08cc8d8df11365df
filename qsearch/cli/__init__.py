"""The command line: a file per command; each parses, calls ``qsearch.api`` once, and prints."""
