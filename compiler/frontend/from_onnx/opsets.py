"""The importer's table: ONNX operator and the opset its meaning holds from, to a converter."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from compiler.errors import CompilerError, nearest
from compiler.frontend.from_onnx.node import OnnxNode
from compiler.frontend.from_onnx.signature import Converted, by_signature

Converter = Callable[[OnnxNode], Converted]
"""``converter(node)`` gives one expression, or one per output of the node."""
_Kind = TypeVar("_Kind", bound=Callable[..., Converted])

# Converters say from which opset on they hold, so an old meaning is never taken for a newer one.
OLDEST_OPSET = 1
NEWEST_OPSET = 28
STANDARD_DOMAINS = ("", "ai.onnx")

_CONVERTERS: dict[tuple[str, str], list[tuple[int, Converter]]] = {}
_KEPT: set[tuple[str, str]] = set()


def from_onnx(
    op_type: str, since: int = 1, domain: str = "", *, folds: bool = True
) -> Callable[[_Kind], _Kind]:
    """Decorator: converts ``op_type`` from opset ``since`` up to the next registration; the
    signature says what is read of a node (``signature.py``).

    Args:
        folds: the importer computes the result where all inputs are known; False keeps the node,
            because passes look for it.

    Raises:
        CompilerError: the operator has a converter for this opset already.
    """

    def add(converter: _Kind) -> _Kind:
        if not folds:
            _KEPT.add((plain_domain(domain), op_type))
        versions = _CONVERTERS.setdefault((plain_domain(domain), op_type), [])
        if any(since == held for held, _ in versions):
            raise CompilerError(f"ONNX {op_type} has two converters since opset {since}")
        versions.append((since, by_signature(converter)))
        versions.sort(key=lambda version: version[0])
        return converter

    return add


def find_converter(op_type: str, opset: int, domain: str = "") -> Converter | None:
    """The converter with the largest ``since`` that is not above ``opset``, or None."""
    versions = _CONVERTERS.get((plain_domain(domain), op_type), [])
    return next((found for since, found in reversed(versions) if since <= opset), None)


def is_kept(op_type: str, domain: str = "") -> bool:
    """True for operators that stay in the graph even where their inputs are known."""
    return (plain_domain(domain), op_type) in _KEPT


def versions_of(op_type: str, domain: str = "") -> tuple[int, ...]:
    """Opsets at which the operator's converters begin, ascending; () when there are none."""
    return tuple(since for since, _ in _CONVERTERS.get((plain_domain(domain), op_type), []))


def supported_operators() -> list[str]:
    """Every operator of the table, by name; other domains as ``domain::name``."""
    return sorted(f"{domain}::{name}" if domain else name for domain, name in _CONVERTERS)


def plain_domain(domain: str) -> str:
    """A domain, "" for every name of the standard one."""
    if domain in STANDARD_DOMAINS:
        return ""
    return domain


# Operators without a converter -------------------------------------------------------------------

_MICROSOFT = "com.microsoft"
# How onnxruntime's own operators on integers are called: QGemm, DynamicQuantizeMatMul, MatMulBnb4.
_QUANTIZED = ("Quant", "MatMulInteger", "Bnb4")

_SIZED_BY_DATA = ("NonMaxSuppression", "Unique")
_COMPARISONS = ("TreeEnsemble", "SVM")


def sized_by_data(name: str) -> str:
    """Advice for an operator that gives as many elements as its data say."""
    return (
        f"end the model in front of {name}, whose result has a size that depends on the data "
        "(onnx.utils.extract_model cuts it), and run the rest on the outputs"
    )


def instead_of(missing: Iterable[tuple[str, str]]) -> str:
    """Advice for operators given as (domain, name): one sentence per kind of reason."""
    return "; ".join(dict.fromkeys(_instead_of_one(*one) for one in sorted(missing)))


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
    if not domain and name in _SIZED_BY_DATA:
        return sized_by_data(name)
    if domain == "ai.onnx.ml" and name.startswith(_COMPARISONS):
        return f"{name} has no integer form: keep a file that is nothing else as it is"
    close = nearest(name, supported_operators())
    if close:
        like = f" (nearest names that are read: {', '.join(close)})"
    else:
        like = ""
    if domain == _MICROSOFT:
        return f"give the model as it was before onnxruntime's optimizer fused {name} in it{like}"
    return (
        f"write {name} with other operators before the export{like}, or define it in a file of "
        "your own (--import, tests/tutorials/operator.md)"
    )
