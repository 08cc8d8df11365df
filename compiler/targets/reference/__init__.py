"""The numpy executor, the reference for all other executors."""
