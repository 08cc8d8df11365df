"""Operators of Relay's nn namespace, an operator or family a file."""
