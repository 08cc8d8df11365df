"""Operators of Relay's transform namespace, an operator or family a file."""
