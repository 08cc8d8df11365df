"""onnxruntime as executor of exported modules."""
