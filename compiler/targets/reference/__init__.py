"""The numpy executor: slow, obvious, the oracle."""
