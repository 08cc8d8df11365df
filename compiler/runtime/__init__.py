"""Executors, lowered modules and the .qmod file; the package does not import targets."""
