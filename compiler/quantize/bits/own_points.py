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

A function that varies in a small part of a range, such as a tanh beside a product that reads cells
of an LSTM, gets a point of its own that ends there, named or not; so does a table of more bits than
what else reads the point.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import legal_names
from compiler.ir.analysis import free_vars
from compiler.ir.expr import Call, Expr, Function, Op, Var, is_op_call
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.walk import behind, mentions, nodes_of, with_calls
from compiler.ops.annotation.attach_simulated_quantize import (
    PARAMETERS,
    SCALAR,
    point_attrs,
    quantize_kind,
)
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.layer_choices import POINT, TABLES
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.qtypes.report import BORDER_OPS, call_places
from compiler.quantize.bits.point_bits import input_bits
from compiler.quantize.calibration.profile_function import Bounds, varying_range
from compiler.quantize.layers import unmarked
from compiler.quantize.scales.bind_scales import measured_points, quantize_points
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
        own = getattr(point.attrs, "name", "")
        if own in ("", found[point]):
            seen[name] += 1
        else:  # one for a single reader, divided from the point of the others
            found[point] = own
    return found


def _args(node: Expr) -> tuple[Expr, ...]:
    if isinstance(node, Call):
        return node.args
    return ()


def _name_of(node: Expr, places: Mapping[Expr, int]) -> str:
    """Return the name of the call behind annotations and tuple fields, or of the input."""
    while node not in places:
        if isinstance(node, Var):
            return node.name_hint
        operands = node.operands()
        calls_op = isinstance(node, Call)
        if len(operands) <= calls_op:
            return "constant"
        node = operands[calls_op]
    assert isinstance(node, Call)
    if isinstance(node.op, Op):
        short = node.op.name.rpartition(".")[2]
    else:
        short = "call"
    return next(iter(onnx_nodes(node.span)), "") or f"{short}_{places[node]}"


def takes_bits(point: Expr) -> bool:
    """Return whether a point may have chosen bits: it is stored, narrow or in 16 bits."""
    attrs = point_attrs(point)
    return attrs is not None and (attrs.kind == QAnnotateKind.INPUT or attrs.bits is not None)


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
    narrower = _own_parts(annotated, qconfig, ranges)
    if not chosen and not narrower:
        return annotated, ranges
    main: Function = annotated["main"]
    names = point_names(annotated)
    places = call_places(main)
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
    parts: dict[tuple[Call, Bounds], str] = {}
    for (node, arg), held in narrower.items():
        name = f"{names[held[0]]}>{_name_of(node, places)}"
        divided.setdefault((node, arg), parts.setdefault(held, name))
    free = {*divided.values(), *(names[point] for point in names if takes_bits(point))}
    for name, choice in chosen.items():
        if name not in legal:
            fix = legal_names(name, sorted(legal))
            raise ConfigValueError(f"QConfig.layers: there is no quantize point {name!r}", fix=fix)
        if choice.nbit_input is not None and name not in free:
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
            args.append(with_calls(made[name], behind(arg, BORDER_OPS)[0]))
        return node.with_fields(args=tuple(args))

    new = rebuilt(nodes_of(main), renamed)
    source |= {new[point]: point for point in measured_points(annotated)}
    of_points = {arg for point in quantize_points(annotated) for arg in point.args[1:]}
    params = tuple(param for param in main.params if param not in of_points)
    bare = main.with_fields(body=new[main.body], params=params)
    whole = bare.with_fields(params=(*params, *free_vars(bare)))
    own = infer_module(annotated.with_function("main", whole))
    if ranges is None and any(choice.range is not None for choice in chosen.values()):
        ranges = [qconfig.global_scale] * len(measured_points(annotated))
    ends: dict[str, Bounds] = {name: part for (_, part), name in parts.items()}
    ends |= {name: one.range for name, one in chosen.items() if one.range is not None}
    return own, _own_ranges(own, annotated, source, ranges, ends)


_SMALL: Final = 1 / 2
"""Fraction of the range of a point: a reader that varies in less of it gains a bit."""


def _own_parts(
    annotated: IRModule, qconfig: QConfig, ranges: Ranges
) -> dict[tuple[Expr, Expr], tuple[Call, Bounds]]:
    """Readers of points that others read too, which vary in a small part of the range or whose
    tables have more bits; the operand → the point and the part. O(edges)."""
    main: Function = annotated["main"]
    points = measured_points(annotated)
    rows = _rows(ranges, len(points))
    if rows is None or qconfig.form.byte_tables or not mentions(main, ("unary_formula", "clip")):
        return {}
    read: dict[Expr, dict[Expr, Expr]] = {}
    for node in nodes_of(main):
        if not is_op_call(node, *BORDER_OPS):
            for arg in node.operands():
                read.setdefault(unmarked(arg), {})[node] = arg
    wide = input_bits((TABLES,), qconfig) > qconfig.nbit_input
    found: dict[tuple[Expr, Expr], tuple[Call, Bounds]] = {}
    for point, row in zip(points, rows.T.tolist(), strict=True):
        readers = read.get(point, {})
        tables = [node for node in readers if is_op_call(node, "unary_formula")]
        if len(readers) < 2 or quantize_kind(point) != QAnnotateKind.INPUT:
            continue
        low, high = row[1:] or (-row[0], row[0])
        finer = tables if wide and len(tables) < len(readers) else ()
        for node, arg in readers.items():
            least, most = varying_range(node)
            part = max(low, least), min(high, most)
            if node in finer or part[1] - part[0] <= _SMALL * (high - low):
                found[node, arg] = point, part
    return found


def _with_name(point: Call, data: Expr, parameters: tuple[Expr, ...], name: str) -> Call:
    assert point.attrs is not None
    attrs = point.attrs.with_values(name=name)
    return point.with_fields(args=(data, *parameters), attrs=attrs)


def _rows(ranges: Ranges, count: int) -> NDArray[np.float32] | None:
    """Ranges with a column for each point; None where there are none, or wrong numbers of them."""
    if ranges is None or not count or len(ranges) not in (count, 3 * count):
        return None
    return np.asarray(ranges, np.float32).reshape(-1, count)


def _own_ranges(
    own: IRModule,
    annotated: IRModule,
    source: Mapping[Expr, Call],
    ranges: Ranges,
    ends: Mapping[str, Bounds],
) -> Ranges:
    """Ranges of the points of ``own``, in its binding order; of wrong numbers as they are."""
    before = {point: place for place, point in enumerate(measured_points(annotated))}
    known = _rows(ranges, len(before))
    if known is None:
        return ranges
    points = measured_points(own)
    rows = known[:, [before[source[point]] for point in points]]
    for place, point in enumerate(points):
        found = ends.get(getattr(point.attrs, "name", ""))
        if found is not None:
            low, high = found
            rows[:, place] = (max(-low, high), low, high)[: len(rows)]
    return rows.reshape(-1)
