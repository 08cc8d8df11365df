"""What to do about ONNX operators that the importer has no converter for."""

from __future__ import annotations

from collections.abc import Iterable

from compiler.errors import nearest
from compiler.frontend.from_onnx.opsets import supported_operators, versions_of

_MICROSOFT = "com.microsoft"
# How onnxruntime's own operators on integers are called: QGemm, DynamicQuantizeMatMul, MatMulNBits.
_QUANTIZED = ("Quant", "MatMulInteger", "NBits", "Bnb4")


def instead_of(missing: Iterable[tuple[str, str]]) -> str:
    """Advice for operators given as (domain, name): one sentence per kind of reason."""
    advice: dict[str, None] = {}
    for domain, name in sorted(missing):
        advice[_instead_of_one(domain, name)] = None
    return "; ".join(advice)


def _instead_of_one(domain: str, name: str) -> str:
    if domain == _MICROSOFT and (name.startswith("Q") or any(k in name for k in _QUANTIZED)):
        return (
            "the model is in a quantized format of onnxruntime's own: give the float model, or "
            "quantize it with quantize_static(..., quant_format=QuantFormat.QDQ)"
        )
    versions = versions_of(name, domain)
    if versions:
        return (
            f"{name} is read from opset {versions[0]} on: convert the model with "
            "onnx.version_converter.convert_version(model, 17)"
        )
    close = nearest(name, supported_operators())
    like = f" (nearest names that are read: {', '.join(close)})" if close else ""
    if domain == _MICROSOFT:
        return f"give the model as it was before onnxruntime's optimizer fused {name} in it{like}"
    return (
        f"write {name} with other operators before the export{like}, or define it in a file of "
        "your own (--import, tests/tutorials/operator.md)"
    )
