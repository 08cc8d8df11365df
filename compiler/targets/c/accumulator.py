"""Write the running value of a reduction in C, and add one more term to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from compiler.lir.nodes import Compute
from compiler.lir.ranges import Range, ValueRanges, dtype_range, fits, is_whole
from compiler.lir.scalars import Scalar
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import bits_of, c_type, unsigned_of


@dataclass(frozen=True, slots=True)
class Accumulator:
    """The running value of a block's reduction.

    Attributes:
        block: the reduction.
        kind: C type of the running value.
        range: of the finished integer value; None for floats.
        modular: it is an unsigned number that stands for a signed one modulo 2^bits.
    """

    block: Compute
    kind: str
    range: Range | None
    modular: bool

    def joined(self, slot: str, term: str, use: Arithmetic) -> str:
        """Statement: one more term."""
        combiner = self.block.combiner
        dtype = self._dtype
        if combiner in ("sum", "prod"):
            sign = "+" if combiner == "sum" else "*"
            return f"{slot} {sign}= {f'({self.kind})({term})' if self.modular else term};"
        assert combiner is not None
        return f"{slot} = {use(combiner, dtype)}({slot}, {term});"

    def finished(self, slot: str, use: Arithmetic) -> str:
        """Expression: the finished value in the dtype of the accumulator."""
        if self.modular:
            return use.wrap(self._dtype, slot)
        if (self.kind, self._dtype) == ("double", "float32"):
            return f"(float){slot}"
        return slot

    @property
    def _dtype(self) -> str:
        assert self.block.init is not None
        return self.block.init.dtype


def accumulator_of(block: Compute, expr: Scalar, ranges: ValueRanges) -> Accumulator:
    """The accumulator for a block that combines ``expr``."""
    assert block.init is not None
    dtype = block.init.dtype
    if not is_whole(dtype):
        wide = "acc64" in block.hints and dtype == "float32" and block.combiner == "sum"
        return Accumulator(block, "double" if wide else c_type(dtype), None, False)
    start = ranges.of(block.init)
    term = ranges.of(expr)
    if block.combiner in ("max", "min", "argmax", "argmin"):
        either = min(start[0], term[0]), max(start[1], term[1])
        return Accumulator(block, c_type(dtype), either, False)
    if block.combiner == "sum":
        count = math.prod(axis.extent for axis in block.raxes)
        total = (start[0] + count * min(term[0], 0), start[1] + count * max(term[1], 0))
        if fits(total, dtype) and not dtype.startswith("u"):
            return Accumulator(block, f"int{max(bits_of(dtype), 32)}_t", total, False)
    return Accumulator(block, unsigned_of(dtype), dtype_range(dtype), True)
