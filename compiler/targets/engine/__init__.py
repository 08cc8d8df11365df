"""The integer engine: a module as a table of steps that fixed kernels run."""
