"""The compiler spread over processes: calibration and evaluation, with or without Ray."""
