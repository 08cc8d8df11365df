"""Operators of Relay's tensor namespace, an operator or family a file."""
