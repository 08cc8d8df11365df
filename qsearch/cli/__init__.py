"""The command line: a file per command; parse, call the api, print."""
