"""The search loop: space, samplers, driver, finalize."""
