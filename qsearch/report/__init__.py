"""A finished search as JSON."""
