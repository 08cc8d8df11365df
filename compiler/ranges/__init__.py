"""Bounds of integers, of the words that compute them, for any input."""

from compiler.ranges import rules as rules  # fills the table FRange
