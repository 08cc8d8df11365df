"""Writers of ONNX models: ``float/``, ``integer/`` (the same bits) and ``qdq/`` (8 bit kernels)."""
