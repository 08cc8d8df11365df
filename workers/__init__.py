"""The compiler's computations spread over processes: calibration and evaluation, with or without Ray."""
