"""Settings of a run: fields, sources of their values, and own code that they name."""
