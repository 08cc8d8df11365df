"""Points that only moves, max pools and concatenations divide take one range.

    %1 = simulated_quantize(%0)       range 2.0  →  2.6
    %2 = nn.max_pool2d(%1)
    %3 = concatenate((%2, %x))
    %4 = simulated_quantize(%3)       range 2.6
    nn.conv2d(%4, %w)

With two ranges the values are rounded twice, and the errors of both roundings add up. With the
range of the second point the first rounding is the only one, and a concatenation has no fields to
bring to one scale. If something else reads the first point too, it takes the other range only where
that costs this reader no more than it saves the other: steps at most sqrt(2) apart. Fitting
looks through moves and pools itself, so it is given concatenations only. Relay has nothing of it:
without ``integer_tables``, which its default QConfig lacks, each point keeps its range.
Source: Jacob et al., "Quantization and Training of Neural Networks for Efficient
Integer-Arithmetic-Only Inference", 2018, appendix A.3 (concatenation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Expr, Function, Op, Tuple
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.ops.annotation.attach_simulated_quantize import point_attrs
from compiler.ops.rules.dom_scale import keeps_scale
from compiler.ops.rules.never_negative import FNeverNegative, all_positive, first_positive
from compiler.qtypes.qconfig import QAnnotateKind, QConfig
from compiler.quantize.bits.point_bits import chosen_bits, own_range
from compiler.quantize.scales.bind_scales import measured_points

_NEAR: Final = 2**0.5

Ranges = NDArray[np.float32]


def shared_ranges(
    annotated: IRModule,
    qconfig: QConfig,
    ranges: Sequence[float] | Ranges | None,
    fitted: bool = False,
) -> tuple[Ranges | None, Mapping[int, int]]:
    """The ranges with one range where several would round the same values, O(nodes + edges).

    Args:
        annotated: result of QuantizeAnnotate.
        ranges: as ``activation_scales`` gives them; None stays None.
        fitted: whether ranges are fitted afterwards.
    Returns:
        the ranges, and points that have the range of a point behind a concatenation: place → place
        of the other.
    """
    if ranges is None:
        return None, {}
    main: Function = annotated["main"]
    points = measured_points(annotated)
    known = np.array(ranges, np.float32)
    if not qconfig.integer_tables or not points or known.size not in (len(points), 3 * len(points)):
        return known, {}
    rows = known.reshape(-1, len(points))
    bits = chosen_bits(main, qconfig)
    places = {point: place for place, point in enumerate(points) if _narrow(point, qconfig)}

    def width(place: int) -> float:
        return float(rows[2, place] - rows[1, place] if len(rows) == 3 else rows[0, place])

    def shares(place: int, readers: _Readers) -> bool:
        other = readers.place
        if other is None or bits.get(points[place]) != bits.get(points[other]):
            return False
        if fitted and not readers.joined:
            return False
        if len(rows) == 3 and (rows[1, place] == 0) != (rows[1, other] == 0):
            return False
        own = width(place)
        wanted = width(other)
        return not readers.others or (own <= wanted * _NEAR and wanted <= own * _NEAR)

    joined: dict[int, int] = {}
    read: dict[Expr, _Readers] = {main.body: _OTHERS}
    for node in reversed(nodes_of(main)):
        readers = read.pop(node, _Readers())
        if node in places:
            place = places[node]
            if readers.place is not None and shares(place, readers):
                rows[:, place] = rows[:, readers.place]
                if readers.joined:
                    joined[place] = joined.get(readers.place, readers.place)
            readers = _Readers(place)
        elif isinstance(node, Tuple):
            readers = replace(readers, joined=True)
        elif not _hands_on(node):
            readers = _OTHERS
        # An operator is an operand of all its calls: their readers would gather there.
        calls_op = isinstance(node, Call) and isinstance(node.op, Op)
        for operand in node.operands()[calls_op:]:
            before = read.get(operand, readers)
            known_places = [p for p in (before.place, readers.place) if p is not None]
            read[operand] = _Readers(
                max(known_places, key=width, default=None),
                before.others or readers.others,
                before.joined or readers.joined,
            )
    return rows.reshape(-1), joined


@dataclass(frozen=True, slots=True)
class _Readers:
    """Readers of a value, through operators that hand on its integers.

    Attributes:
        place: of the point with the widest range.
        others: whether there are readers that are no points.
        joined: whether a concatenation lies between.
    """

    place: int | None = None
    others: bool = False
    joined: bool = False


_OTHERS: Final = _Readers(others=True)


def _narrow(point: Expr, qconfig: QConfig) -> bool:
    attrs = point_attrs(point)
    narrow = attrs is not None and attrs.kind == QAnnotateKind.INPUT and attrs.bits is None
    return narrow and own_range(point, qconfig) is None


def _hands_on(node: Expr) -> bool:
    """Return whether the integers of a result are among those of the operands, with the same
    signs."""
    if not isinstance(node, Call) or FNeverNegative.get(node.op) not in (
        all_positive,
        first_positive,
    ):
        return False
    return keeps_scale(node.op) or isinstance(node.args[0], Tuple)
