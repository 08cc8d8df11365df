"""Writers of model files: ``to_onnx/`` writes grid, integer, QDQ and float ONNX."""
