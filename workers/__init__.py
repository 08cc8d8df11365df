"""Calibration and evaluation on many processes: messages, pools, datasets, metrics."""
