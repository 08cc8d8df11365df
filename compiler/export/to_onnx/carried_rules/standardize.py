"""nn.integer_standardize in double, where its sums, root and quotients are exact.

A whole D below 2^52 has a double root whose floor is isqrt(D): the root of m^2 - 1 lies more than
half a last digit below m. Floors of quotients are exact for dividends below 2^53.
"""

from __future__ import annotations

from compiler.export.to_onnx.carried_emitter import Carried, CarriedEmitter, FToCarried, narrowed
from compiler.ir.dataflow import Step
from compiler.ops.nn.integer_standardize import output_bound


@FToCarried.register("nn.integer_standardize")
def integer_standardize(step: Step, graph: CarriedEmitter) -> Carried:
    """Sums, Sqrt and Floor."""
    attrs = step.attrs
    source = graph.carried(step.args[0])
    rank = len(step.result.type.shape)
    axis = attrs.axis % rank
    count = step.result.type.concrete_shape[axis]
    deviation = count * count * source.magnitude**2 + attrs.epsilon
    turn = attrs.out_bits + attrs.root_bits + 1
    root_bound = 1 << (deviation << (2 * attrs.root_bits)).bit_length() // 2 + 1
    dividend = (2 * count * source.magnitude << turn) + root_bound
    if deviation << (2 * attrs.root_bits) >= 1 << 52 or dividend >= 1 << 53:
        raise graph.refuse(step, "its sums of squares reach 2^52", "normalise narrower integers")

    def number(value: float) -> str:
        return graph.writer.constant(float(value))

    axes = graph.ints([axis])
    x = graph.as_double(source)
    squares = graph.node("ReduceSum", [graph.node("Mul", [x, x]), axes], keepdims=1)
    spread = graph.node("Mul", [squares, number(count)])
    centred = graph.node("Mul", [x, number(count)])
    if attrs.centred:
        total = graph.node("ReduceSum", [x, axes], keepdims=1)
        spread = graph.node("Sub", [spread, graph.node("Mul", [total, total])])
        centred = graph.node("Sub", [centred, total])
    if attrs.epsilon:
        spread = graph.node("Add", [spread, number(attrs.epsilon)])
    squared = graph.node("Mul", [spread, number(4.0**attrs.root_bits)])
    root = graph.node("Max", [graph.node("Floor", [graph.node("Sqrt", [squared])]), number(1)])
    scaled = graph.node("Mul", [centred, number(2.0**turn)])
    quotient = graph.node(
        "Div", [graph.node("Add", [scaled, root]), graph.node("Mul", [root, number(2)])]
    )
    bound = output_bound(count, attrs.out_bits)
    return narrowed(graph.node("Floor", [quotient]), "float64", -bound, bound, graph)
