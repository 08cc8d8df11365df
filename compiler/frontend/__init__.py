"""Readers of model files: ``from_onnx/`` turns an ONNX file into an IRModule."""
