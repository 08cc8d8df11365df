"""Scores as sums over samples that merge exactly."""
