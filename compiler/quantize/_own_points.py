"""Single quantize points: their names, and what QConfig.layers chooses for them.

    @conv1             the value that ONNX node conv1 makes, or the input "conv1"
    @conv1#1           a further point of it, in visiting order
    @add3:1            the constant that is operand 1 of node add3
    @conv1>sigmoid2    a point of its own for the reader sigmoid2

A name depends on the model and on what is quantized, not on ranges or bits. What has no ONNX node
is called after its operator and its place among the calls.

    before, with "@conv1>sigmoid2" in layers          after
    %1 = simulated_quantize(%0, …)                    %1 = simulated_quantize(%0, …)
    nn.conv2d(%1, w); sigmoid(%1)                     %2 = simulated_quantize(%0, …)
                                                      nn.conv2d(%1, w); sigmoid(%2)

The points are divided behind the statistics, which do not depend on them: both read one tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from compiler.errors import legal_names
from compiler.ir.expr import Call, Expr, Function, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import behind, nodes_of
from compiler.ops.annotation.attach_simulated_quantize import PARAMETERS, SCALAR, quantize_kind
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import POINT, LayerChoice
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import BORDER_OPS, call_places
from compiler.quantize._layers import unmarked
from compiler.quantize.calibration.bind_scales import measured_points, quantize_points
from compiler.span import onnx_nodes

Ranges = Sequence[float] | NDArray[np.float32] | None


def point_names(annotated: IRModule) -> dict[Call, str]:
    """Every quantize point with its name, in binding order; O(nodes).

    Args:
        annotated: result of ``mark``, or of a later step in front of realization.
    """
    main: Function = annotated["main"]
    places = call_places(main)
    calls = reversed(list(places))
    reader = {unmarked(arg): (node, k) for node in calls for k, arg in enumerate(_args(node))}
    seen: Counter[str] = Counter()
    found: dict[Call, str] = {}
    for point in quantize_points(annotated):
        if quantize_kind(point) == QAnnotateKind.WEIGHT:
            user, k = reader.get(point, (point, 0))
            name = f"{_name_of(user, places)}:{k}"
        else:
            name = _name_of(point.args[0], places)
        found[point] = f"{POINT}{name}#{seen[name]}" if seen[name] else POINT + name
        seen[name] += 1
    return found


def _args(node: Expr) -> tuple[Expr, ...]:
    return node.args if isinstance(node, Call) else ()


def _name_of(node: Expr, places: Mapping[Expr, int]) -> str:
    """Of the call behind annotations and tuple fields, or of the input."""
    while node not in places:
        if isinstance(node, Var):
            return node.name_hint
        operands = node.operands()
        calls_op = isinstance(node, Call)
        if len(operands) <= calls_op:
            return "constant"
        node = operands[calls_op]
    assert isinstance(node, Call)
    short = node.op.name.rpartition(".")[2] if isinstance(node.op, Op) else "call"
    return next(iter(onnx_nodes(node.span)), "") or f"{short}_{places[node]}"


def own_points(annotated: IRModule, qconfig: QConfig, ranges: Ranges) -> tuple[IRModule, Ranges]:
    """The module with the points that QConfig.layers names, which carry their names, and the ranges
    of all points; the very same where it names none. O(nodes + edges).

    Args:
        annotated: result of ``mark``.
        ranges: as ``activation_scales`` gives them.
    Raises:
        ConfigValueError: there is no such point, or bits for a constant.
    """
    chosen = qconfig.layers.points
    if not chosen:
        return annotated, ranges
    main: Function = annotated["main"]
    names, places = point_names(annotated), call_places(main)
    legal = set(names.values())
    divided: dict[tuple[Expr, Expr], str] = {}
    for node in places:
        for arg in _args(node):
            point = unmarked(arg)
            if isinstance(point, Call) and quantize_kind(point) == QAnnotateKind.INPUT:
                name = f"{names.get(point, POINT)}>{_name_of(node, places)}"
                legal.add(name)
                if name in chosen:
                    divided[node, arg] = name
    narrow = {names[point] for point in names if quantize_kind(point) == QAnnotateKind.INPUT}
    for name, choice in chosen.items():
        if name not in legal:
            fix = legal_names(name, sorted(legal))
            raise ConfigValueError(f"QConfig.layers: there is no quantize point {name!r}", fix=fix)
        if choice.nbit_input is not None and name not in narrow | set(divided.values()):
            raise ConfigValueError(
                f"QConfig.layers gives nbit_input to {name!r}, which no operator reads as an input",
                fix="give it a range; layers choose the bits of their weights",
            )
    source: dict[Expr, Call] = {}
    made: dict[str, Call] = {}

    def renamed(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(node, Call) and names.get(node) in chosen:
            return _with_name(node, new[node.args[0]], node.args[1:], names[node])
        if not isinstance(node, Call) or not any((node, arg) in divided for arg in node.args):
            return None
        args = []
        for arg in node.args:
            name = divided.get((node, arg))
            point = unmarked(arg)
            if name is None or not isinstance(point, Call):
                args.append(new[arg])
                continue
            if name not in made:
                own = tuple(Var(each, SCALAR) for each in PARAMETERS)
                made[name] = _with_name(point, new[point.args[0]], own, name)
                source[made[name]] = point
            args.append(_marked_alike(arg, made[name]))
        return node.with_fields(args=tuple(args))

    new = rebuilt(nodes_of(main), renamed)
    source |= {new[point]: point for point in measured_points(annotated)}
    params = (*main.params, *(arg for point in made.values() for arg in point.operands()[2:]))
    body = main.with_fields(body=new[main.body], params=params)
    own = infer_module(annotated.with_function("main", body))
    if ranges is None and any(choice.range is not None for choice in chosen.values()):
        ranges = [qconfig.global_scale] * len(measured_points(annotated))
    return own, _own_ranges(own, annotated, source, ranges, chosen)


def _with_name(point: Call, data: Expr, parameters: tuple[Expr, ...], name: str) -> Call:
    assert point.attrs is not None
    attrs = point.attrs.with_values(name=name)
    return point.with_fields(args=(data, *parameters), attrs=attrs)


def _marked_alike(arg: Expr, point: Expr) -> Expr:
    """A point behind the annotations that ``arg`` has."""
    for mark in reversed(behind(arg, BORDER_OPS)[0]):
        point = mark.with_fields(args=(point,))
    return point


def _own_ranges(
    own: IRModule,
    annotated: IRModule,
    source: Mapping[Expr, Call],
    ranges: Ranges,
    chosen: Mapping[str, LayerChoice],
) -> Ranges:
    """Ranges of the points of ``own``, in its binding order; of wrong numbers as they are."""
    before = {point: place for place, point in enumerate(measured_points(annotated))}
    if ranges is None or not before or len(ranges) not in (len(before), 3 * len(before)):
        return ranges
    points = measured_points(own)
    kept = [before[source[point]] for point in points]
    rows = np.asarray(ranges, np.float32).reshape(-1, len(before))[:, kept]
    for place, point in enumerate(points):
        choice = chosen.get(getattr(point.attrs, "name", ""))
        if choice is not None and choice.range is not None:
            low, high = choice.range
            rows[:, place] = (max(-low, high), low, high)[: len(rows)]
    return rows.reshape(-1)
