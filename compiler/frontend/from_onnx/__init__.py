"""ONNX to IR: a literal import, the only reader of protobuf."""
