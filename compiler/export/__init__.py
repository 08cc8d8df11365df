"""Writers of model files: ``to_onnx/`` writes integer, QDQ and float ONNX."""
