"""Layers and their names, the keys of QConfig.layers.

A layer is a convolution or matrix product. Its name is that of the ONNX node it came from; a layer
without such a node is called after its operator and its place among the layers, as "conv2d_3"; a
name that is taken already gets the place behind it. No quantization pass adds, removes or reorders
layers, so a layer has one name from the prepared module to the simulated one.
"""

from __future__ import annotations

from collections.abc import Mapping

from compiler.errors import legal_names
from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import quantize_kind
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import POINT_BITS, LayerChoice, LayerChoices
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.span import onnx_nodes


def layer_names(mod: IRModule) -> tuple[str, ...]:
    """Names of the layers of ``main`` in visiting order, as QConfig.layers takes them.

    Args:
        mod: result of ``prerequisite_optimize``, or of any quantization pass before realization.
    """
    return tuple(named_layers(mod["main"]).values())


def named_layers(main: Function) -> dict[Expr, str]:
    """Every layer of a function with its name, in visiting order; O(nodes)."""
    found: dict[Expr, str] = {}
    taken: set[str] = set()
    for node in nodes_of(main):
        if not isinstance(node, Call) or FQProductShape.get(node.op) is None:
            continue
        place = len(found)
        name = next(iter(onnx_nodes(node.span)), "") or f"{_short(node)}_{place}"
        if name in taken:
            name = f"{name}#{place}"
        taken.add(name)
        found[node] = name
    return found


def choices_of(main: Function, choices: LayerChoices) -> dict[Expr, LayerChoice]:
    """What is chosen for each layer of a function that something is chosen for.

    Raises:
        ConfigValueError: a name that no layer has; bits for the weight of a layer without one.
    """
    if not choices:
        return {}
    layers = named_layers(main)
    require_known(choices, layers)
    found = {call: choices[name] for call, name in layers.items() if name in choices}
    for call, choice in found.items():
        if choice.nbit_weight is not None and not has_weight(call):
            raise ConfigValueError(
                f"QConfig.layers gives nbit_weight to {layers[call]!r}, which has no weight",
                where="it multiplies two activations",
                fix="give it nbit_input",
            )
    return found


def begin_report(run: QuantizeContext, main: Function) -> None:
    """Start the report of a run over this float graph.

    Raises:
        ConfigValueError: QConfig.layers names a layer that it does not have.
    """
    layers = named_layers(main)
    require_known(run.qconfig.layers, layers)
    run.report.begin(main, layers)


def require_known(choices: LayerChoices, layers: Mapping[Expr, str]) -> None:
    """Refuse names that no layer has.

    Raises:
        ConfigValueError: it lists the names that are legal, nearest first.
    """
    legal = (*layers.values(), *POINT_BITS)
    for name in choices:
        if name not in legal:
            raise ConfigValueError(
                f"QConfig.layers: the model has no layer {name!r}", fix=legal_names(name, legal)
            )


def has_weight(layer: Expr) -> bool:
    """True where the second operand is a constant, with or without its quantize point."""
    assert isinstance(layer, Call)
    weight = layer.args[1]
    while is_op_call(weight, "annotation.cast_hint", "annotation.stop_fusion"):
        assert isinstance(weight, Call)
        weight = weight.args[0]
    return isinstance(weight, Constant) or quantize_kind(weight) == QAnnotateKind.WEIGHT


def _short(call: Call) -> str:
    assert isinstance(call.op, Op)
    return call.op.name.rpartition(".")[2]
