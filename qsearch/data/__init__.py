"""Turn files, arrays and Python objects into checked samples of a model."""
