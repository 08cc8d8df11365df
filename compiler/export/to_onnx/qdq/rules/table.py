"""Tables from 8 bits to 8 bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from compiler.export.to_onnx.integer.rules.table import gathered
from compiler.export.to_onnx.qdq.emitter import FToQdq, QdqEmitter, Real
from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range


@FToQdq.register("lookup")
def lookup(step: Step, graph: QdqEmitter) -> Real | None:
    """GatherElements by the levels of an 8 bit tensor, of 256 entries that are levels too."""
    data = graph.quantized(step.args[0])
    table = step.args[1].data
    if data is None or data.scale != 1 or table is None or not graph.is_held(step.result):
        return None
    made = graph.levels(*graph.words.ends(step.result))
    least, most = integer_range(data.dtype)
    integers = np.arange(least, most + 1) - data.zero_point
    places = integers - integer_range(step.args[0].type.dtype)[0]
    entries = table[np.clip(places, 0, table.size - 1)].astype(np.int64) + made.zero_point
    rolled = np.roll(entries, least).astype(made.dtype)  # the entry of level 0 first
    name = gathered(rolled, data.name, step, graph.words)
    return graph.of_tensor(replace(made, name=name))
