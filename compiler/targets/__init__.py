"""Ways to run a module: ``reference`` (numpy), ``engine`` (kernels), ``c``, ``ort`` (ONNX)."""
