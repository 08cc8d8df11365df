"""Operators of Relay's reduce namespace, an operator or family a file."""
