"""Operators of Relay's annotation namespace, an operator or family a file."""
