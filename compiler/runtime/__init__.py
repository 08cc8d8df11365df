"""What runs and what is shipped; no knowledge of targets."""
