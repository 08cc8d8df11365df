"""Operators of Relay's vision namespace, an operator or family a file."""
