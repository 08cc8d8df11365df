"""Bits of each quantize point, where QConfig asks for others than its kind's.

A weight has the bits that QConfig.layers names for the layer that reads it, the most where several
layers read it; so has a table that indices pick from. A value between layers is stored once, so it
has the most bits that any layer among its readers asks for. What no layer reads has the bits of a
reserved name, ``TABLES`` or ``SCORES`` where only tables of functions or a softmax read it and
``OTHERS`` else; the usual bits where several of these read it, since a table has an entry for each
value (``own_points`` divides such points), and where a convolution gives it, since runtimes have no
kernel for one that gives more. What is chosen for a single point goes before all of this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from compiler.ir.expr import Call, Expr, Function, Op, is_op_call
from compiler.ir.ty import bits
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import point_attrs, quantize_kind
from compiler.ops.op_call import is_square
from compiler.ops.rules.dom_scale import keeps_scale
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import OTHERS, POINT_BITS, SCORES, TABLES, LayerChoice
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.layers import choices_of, named_layers, reads_table, weight_operand
from compiler.quantize.weighted_calls import weight_of

Readers = tuple[str, ...]
"""Names of the layers that read a value, sorted; ``TABLES`` stands for functions that become
tables, those of divisors and squares too, ``SCORES`` for a softmax, ``OTHERS`` for everything else
and "" for these two where a convolution gives the value."""

TABULATED: Final = ((TABLES,), (SCORES,))
"""Readers whose quantization point gets separate bounds if it has more bits than dtype_input."""

_USUAL = frozenset(("",))
_OTHER = frozenset((OTHERS,))
_TABLES = frozenset((TABLES,))
_SCORES = frozenset((SCORES,))
_NONE: frozenset[str] = frozenset()
_SLOPES: Final = ("nn.leaky_relu", "nn.prelu")


def point_readers(main: Function) -> dict[Expr, Readers]:
    """Find the readers of each point of kind INPUT, through operators that move or pool it;
    O(edges).

    A point that another one stores anew, with nothing but movement between them, has the other's
    readers too: bits that are lost there do not come back.

    Args:
        main: of an annotated module.
    """
    layers = named_layers(main)
    read: dict[Expr, frozenset[str]] = {main.body: _OTHER}
    stored: dict[Expr, frozenset[str]] = {}
    found: dict[Expr, Readers] = {}
    nodes = nodes_of(main)
    convolved = _convolved(nodes)
    for node in reversed(nodes):
        readers = read.pop(node, _NONE)
        through = stored.pop(node, _NONE)
        kind = quantize_kind(node)
        if kind == QAnnotateKind.INPUT:
            through = readers | through
            if node in convolved and not through.isdisjoint(_OTHER | _SCORES):
                through = through - _OTHER - _SCORES | _USUAL
            found[node] = tuple(sorted(through))
            readers = _NONE
        elif node in layers:
            readers = frozenset((layers[node],))
            through = _NONE
        elif is_op_call(node, "unary_formula") or is_square(node):
            readers = _TABLES
            through = _NONE
        elif is_op_call(node, "nn.softmax"):
            readers = _SCORES
            through = _NONE
        elif kind is not None or (through and not moves(node)):
            readers = readers | _OTHER
            through = _NONE
        # An operator is an operand of all its calls: their readers would gather there.
        calls_op = isinstance(node, Call) and isinstance(node.op, Op)
        for place, operand in enumerate(node.operands()[calls_op:]):
            divides = place == 1 and is_op_call(node, "divide")
            read[operand] = read.get(operand, _NONE) | (_TABLES if divides else readers)
            stored[operand] = stored.get(operand, _NONE) | through
    return found


def _convolved(nodes: Iterable[Expr]) -> set[Expr]:
    """Return the results of convolutions, with biases, limits, slopes and moves behind them."""
    found: set[Expr] = set()
    for node in nodes:
        if is_op_call(node, "nn.conv2d", "nn.conv2d_transpose"):
            found.add(node)
        elif isinstance(node, Call) and not found.isdisjoint(node.args[:1]):
            same = quantize_kind(node) is not None or is_op_call(node, *_SLOPES) or moves(node)
            if same or (is_op_call(node, "add") and weight_of(node) is not None):
                found.add(node)
    return found


def moves(node: Expr) -> bool:
    """True for what hands on the integers of its first operand, or the largest of them."""
    return not isinstance(node, Call) or keeps_scale(node.op)


def input_bits(readers: Collection[str], qconfig: QConfig) -> int:
    """Bits of a point of kind INPUT."""
    choices = qconfig.layers
    layers = [name for name in readers if name not in POINT_BITS]
    others = layers or (readers if len(readers) == 1 else [""])
    asked = [
        (choices[name].nbit_input if name in choices else None) or qconfig.nbit_input
        for name in others
    ]
    return max(asked, default=qconfig.nbit_input)


def chosen_bits(
    main: Function, qconfig: QConfig, read_by: Mapping[Expr, Readers] | None = None
) -> dict[Expr, int]:
    """Bits of the points whose bits differ from their kind's, and of the data of layers; O(edges).

    Args:
        main: of an annotated module.
        read_by: its ``point_readers``, where they are known.
    Raises:
        ConfigValueError: QConfig.layers names a layer that ``main`` does not have, or gives the
            weight of a product more bits than its dtype.
    """
    chosen = choices_of(main, qconfig.layers)
    if not (chosen or qconfig.layers.points) and qconfig.layers.keys().isdisjoint(
        (TABLES, SCORES, OTHERS)
    ):
        return {}
    found: dict[Expr, int] = {}
    layers = {name: call for call, name in named_layers(main).items()}
    for point, readers in (read_by or point_readers(main)).items():
        own = own_choice(point, qconfig)
        nbit = (own and own.nbit_input) or input_bits(readers, qconfig)
        if nbit != qconfig.nbit_input:
            found[point] = nbit
            for layer in (layers[name] for name in readers if name in layers):
                found[layer] = max(nbit, found.get(layer, 0))
    for point in nodes_of(main) if qconfig.layers.points else ():
        own = own_choice(point, qconfig)
        if own is not None and own.nbit_input is not None:
            found.setdefault(point, own.nbit_input)
    weights: dict[Call, int] = {}
    for node, choice in chosen.items():
        weight = weight_operand(node)
        if choice.nbit_weight and quantize_kind(weight) == QAnnotateKind.WEIGHT:
            assert isinstance(weight, Call)
            if choice.nbit_weight > bits(qconfig.dtype_weight) and not reads_table(node):
                raise ConfigValueError(
                    f"QConfig.layers: {choice.nbit_weight} bits of a weight do not fit "
                    f"dtype_weight={qconfig.dtype_weight!r}",
                    where=str(node.span),
                    fix="lower nbit_weight, or take a wider dtype_weight",
                )
            weights[weight] = max(weights.get(weight, 0), choice.nbit_weight)
    found |= {point: nbit for point, nbit in weights.items() if nbit != own_bits(point, qconfig)}
    return found


def own_choice(point: Expr, qconfig: QConfig) -> LayerChoice | None:
    """Return the choice for a single quantization point that ``own_points`` has named."""
    attrs = point_attrs(point)
    if attrs is not None and attrs.name:
        return qconfig.layers.get(attrs.name)
    return None


def own_range(point: Expr, qconfig: QConfig) -> tuple[float, float] | None:
    """Return the range chosen for a quantization point: neither shared, fitted nor widened."""
    own = own_choice(point, qconfig)
    if own is None:
        return None
    return own.range


def own_bits(point: Expr, qconfig: QConfig) -> int:
    """Bits of a quantize point that nothing is chosen for; of any other value those of inputs."""
    attrs = point_attrs(point)
    if attrs is None:
        return qconfig.nbit_input
    return attrs.bits or qconfig.get_nbit_by_kind(attrs.kind)
