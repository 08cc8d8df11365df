"""Faults of single quantize points, as a wrong rule would make them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from compiler.ops.rules.dom_scale import DomScale, as_scale
from compiler.quantize.bits.point_bits import own_choice
from compiler.quantize.scales import bind_scales

FAULTS: Final = ("halved", "constant", "4 bits", "coarse", "joined")


@contextmanager
def planted(fault: str, place: int, other: int) -> Iterator[None]:
    """Every module that is built has this fault at one measured point, in binding order, unless the
    configuration chooses something for it."""
    usual = bind_scales._Binder._bind_measured

    def faulty(binder: Any) -> None:
        usual(binder)
        points = [p for p in binder.points if p in binder.bound]
        point = points[place]
        own = own_choice(point, binder.qconfig)
        if own is not None and (own.nbit_input if fault == "4 bits" else own.range):
            return
        bound = binder.bound[points[other] if fault == "joined" else point]
        limit = 2 ** (binder._nbit(points[other] if fault == "joined" else point) - 1) - 1
        low, high = bound.steps or (-limit, limit)
        step = float(bound.scale.values)
        if fault == "4 bits":
            step *= (high - low) / 15
            low, high = (0, 15) if low == 0 else (-8, 7)
        step *= {"halved": 0.5, "constant": 1e6, "coarse": 16.0}.get(fault, 1.0)
        scale = as_scale(step)
        reach = as_scale(step * max(-low, high))
        binder.bound[point] = bind_scales._Bound(reach, DomScale(scale), steps=(low, high))

    with mock.patch.object(bind_scales._Binder, "_bind_measured", faulty):
        yield
