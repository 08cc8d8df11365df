"""Random requantizations among what passes draw into them, for ``inner_limits.search``."""

from __future__ import annotations

from typing import Any

from compiler import relay
from compiler.ops.op_call import op_call
from compiler.ops.qnn.requantize import ROUNDINGS
from tests.compiler.inner_limits import DTYPES, POWER_OF_TWO, Growing, ends, limited

op = relay.op


def requantized(g: Growing) -> None:
    """A requantization with limits, relus, sums, casts and marks in front and behind."""
    x, ty = g.some(*DTYPES)
    if g.chance(0.8):  # so that sums and products have room
        most = int(g.pick(100, 30_000, 1 << 20, (1 << 31) - 1))
        x = op.clip(x, a_min=float(-most), a_max=float(most))
        g.add(lambda: op.cast(x, dtype=g.pick("int8", "int16", "int32", "int32", "int64")))
    for _ in range(g.pick(0, 1, 2, 3, 4)):
        _neighbour(g)
    x, ty = g.values[-1]
    if ty.dtype == "bool":
        return
    rounding = g.pick(*ROUNDINGS)
    compute = "int32" if rounding == "tflm" else g.pick("int32", "int64", "int64")
    how: dict[str, Any] = {"rounding": rounding, "compute_dtype": compute, "relu": g.chance(0.3)}
    how["out_dtype"] = g.pick("int8", "uint8", *DTYPES)
    if g.chance(0.8):
        _add_limits(g, how)
    vectors = []
    kind = g.pick("numbers", "numbers", "bias", "factors", "all") if ty.shape else "numbers"
    axis = int(g.rng.integers(len(ty.shape))) if ty.shape else 0
    size = ty.concrete_shape[axis : axis + 1]
    sign = g.pick(1, 1, -1) if kind != "numbers" else 1
    least = g.pick(-3, -12, -31, -63)

    def multiplier() -> int:
        made = g.pick(POWER_OF_TWO, int(g.rng.integers(1 << 30, 1 << 31)), 3 << 29, (1 << 31) - 1)
        return int(made) * g.pick(1, 1, 1, sign)

    def shift() -> int:
        return int(g.rng.integers(least, g.pick(0, 1, 2)))

    if kind in ("factors", "all"):
        vectors = [g.constant("int32", size, multiplier), g.constant("int32", size, shift)]
    else:
        how |= {"multiplier": abs(multiplier()), "shift": shift()}
    if kind in ("bias", "all"):
        vectors.append(g.constant("int32", size, lambda: g.number("int32")))
    elif g.chance(0.3):
        how["bias"] = g.number("int32")
    if vectors:
        how["axis"] = axis
    if g.add(lambda: op_call("qnn.requantize", x, *vectors, **how)):
        for _ in range(g.pick(0, 1, 2, 3)):
            _neighbour(g)


def _add_limits(g: Growing, how: dict[str, Any]) -> None:
    """Limits of all dtypes that hold them, at their ends or inside, and a zero point."""
    dtypes = how["out_dtype"], how["compute_dtype"]
    low = max(*(ends(dtype)[0] for dtype in dtypes), -(1 << 53))
    high = min(*(ends(dtype)[1] for dtype in dtypes), 1 << 53)
    zero_point = g.pick(0, 0, g.number("int8"), g.number("int32"))
    if how["compute_dtype"] == "int32":  # which holds the limits without it
        low, high = max(low, low + zero_point), min(high, high + zero_point)
    if g.chance(0.5):
        low, high = sorted(min(max(g.number(how["out_dtype"]), low), high) for _ in range(2))
    how |= {"low": low, "high": high, "zero_point": zero_point}


def _neighbour(g: Growing) -> None:
    """What passes may draw into a requantization, of the newest value."""
    x, ty = g.values[-1]
    if ty.dtype == "bool":
        return
    kind = g.pick("limits", "limits", "relu", "sum", "sum", "cast", "cast", "mark", "rare")
    if kind == "limits":
        low, high = sorted((g.number("int16"), g.number("int16")))
        if g.chance(0.3):
            limited(g)
        else:
            g.add(lambda: op.clip(x, a_min=float(low), a_max=float(high)))
    elif kind == "relu":
        g.add(lambda: op.nn.relu(x))
    elif kind == "sum":
        axis = int(g.rng.integers(len(ty.shape))) if ty.shape else 0
        along = tuple(n if a == axis else 1 for a, n in enumerate(ty.concrete_shape))
        shape = g.pick((), along, along, ty.concrete_shape)
        many = g.constant(ty.dtype, shape, lambda: g.number("int8"))
        sides = (many, x) if g.chance(0.2) else (x, many)
        g.add(lambda: g.pick(op.add, op.subtract)(*sides))
    elif kind == "cast":
        dtype = g.pick(*DTYPES, "int32", "int64")
        own, other = ends(ty.dtype), ends(dtype)
        low, high = max(own[0], other[0]), min(own[1], other[1])
        if g.chance(0.7) and (low, high) != own:
            g.add(lambda: op.clip(x, a_min=float(low), a_max=float(high)))
        kept = g.values[-1][0]
        g.add(lambda: op.cast(kept, dtype=dtype))
    elif kind == "mark":
        g.add(lambda: op_call("annotation.stop_fusion", x))
    else:
        rare = g.constant(ty.dtype, (), lambda: g.number(ty.dtype))
        other = g.constant(ty.dtype, (), lambda: g.number(ty.dtype))
        g.add(lambda: op.where(op.equal(x, rare), other, x))
