"""Softmax and layer normalisation: no QDQ graph has them in integers, so they are in float."""

from __future__ import annotations

import numpy as np

from compiler.export.to_onnx.qdq.emitter import Floats, FToQdq, QdqEmitter, Real, scaled
from compiler.ir.dataflow import Step


@FToQdq.register("nn.integer_softmax")
def integer_softmax(step: Step, graph: QdqEmitter) -> Real | None:
    """Softmax of the real values, by the scale that the argument carries."""
    real = graph.real(step.args[0])
    quant = step.args[0].quant
    if quant is None or quant.of_tensor is None:
        return None
    if real is None or real.clip is not None:
        real = graph.whole(step.args[0])
    unit = np.asarray(quant.of_tensor[0])
    levels = np.asarray(float(1 << step.attrs.out_bits))

    def write(scale: Floats, addend: Floats | None) -> str:
        name = real.emit(graph, unit)
        name = graph.node("Softmax", [name], axis=step.attrs.axis)
        return scaled(name, scale, addend, graph)

    return Real.of(write).times(levels)


@FToQdq.register("nn.integer_standardize")
def integer_standardize(step: Step, graph: QdqEmitter) -> Real | None:
    """LayerNormalization over the last axis, in units of the integers."""
    attrs = step.attrs
    real = graph.real(step.args[0]) or graph.whole(step.args[0])
    rank = len(step.result.type.shape)
    if attrs.axis % rank != rank - 1 or not attrs.centred:
        return None
    count = step.result.type.concrete_shape[-1]
    epsilon = attrs.epsilon / count**2
    source = real

    def write(scale: Floats, addend: Floats | None) -> str:
        # The variance of wide integers is large, so the unit is made small: about 1.
        unit = 2.0**-10
        per_token = [part for part in (scale, addend) if part is not None and part.ndim > 1]
        gamma = np.broadcast_to(1.0 if per_token else scale, count)
        inputs = [source.emit(graph, np.asarray(unit)), graph.float_constant(gamma)]
        if addend is not None and not per_token:
            inputs.append(graph.float_constant(np.broadcast_to(addend * scale, count)))
        name = graph.node("LayerNormalization", inputs, axis=-1, epsilon=epsilon * unit**2)
        if per_token:
            return scaled(name, scale, addend, graph)
        return name

    return Real.of(write).times(2.0**attrs.out_bits)
