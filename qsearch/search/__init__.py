"""The search: launch and session run it, sampler proposes, driver runs trials, winner writes."""
