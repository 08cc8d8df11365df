"""Fully integral modules: the integers of the module, bit for bit."""
