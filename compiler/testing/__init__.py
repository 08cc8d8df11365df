"""Shipped test helpers: tiny models, comparisons, conformance suites."""
