"""Rules of QDQ graphs, by what they compute; importing this fills the table FToQdq."""

# ruff: noqa: F401  (imported so that they register)

from compiler.export.to_onnx.qdq.rules import elementwise, normalize, product, table, window
