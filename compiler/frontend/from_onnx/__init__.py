"""Import of ONNX models: ``load.load`` and the converters behind it."""
