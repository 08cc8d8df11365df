"""Writers of ONNX models: ``float_model.to_onnx`` and ``grid.to_grid_onnx``."""
