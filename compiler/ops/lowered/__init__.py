"""Operators of Relay's lowered namespace, an operator or family a file."""
