"""Tables of functions that read more than 8 bits in the module, and 8 here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.export.to_onnx.integer.rules.table import gathered
from compiler.export.to_onnx.qdq.emitter import FToQdq, QdqEmitter, Quantized, Real, scaled
from compiler.export.to_onnx.qdq.sums import moved_from
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.number_format import Array
from compiler.ops.rules.float_product import EXACT


@FToQdq.register("lookup")
def lookup(step: Step, graph: QdqEmitter) -> Real | None:
    """GatherElements by the 8 bits that the data are or were narrowed to, of 256 entries."""
    found = _narrowed(step, graph)
    table = step.args[1].data
    if (stored := _of_bytes(step, graph)) is not None:
        return stored
    if found is None or table is None or np.abs(table.astype(np.int64)).max() > EXACT:
        return None
    tensor, scale, offset = found
    entries = _entries(step, table, tensor, tensor.scale * scale, offset).astype(np.float32)
    name = gathered(entries, tensor.name, step, graph.words)
    return Real.of(lambda factor, addend: scaled(name, factor, addend, graph))


def _of_bytes(step: Step, graph: QdqEmitter) -> Real | None:
    """A table from 8 bits to 8 bits, of the levels themselves."""
    data = graph.quantized(step.args[0])
    table = step.args[1].data
    if data is None or data.scale != 1 or data.residual or table is None:
        return None
    if not graph.is_held(step.result):
        return None
    made = graph.levels(*graph.words.ends(step.result))
    entries = _entries(step, table, data, 1.0, 0).astype(np.int64) + made.zero_point
    name = gathered(entries.astype(made.dtype), data.name, step, graph.words)
    return graph.of_tensor(replace(made, name=name))


def _entries(step: Step, table: Array, tensor: Quantized, factor: float, offset: int) -> Array:
    """Entries of a table for each level of a tensor, which stands for the integer (level - zero
    point) * factor + offset; that of level 0 first."""
    least, most = integer_range(tensor.dtype)
    integers = (np.arange(least, most + 1) - tensor.zero_point) * factor + offset
    places = np.floor(integers + 0.5).astype(np.int64) - integer_range(step.args[0].type.dtype)[0]
    return np.roll(table[np.clip(places, 0, table.size - 1)], least)


def _narrowed(step: Step, graph: QdqEmitter) -> tuple[Quantized, float, int] | None:
    """The 8 bit tensor of what a table reads, a factor of its integers, and an addend."""
    for value, offset in moved_from(step.args[0]):
        real = graph.real(value)
        if real is not None and real.tensor is not None and real.tensor.residual:
            single = real.scale.size == 1 and real.addend is None
            if single:
                return (real.tensor, float(real.scale.reshape(())), offset)
            return None
    return None
