"""A module holds lowered functions without knowing their language."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

import compiler
from compiler.errors import ParseError
from compiler.ir.attrs import NO_ATTRS, DictAttrs
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.lowered_function import (
    LoweredFunction,
    lowered_parsers,
    register_lowered_parser,
)
from compiler.ir.module import IRModule
from compiler.ir.text.lexer import Source
from compiler.ir.ty import FuncType, TensorType


@dataclass(frozen=True, slots=True, eq=False)
class Scale(LoweredFunction):
    """Multiplies by an array."""

    factors: Any
    attrs: DictAttrs = NO_ATTRS
    name: str = "m_scale"

    @property
    def func_type(self) -> FuncType:
        ty = TensorType(self.factors.shape, str(self.factors.dtype))
        return FuncType((ty,), ty)

    def with_attr(self, key: str, value: Any) -> "Scale":
        return Scale(self.factors, self.attrs.with_attr(key, value))

    def definition(self, name: str, constant: Callable[[Any], str]) -> str:
        return f"@{name} = scalefn(p0) {{\n  p0 |> * {constant(self.factors)}\n}}"

    def evaluate(self, args: Sequence[Any]) -> list[Any]:
        return [args[0] * self.factors]

    def digest(self) -> bytes:
        return blake2b(self.factors.tobytes(), digest_size=16).digest()


@pytest.fixture(autouse=True)
def _scale_language(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lowered_parsers, "_entries", {})

    @register_lowered_parser("scalefn")
    def parse(source: Source, start: int, end: int, constant: Callable[[int], Any]) -> Scale:
        text = source.text[start:end]
        if "|>" not in text:
            source.error(start, "no epilogue")
        return Scale(constant(int(text.split("][")[1].split("]")[0])))


def _module(factors: Any) -> IRModule:
    mod = compiler.parse(
        '#[version = "0.0.5"]\n'
        "def @main(%x: Tensor[(3), float32], %y: Tensor[(3), float32]) { add(%x, %y) }"
    )
    return infer_module(mod.with_function("m_scale", Scale(factors)))


def test_text_with_a_lowered_function_reads_back_the_same() -> None:
    mod = _module(np.array([1, 2, 3], "float32"))
    shown = compiler.text(mod)
    assert "\n  p0 |> * meta[relay.Constant][0]\n}\n" in shown
    again = compiler.parse(shown)
    assert compiler.structural_equal(again, mod)
    assert compiler.text(again, show_types=False) == compiler.text(mod, show_types=False)


def test_lowered_functions_are_compared_by_content() -> None:
    one, same = (_module(np.array([1, 2, 3], "float32")) for _ in range(2))
    other = _module(np.array([1, 2, 4], "float32"))
    assert compiler.structural_equal(one, same)
    assert not compiler.structural_equal(one, other)
    assert compiler.structural_hash(one) == compiler.structural_hash(same)
    assert compiler.structural_hash(one) != compiler.structural_hash(other)


def test_the_name_of_a_lowered_function_carries_its_type() -> None:
    mod = _module(np.array([1, 2, 3], "float32"))
    vector = TensorType((3,), "float32")
    assert mod.get_global_var("m_scale").checked_type == FuncType((vector,), vector)


def test_a_mistake_inside_points_into_the_whole_text() -> None:
    text = '#[version = "0.0.5"]\ndef @main() { 1f }\n\n@k = scalefn(p0) {\n  p0\n}\n'
    with pytest.raises(ParseError, match="4:6: no epilogue"):
        compiler.parse(text)


def test_an_unknown_language_is_named() -> None:
    with pytest.raises(ParseError, match="scalefn") as caught:
        compiler.parse('#[version = "0.0.5"]\n@k = scalfn(p0) {\n}\n')
    assert caught.value.fix == "did you mean scalefn?"
