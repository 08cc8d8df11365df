"""IR to ONNX: float, simulated and integer-grid models; the only writer of protobuf."""
