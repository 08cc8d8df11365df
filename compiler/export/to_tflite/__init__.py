"""Integer modules as LiteRT files, for TFLM and LiteRT's reference kernels."""
