"""A router per resource."""
