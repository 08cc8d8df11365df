"""Folder, signatures, progress and trackers of a run."""
