"""annotation.cast_hint(dtype): the identity; asks that the value cross a border in ``dtype``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Type
from compiler.ir.type_relation import identity_rel
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


@dataclass(frozen=True, eq=False)
class CastHintAttrs(OpAttrs):
    """The storage dtype the quantizer should choose."""

    type_key: ClassVar[str] = "CastHintAttrs"
    dtype: str


cast_hint = register_op(
    "annotation.cast_hint",
    arg_names=("data",),
    attrs_type=CastHintAttrs,
    rel=identity_rel,
    pattern=OpPattern.OPAQUE,
)


@FNumpyCompute.register(cast_hint)
def cast_hint_numpy(attrs: CastHintAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """The value itself: a hint changes nothing."""
    return list(args)
