"""Run the float network on data, and keep the statistics of quantization points and channels."""
