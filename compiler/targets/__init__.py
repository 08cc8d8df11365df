"""Ways to run a module, a folder each."""
