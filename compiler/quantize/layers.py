"""Layers and their names, the keys of QConfig.layers.

A layer is a convolution or matrix product. Its name is that of the ONNX node it came from; a layer
without such a node is called after its operator and its place among the layers, as "conv2d_3"; a
name that is taken already gets the place behind it. No quantization pass adds, removes or reorders
layers, so a layer has one name from the prepared module to the simulated one.

Names, and bits of their own, have constant tables as well that computed indices pick from:
embeddings. They multiply nothing, so wherever products are meant they are no layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from compiler.errors import legal_names
from compiler.ir.expr import Call, Constant, Expr, Function, Op, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import behind, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import SQ, quantize_kind
from compiler.ops.rules.pass_through import PICKS
from compiler.ops.rules.product_shape import FQProductShape
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import POINT, POINT_BITS, REST, LayerChoice, LayerChoices
from compiler.qtypes.qconfig import QAnnotateKind
from compiler.qtypes.report import BORDER_OPS
from compiler.span import onnx_nodes


def layer_names(mod: IRModule) -> tuple[str, ...]:
    """Names of the layers of ``main`` in visiting order, as QConfig.layers takes them.

    Args:
        mod: result of ``prerequisite_optimize``, or of any quantization pass before realization.
    """
    return tuple(named_weights(mod["main"]).values())


def named_layers(main: Function) -> dict[Call, str]:
    """Every layer of a function with its name, in visiting order; O(nodes)."""
    return _named(
        (
            node
            for node in nodes_of(main)
            if isinstance(node, Call) and FQProductShape.get(node.op) is not None
        ),
        {},
    )


def named_weights(main: Function) -> dict[Call, str]:
    """Every layer, and behind them everything that picks from a table, with names; O(nodes)."""
    layers = named_layers(main)
    return layers | _named((node for node in nodes_of(main) if reads_table(node)), layers)


def _named(nodes: Iterable[Call], others: Mapping[Call, str]) -> dict[Call, str]:
    found: dict[Call, str] = {}
    taken = set(others.values())
    for place, node in enumerate(nodes):
        assert isinstance(node.op, Op)
        short = node.op.name.rpartition(".")[2]
        name = next(iter(onnx_nodes(node.span)), "").lstrip(POINT) or f"{short}_{place}"
        if name in taken:
            name = f"{name}#{place}"
        taken.add(name)
        found[node] = name
    return found


def reads_table(node: Expr) -> TypeGuard[Call]:
    """Return whether computed indices pick from a constant table, with or without its quantize
    point."""
    if not is_op_call(node, *PICKS):
        return False
    table, indices = map(unmarked, node.args)
    table = behind(table, (SQ,))[1]
    known = isinstance(indices, Constant)
    return isinstance(table, Constant) and table.data.dtype.kind == "f" and not known


def tied_tables(main: Function) -> frozenset[Expr]:
    """Constants that computed indices pick from, and that are weights of dense layers."""
    weights = {node.args[1] for node in named_layers(main) if is_op_call(node, "nn.dense")}
    return frozenset(node.args[0] for node in nodes_of(main) if reads_table(node)) & weights


def weight_operand(node: Call) -> Expr:
    """The weight of a layer (the second operand, which may be no constant), or the table."""
    return unmarked(node.args[0 if is_op_call(node, *PICKS) else 1])


def unmarked(expr: Expr) -> Expr:
    """A value without the annotations that hand it on."""
    return behind(expr, BORDER_OPS)[1]


def choices_of(main: Function, choices: LayerChoices) -> dict[Call, LayerChoice]:
    """Collect the choices for the layers of a function that have one.

    Raises:
        ConfigValueError: a name that no layer has; bits for the weight of a layer without one.
    """
    if not choices:
        return {}
    layers = named_weights(main)
    require_known(choices, layers)
    found = {call: choices[name] for call, name in layers.items() if name in choices}
    for call, choice in found.items():
        if choice.nbit_input is not None and is_op_call(call, *PICKS):
            raise ConfigValueError(
                f"QConfig.layers gives nbit_input to {layers[call]!r}, which is a table",
                where="indices pick from it",
                fix="give it nbit_weight",
            )
        if choice.nbit_weight is not None and not has_weight(call):
            raise ConfigValueError(
                f"QConfig.layers gives nbit_weight to {layers[call]!r}, which has no weight",
                where="it multiplies two activations",
                fix="give it nbit_input",
            )
    return found


def require_known(choices: LayerChoices, layers: Mapping[Call, str]) -> None:
    """Refuse names that no layer has; those of single points are looked up in ``own_points``.

    Raises:
        ConfigValueError: it lists the names that are legal, nearest first.
    """
    legal = (*layers.values(), *POINT_BITS, REST)
    for name in choices:
        if name not in legal and not name.startswith(POINT):
            raise ConfigValueError(
                f"QConfig.layers: the model has no layer {name!r}", fix=legal_names(name, legal)
            )


def has_weight(layer: Call) -> bool:
    """True where the weight is a constant, with or without its quantize point."""
    weight = weight_operand(layer)
    return isinstance(weight, Constant) or quantize_kind(weight) == QAnnotateKind.WEIGHT
