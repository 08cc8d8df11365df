"""Cut the conversions between real values and integers off the quantized function."""
