"""Open a model: find it, export it from its framework, cut and import it, size its open axes."""
