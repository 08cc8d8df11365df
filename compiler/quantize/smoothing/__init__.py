"""Move the spread between channels from activations into weights."""
