"""Operators of Relay's image namespace, an operator or family a file."""
