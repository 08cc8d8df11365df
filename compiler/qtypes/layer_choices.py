"""LayerChoices, what a QConfig chooses for single layers: a frozen mapping of names to choices.

    {"conv_0": {"nbit_weight": 6}, "gemm_0": {"nbit_weight": 4, "nbit_input": 16}}

A layer is a convolution or matrix product; ``compiler.quantize.layer_names`` lists the names that a
module has. What a choice leaves open is as the QConfig has it for all layers. A constant table that
computed indices pick from (an embedding) has a name as well, and ``nbit_weight`` up to 16. Four
reserved names stand for points that no single layer reads, and take ``nbit_input`` only:

    <sums>      what adds of two computed values join, and their sums, until a layer reads them: 16;
                8 round what they join before it is added, as files of 8 bits do
    <tables>    values that only tables of activation functions (hard-swish, GELU) read: up to 12;
                a table has two to the power of so many entries
    <scores>    values that only a softmax reads: up to 12
    <others>    values that neither layers nor a softmax read and no convolution gives, such as what
                a norm reads: up to 15; products of two of them fit int32

``<rest>`` takes ``float`` only: what a quantized model leaves in float between its own points.
A name that begins with "@" is that of a single quantize point (``compiler.quantize.point_names``),
and takes ``nbit_input`` and ``range``; "@point>reader" gives one reader a point of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from compiler.errors import legal_names
from compiler.qtypes.errors import ConfigValueError, refused

SUMS: Final = "<sums>"
TABLES: Final = "<tables>"
OTHERS: Final = "<others>"
SCORES: Final = "<scores>"
REST: Final = "<rest>"
POINT_BITS: Final = {
    SUMS: (8, 16),
    TABLES: tuple(range(8, 13)),
    SCORES: tuple(range(8, 13)),
    OTHERS: tuple(range(8, 16)),
}
"""The bits that reserved names may have."""
POINT: Final = "@"
"""First character of the name of a single quantization point."""


Real = float
"""The type, where ``LayerChoice.float`` hides its name."""


@dataclass(frozen=True, slots=True)
class LayerChoice:
    """Settings that differ at one layer.

    Attributes:
        nbit_weight: bits of its weight; None for the bits of the QConfig.
        nbit_input: bits of the values that it reads; None for the bits of the QConfig.
        float: leave the layer in float.
        range: of a single point, lower and upper end in the units of its tensor, 0 among them;
            None for the range that calibration chooses.
    """

    nbit_weight: int | None = None
    nbit_input: int | None = None
    float: bool = False
    range: tuple[Real, Real] | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that say something, as plain JSON values."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["range"] = None if self.range is None else list(self.range)
        return {name: value for name, value in found.items() if value not in (None, False)}


class LayerChoices(Mapping[str, LayerChoice]):
    """Choices by layer name, in the order of the names; equals the mapping of plain dicts too."""

    __slots__ = ("_items",)

    def __init__(self, choices: Mapping[str, LayerChoice] | None = None) -> None:
        kept = {name: choice for name, choice in (choices or {}).items() if choice.to_dict()}
        self._items: dict[str, LayerChoice] = dict(sorted(kept.items()))

    def __getitem__(self, name: str) -> LayerChoice:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LayerChoices):
            return self._items == other._items
        if isinstance(other, Mapping):
            return self.to_dict() == other
        return NotImplemented

    def __repr__(self) -> str:
        return repr(self.to_dict())

    def __reduce__(self) -> tuple[type[LayerChoices], tuple[dict[str, LayerChoice]]]:
        return LayerChoices, (self._items,)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Plain JSON values."""
        return {name: choice.to_dict() for name, choice in self._items.items()}

    @property
    def input_bits(self) -> dict[str, int]:
        """Bits of what each layer reads, for the layers that ask."""
        asked = {name: choice.nbit_input for name, choice in self._items.items()}
        return {name: bits for name, bits in asked.items() if bits is not None}

    @property
    def points(self) -> dict[str, LayerChoice]:
        """The choices for single quantization points."""
        return {name: choice for name, choice in self._items.items() if name.startswith(POINT)}

    @property
    def wide_sums(self) -> bool:
        """Return whether residual sums have 16 bits."""
        return self.input_bits.get(SUMS) == POINT_BITS[SUMS][-1]

    @property
    def narrow_sums(self) -> bool:
        """Tell whether what residual sums join is rounded to 8 bits first."""
        return self.input_bits.get(SUMS) == POINT_BITS[SUMS][0]

    def with_sums(self, wide: bool) -> LayerChoices:
        """The same for layers, with wide residual sums, or with what they join as it was."""
        if not wide and self.narrow_sums:
            return self
        if wide:
            sums = {SUMS: LayerChoice(nbit_input=POINT_BITS[SUMS][-1])}
        else:
            sums = {}
        others = {name: choice for name, choice in self._items.items() if name != SUMS}
        return LayerChoices(others | sums)

    @property
    def most_input_bits(self) -> int:
        """The most bits that any layer or table asks of what it reads; 0 where none asks."""
        asked = (bits for name, bits in self.input_bits.items() if name != SUMS)
        return max(asked, default=0)

    @property
    def float_layers(self) -> tuple[str, ...]:
        """Names of the layers that are left in float."""
        return tuple(name for name, choice in self._items.items() if choice.float)


WIDE_BITS: Final = 16
"""Bits of values that 8 bits are too few for, and at most of a table that indices pick from,
whatever weights are stored as."""
WEIGHT_BITS = (2, 16)
_LAYER_BITS: Final = tuple(range(WEIGHT_BITS[0], WEIGHT_BITS[1] + 1))


def layer_choices(name: str, value: Any) -> LayerChoices:
    """The value of the QConfig field ``name`` in its canonical form; None chooses nothing.

    Raises:
        ConfigValueError: no mapping, an unknown choice, or a value that it may not take.
    """
    if value is None:
        return LayerChoices()
    if isinstance(value, LayerChoices):
        return value
    if not isinstance(value, Mapping):
        raise refused(name, value, 'a mapping such as {"conv_0": {"nbit_weight": 4}}')
    return LayerChoices({str(layer): _choice(name, layer, one) for layer, one in value.items()})


def _choice(name: str, layer: Any, value: Any) -> LayerChoice:
    if isinstance(value, LayerChoice):
        return value
    place = f"{name}[{layer!r}]"
    if not isinstance(layer, str) or not isinstance(value, Mapping):
        raise refused(place, value, 'choices by name, such as {"nbit_weight": 4}')
    single = layer.startswith(POINT)
    legal = ["nbit_weight", "nbit_input", "float"]
    if layer in POINT_BITS or single:
        legal = ["nbit_input", "range"][: 1 + single]
    legal = ["float"] if layer == REST else legal
    for key in value:
        if key not in legal:
            raise ConfigValueError(
                f"QConfig.{place} has no choice {key!r}", fix=legal_names(str(key), legal)
            )
    left_float = value.get("float", False)
    if not isinstance(left_float, bool):
        raise refused(f"{place}['float']", left_float, "True or False")
    input_bits = POINT_BITS.get(layer, _LAYER_BITS)
    choice = LayerChoice(
        _bits(f"{place}['nbit_weight']", value.get("nbit_weight"), _LAYER_BITS),
        _bits(f"{place}['nbit_input']", value.get("nbit_input"), input_bits),
        left_float,
        _range(f"{place}['range']", value.get("range")),
    )
    if choice.float and (choice.nbit_weight or choice.nbit_input):
        raise ConfigValueError(
            f"QConfig.{place} gives bits to a layer that it leaves in float",
            fix="drop the bits, or float",
        )
    return choice


def _bits(place: str, value: Any, legal: tuple[int, ...]) -> int | None:
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and value in legal:
        return value
    ends = f"{legal[0]} or {legal[-1]}"
    if len(legal) == 2:
        told = ends
    else:
        told = f"an integer from {legal[0]} to {legal[-1]}"
    raise refused(place, value, told)


_LARGEST: Final = 1e37
"""The largest magnitude that an end of a range may have."""


def _range(place: str, value: Any) -> tuple[float, float] | None:
    if value is None:
        return None
    ends = list(value) if isinstance(value, (list, tuple)) else []
    # Scales are float32; a comparison with an integer of any size is exact.
    if len(ends) == 2 and all(isinstance(e, (int, float)) and abs(e) <= _LARGEST for e in ends):
        low, high = map(float, ends)
        if low <= 0 <= high and low < high:
            return low, high
    raise refused(place, value, "a lower and an upper end with 0 among them, such as [-1.5, 2.0]")
