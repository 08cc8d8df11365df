"""Costs "size" and "bit_operations": bytes of the constants of what ships, and bit operations.

The bytes are those of one form of the module, computed from the module: the member ``tensors.bin``
of its .qmod without the scales of channels, which no integer is computed with, the constants of its
C package, the initializers of its QDQ file, or its LiteRT file.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

from compiler.targets.c.cores import CORES
from workers.metrics.registry import declare_cost

if TYPE_CHECKING:
    from compiler.ir.module import IRModule
    from compiler.quantize import Candidate


def _qmod(module: IRModule, _: Candidate) -> int:
    from compiler.runtime.artifact import constants_of
    from compiler.runtime.packed import member_bytes

    return member_bytes(constants_of(module))


def _c(module: IRModule, _: Candidate) -> int:
    from compiler.pipeline import fuse_for_c
    from compiler.targets.c.constants import c_bytes

    return c_bytes(fuse_for_c(module))


def _qdq(module: IRModule, _: Candidate) -> int:
    from compiler.export.to_onnx.narrow_weights import initializer_bytes
    from compiler.export.to_onnx.qdq.model import to_qdq_onnx

    return initializer_bytes(to_qdq_onnx(module).model)


def _tflite(module: IRModule, _: Candidate) -> int:
    from compiler.pipeline import tflite_file

    return len(tflite_file(module).data)


LITERT: Final[dict[str, Mapping[str, Any]]] = {
    "tflite": {"dtype_input": "int8", "nbit_input": 8},
}
"""Kinds of LiteRT files, and fields of their own."""

WIDE_SHARE: Final = "wide_share"
"""In a score: the share of the multiplications whose data have more than 8 bits."""

QDQ: Final = "qdq"
"""The form of a QDQ file."""

FORMS: Final[dict[str, Callable[[IRModule, Candidate], int]]] = {
    "qmod": _qmod,
    "c": _c,
    QDQ: _qdq,
    **dict.fromkeys(LITERT, _tflite),
    **dict.fromkeys(CORES, _c),
}
"""Bytes of the constants of a candidate's module, by the form, or the core, that holds them."""


DEFAULT_FORM: Final = "qmod"
RESTRICTED: Final = (*LITERT, QDQ)
"""Forms that ask for fields of every module."""


def fields_of(form: str, assume_vnni: bool = False) -> Mapping[str, Any]:
    """Fields of a QConfig that every module has whose file is of this form; most ask for none.

    Args:
        assume_vnni: weights of a QDQ file may have pairs whose products saturate in the 16 bits
            that kernels without VNNI add them in.
    """
    if form in LITERT:
        return {"requantization": "tflite", **LITERT[form]}
    if form == QDQ:
        fields = {**LITERT["tflite"], "layers": {"<sums>": {"nbit_input": 8}}}
        if assume_vnni:
            return fields
        return {**fields, "weight_scale": "pairs"}
    return {}


def size_figures(candidate: Candidate, form: str = DEFAULT_FORM) -> dict[str, float]:
    """Figures of a candidate, as keys of a score."""
    size = FORMS[form](candidate.module, candidate)
    cost = candidate.cost
    return {
        "model_bytes": float(size),
        "bit_operations": float(cost.bit_operations),
        WIDE_SHARE: cost.wide_share,
    }


declare_cost(
    "model_bytes",
    "size",
    title="model size",
    unit="bytes",
    place=10,
    meaning="bytes of the packed constants in the .qmod, or in the form that --for names",
)
declare_cost(
    "bit_operations",
    "bit_operations",
    title="bit operations",
    place=11,
    meaning="multiplications of one run, each times the bits of both factors",
)
