"""Cost of a module under a configuration: bytes of weights, and multiplications by their bits.

Weights of fewer bits than their dtype are counted packed: n elements of b bits are n * b / 8 bytes,
rounded up layer by layer; biases and scales, with their signs, are not counted
(``sequential_rounding.py``). The bits of a layer's work are HAWQ-V3's bit operations:

    bit_operations = multiplications * bits of the weight * bits of the data

Source: Yao et al., "HAWQ-V3: dyadic neural network quantization", 2021, section 4.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from compiler.ir.expr import Call, Expr
from compiler.ir.loops import turns_of
from compiler.ir.module import IRModule
from compiler.ir.walk import behind
from compiler.ops.annotation.attach_simulated_quantize import SQ, quantize_kind
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.bits.point_bits import chosen_bits, own_bits
from compiler.quantize.layers import has_weight, named_weights, reads_table, weight_operand

FLOAT_BITS: Final = 32
"""Bits of a layer that stays in float."""
_BYTE: Final = 8


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One convolution or matrix product, or a table that indices pick from.

    Attributes:
        name: as QConfig.layers calls it.
        weight_elements: 0 for a product of two activations, and for a weight that an earlier layer
            reads.
        multiplications: of one run of the module.
        nbit_weight, nbit_input: bits of the weight (or second operand) and of the data; 32 where
            the layer is float. A value that several layers read has the most bits any asks for.
    """

    name: str
    weight_elements: int
    multiplications: int
    nbit_weight: int
    nbit_input: int

    @property
    def weight_bytes(self) -> int:
        """Bytes of the packed weight."""
        return -(-self.weight_elements * self.nbit_weight // 8)

    @property
    def bit_operations(self) -> int:
        """Multiplications times the bits of both operands."""
        return self.multiplications * self.nbit_weight * self.nbit_input


@dataclass(frozen=True, slots=True)
class ModuleCost:
    """The layers in visiting order, and their sums."""

    layers: tuple[LayerCost, ...]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights; the size of biases and scales does not depend on bits."""
        return sum(layer.weight_bytes for layer in self.layers)

    @property
    def bit_operations(self) -> int:
        """Bit operations of one run of the module."""
        return sum(layer.bit_operations for layer in self.layers)

    @property
    def wide_share(self) -> float:
        """The share of the multiplications whose data have more than 8 bits, which every processor
        takes longer for."""
        wide = sum(layer.multiplications for layer in self.layers if layer.nbit_input > _BYTE)
        return wide / max(sum(layer.multiplications for layer in self.layers), 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "weight_bytes": self.weight_bytes,
            "bit_operations": self.bit_operations,
            "layers": [asdict(layer) for layer in self.layers],
        }


def module_cost(marked: IRModule, qconfig: QConfig) -> ModuleCost:
    """The cost of a module that ``mark`` or ``bind_scales`` has made for ``qconfig``; O(edges).

    Raises:
        ConfigValueError: QConfig.layers names a layer that the module does not have.
    """
    main = marked["main"]
    bits_of = chosen_bits(main, qconfig)
    turns = turns_of(main)
    found = []
    counted: set[Expr] = set()
    for call, name in named_weights(main).items():
        if reads_table(call):
            terms = 0
        else:
            terms = FQProductShape.require(call.op)(call).terms
        weight = weight_operand(call)
        nbit_weight = nbit_input = FLOAT_BITS
        if isinstance(weight, Call) and quantize_kind(weight) is not None:
            nbit_input = bits_of.get(call, qconfig.nbit_input)
            is_weight = quantize_kind(weight) == QAnnotateKind.WEIGHT
            own = own_bits(weight, qconfig) if is_weight else nbit_input
            nbit_weight = bits_of.get(weight, own) if is_weight else own
        held = behind(weight, (SQ,))[1]
        counts = has_weight(call) and weight not in counted
        elements = held.tensor_type.num_elements if counts else 0
        counted.add(weight)
        work = call.tensor_type.num_elements * terms * turns[call]
        found.append(LayerCost(name, elements, work, nbit_weight, nbit_input))
    return ModuleCost(tuple(found))
