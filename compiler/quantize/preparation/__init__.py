"""Rewrite the float module into the form that partition and annotate expect."""
