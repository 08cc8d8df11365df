"""Writers of ONNX models: ``float_model.to_onnx`` and ``integer.to_integer_onnx``."""
