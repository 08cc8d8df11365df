"""Folder, signatures, progress, webhooks and trackers of a run."""
