"""compare_modules: the same inputs through two modules, node by node."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import EvaluationError
from compiler.ir.expr import Call, Expr, Function, Op, Quant, describe
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, is_dynamic, is_float
from compiler.ops.number_format import Array
from compiler.pipeline import evaluate
from compiler.span import onnx_nodes

_FEWEST_OF_A_CHANNEL = 32
"""Values that a factor and an offset are fitted to."""
_MUCH_BETTER_DB = 10.0

BY_NODE = "onnx node"
BY_PLACE = "position"


@dataclass(frozen=True, slots=True)
class Step:
    """One node that ran: its place in the order of execution and the shape of its value."""

    index: int
    node: Expr
    shape: tuple[int, ...]

    @property
    def operator(self) -> str:
        """Name of the operator called, or the kind of node."""
        if isinstance(self.node, Call) and isinstance(self.node.op, Op):
            return self.node.op.name
        return describe(self.node)

    @property
    def onnx_name(self) -> str | None:
        """Name of the ONNX node it was imported from; of several, all of them joined."""
        return "+".join(onnx_nodes(self.node.span)) or None


@dataclass(frozen=True, slots=True)
class Match:
    """Two steps that compute the same value if the modules mean the same."""

    a: Step
    b: Step
    by: str


def match_steps(a: Sequence[Step], b: Sequence[Step]) -> list[Match]:
    """Pairs of steps, in the order in which ``b`` runs them; every step is in one pair at most."""
    found = [Match(x, y, BY_NODE) for x, y in _pairs_by_ordinal(a, b, _node_and_operator)]
    matched_nodes = {m.a.onnx_name for m in found}
    last_a = _last_by_node(a)
    for name, last in _last_by_node(b).items():
        other = last_a.get(name)
        if other is not None and name not in matched_nodes and other.shape == last.shape:
            found.append(Match(other, last, BY_NODE))
    taken_a = {m.a.index for m in found}
    taken_b = {m.b.index for m in found}
    # A module that was never in ONNX has no such names; then only the place is left to go by.
    all_named = bool(last_a) and any(step.onnx_name for step in b)
    left_a = [s for s in a if s.index not in taken_a and not (all_named and s.onnx_name)]
    left_b = [s for s in b if s.index not in taken_b and not (all_named and s.onnx_name)]
    found += [Match(x, y, BY_PLACE) for x, y in _pairs_by_place(left_a, left_b)]
    return sorted(found, key=lambda m: m.b.index)


def _node_and_operator(step: Step) -> Hashable:
    name = step.onnx_name
    if name is None:
        return None
    return (name, step.operator, step.shape)


def _operator_and_shape(step: Step) -> Hashable:
    return (step.operator, step.shape)


def _pairs_by_ordinal(
    a: Sequence[Step], b: Sequence[Step], key: Callable[[Step], Hashable]
) -> list[tuple[Step, Step]]:
    """The n-th step with a key, with the n-th of the same key on the other side."""
    waiting: dict[Hashable, deque[Step]] = defaultdict(deque)
    for step in a:
        waiting[key(step)].append(step)
    waiting.pop(None, None)
    return [(left.popleft(), step) for step in b if (left := waiting.get(key(step)))]


def _last_by_node(steps: Sequence[Step]) -> dict[str, Step]:
    return {step.onnx_name: step for step in steps if step.onnx_name is not None}


def _pairs_by_place(a: Sequence[Step], b: Sequence[Step]) -> list[tuple[Step, Step]]:
    """Equal steps from the front, then from the back, then the n-th of a kind in between."""
    front = _alike(a, b)
    back = _alike(a[front:][::-1], b[front:][::-1])
    middle_a = a[front : len(a) - back]
    middle_b = b[front : len(b) - back]
    return [
        *zip(a[:front], b[:front]),
        *_pairs_by_ordinal(middle_a, middle_b, _operator_and_shape),
        *zip(a[len(a) - back :], b[len(b) - back :]),
    ]


def _alike(a: Sequence[Step], b: Sequence[Step]) -> int:
    """Count the steps from the front that have the same operators and shapes."""
    pairs = zip(map(_operator_and_shape, a), map(_operator_and_shape, b))
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


Batch = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class NodeDifference:
    """Differences of one matched pair of values, over all batches.

    ``snr_db`` is 10·log10(Σa² / Σ(a-b)²), inf when equal. Where one side holds integers and the
    other real numbers ``scale`` is that of the integers, whose zero point is taken off, or, where
    they carry none, the factor that b was multiplied with first; else 1.
    ``undone_db`` is the ratio with the best factor and offset of each channel instead, where that
    is more than 10 dB better: smoothing gives channels factors, zero points give them offsets,
    which the next operators take back.
    """

    name: str
    operator_a: str
    operator_b: str
    shape: tuple[int, ...]
    dtype_a: str
    dtype_b: str
    equal: bool
    snr_db: float
    max_abs_error: float
    scale: float
    matched_by: str
    undone_db: float | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """Result of compare_modules; ``nodes`` are in the order in which the second module runs."""

    equal: bool
    outputs: tuple[NodeDifference, ...]
    nodes: tuple[NodeDifference, ...]
    only_in_a: int
    only_in_b: int

    @property
    def first(self) -> NodeDifference | None:
        """The first matched node whose values differ."""
        return next((node for node in self.nodes if not node.equal), None)

    def sentence(self) -> str:
        """The first node that differs, or that none does, in one line."""
        first = self.first
        if first is None:
            if self.equal:
                return "no node differs"
            return "outputs differ, matched nodes do not"
        undone = ""
        if first.undone_db is not None:
            undone = f"; {first.undone_db:.1f} dB once factors of its channels are undone"
        return (
            f"first difference: {first.name} ({first.operator_b}), SNR {first.snr_db:.1f} dB, "
            f"largest error {first.max_abs_error:.3g}{undone}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; an infinite ratio is None."""
        first = self.first
        return {
            "equal": self.equal,
            "first": None if first is None else _plain(first),
            "outputs": [_plain(row) for row in self.outputs],
            "nodes": [_plain(row) for row in self.nodes],
            "only_in_a": self.only_in_a,
            "only_in_b": self.only_in_b,
        }


def _plain(row: NodeDifference) -> dict[str, Any]:
    values = asdict(row)
    values["shape"] = list(row.shape)
    for key in ("snr_db", "max_abs_error", "undone_db"):
        if values[key] is not None and not math.isfinite(values[key]):
            values[key] = None
    return values


def compare_modules(
    a: IRModule, b: IRModule, batches: Iterable[Batch], *, rtol: float = 0.0, atol: float = 0.0
) -> Difference:
    """Run both modules on every batch and compare outputs and matched nodes.

    Args:
        a: the module taken as right; typed, closed but for the parameters of @main.
        b: the module that is judged.
        batches: inputs of @main by parameter name; at least one.
        rtol: |a-b| <= atol + rtol·|a| counts as equal. Zero, the default, asks for the same bits
            (NaN equals NaN).
        atol: see ``rtol``.
    Raises:
        EvaluationError: no batch, other inputs than the modules have, or a node that cannot run.
    """
    totals: dict[tuple[int, int], _Total] = {}
    outputs: list[_Total] = []
    matches: list[Match] | None = None
    counts = (0, 0)
    for batch in batches:
        out_a, values_a, steps_a = _run(a, batch)
        out_b, values_b, steps_b = _run(b, batch)
        if matches is None:
            matches = match_steps(steps_a, steps_b)
            counts = (len(steps_a) - len(matches), len(steps_b) - len(matches))
            outputs = [_Total() for _ in range(max(len(out_a), len(out_b)))]
        for match in matches:
            total = totals.setdefault((match.a.index, match.b.index), _Total())
            x, y = values_a[match.a.index], values_b[match.b.index]
            total.add(x, y, rtol, atol, (match.b if x.dtype.kind == "f" else match.a).node.quant)
        for total, x, y in zip(outputs, out_a, out_b):
            total.add(x, y, rtol, atol)
        if len(out_a) != len(out_b):
            raise EvaluationError(
                f"the first module has {len(out_a)} outputs and the second {len(out_b)}",
                fix="compare modules with the same outputs",
            )
    if matches is None:
        raise EvaluationError("there are no inputs to compare on", fix="give one image or more")
    rows = [_row(m, totals[m.a.index, m.b.index]) for m in matches]
    results = tuple(
        _of_total(total, f"output {i}", ("", ""), "output") for i, total in enumerate(outputs)
    )
    return Difference(all(r.equal for r in results), results, tuple(rows), *counts)


def _run(mod: IRModule, batch: Batch) -> tuple[list[Array], list[Array], list[Step]]:
    """Outputs, and the value and step of every call in the order of execution."""
    values: list[Array] = []
    steps: list[Step] = []

    def tap(node: Expr, value: Any) -> None:
        if isinstance(node, Call) and isinstance(value, np.ndarray):
            steps.append(Step(len(steps), node, value.shape))
            values.append(value)

    return evaluate(mod, named_for(mod, batch), tap=tap), values, steps


@dataclass(slots=True)
class _Total:
    """Sums over batches for one pair of values."""

    equal: bool = True
    signal: float = 0.0
    noise: float = 0.0
    max_error: float = 0.0
    scale: float = 1.0
    dtypes: tuple[str, str] = ("", "")
    shape: tuple[int, ...] = field(default=())
    moments: NDArray[np.float64] | None = None
    """Count and sums of x, y, xx, yy, xy by channel, where integers stand beside real numbers."""

    def add(self, x: Array, y: Array, rtol: float, atol: float, quant: Quant | None = None) -> None:
        """Count one batch; ``x`` is taken as right, ``quant`` is of the side that is integers."""
        self.dtypes = (str(x.dtype), str(y.dtype))
        self.shape = x.shape
        if x.shape != y.shape:
            self.equal = False
            self.noise = math.inf
            self.max_error = math.inf
            return
        mixed = (x.dtype.kind == "f") != (y.dtype.kind == "f")
        if not mixed and _same(x, y, rtol, atol):
            self.signal += float(np.sum(np.square(x, dtype=np.float64)))
            return
        right = x.astype(np.float64)
        judged = y.astype(np.float64)
        if mixed:
            if quant is None and self.scale == 1.0:
                self.scale = _best_scale(right, judged)
            if quant is not None and x.dtype.kind == "f":
                judged = (judged - quant.zero_point) * quant.scales
            elif quant is not None:
                right = (right - quant.zero_point) * quant.scales
            own = _moments(right, judged)
            if self.moments is None:
                self.moments = own
            else:
                self.moments = self.moments + own
            if quant is None:
                judged = judged * self.scale
            else:
                self.scale = float(quant.scales.max())
        error = np.abs(right - judged)
        # NaN on both sides is agreement; on one side it is an error without bound.
        error = np.where(np.isnan(right) & np.isnan(judged), 0.0, error)
        error = np.where(right == judged, 0.0, np.nan_to_num(error, nan=math.inf))
        self.equal = False
        self.signal += float(np.sum(np.square(right[np.isfinite(right)])))
        self.noise += float(np.sum(np.square(error)))
        self.max_error = max(self.max_error, float(error.max(initial=0.0)))

    @property
    def snr_db(self) -> float:
        """Signal to noise in decibels."""
        if self.noise == 0:
            return math.inf
        if self.signal == 0 or math.isinf(self.noise):
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)

    @property
    def undone_db(self) -> float | None:
        """Signal to noise with an affine map for each channel, where that is much better."""
        if self.moments is None or self.moments[0].min(initial=math.inf) < _FEWEST_OF_A_CHANNEL:
            return None
        count, x, y, xx, yy, xy = self.moments
        spread = yy - y * y / count
        joint = xy - x * y / count
        explained = np.divide(joint**2, spread, out=np.zeros_like(joint), where=spread > 0)
        noise = float(np.maximum(xx - x * x / count - explained, 0.0).sum())
        if noise > 0 and self.signal > 0:
            found = 10 * math.log10(self.signal / noise)
        else:
            found = math.inf
        if found > self.snr_db + _MUCH_BETTER_DB:
            return found
        return None


def _moments(x: Array, y: Array) -> NDArray[np.float64]:
    """Sums over all axes but the channels', axis 1; float64 (6, channels)."""
    if x.ndim > 1:
        rank_two = (x, y)
    else:
        rank_two = (x.reshape(1, -1), y.reshape(1, -1))
    a, b = (np.moveaxis(one, 1, 0).reshape(one.shape[1], -1) for one in rank_two)
    sums = (np.ones_like(a), a, b, a * a, b * b, a * b)
    return np.stack([one.sum(axis=1) for one in sums])


def _same(x: Array, y: Array, rtol: float, atol: float) -> bool:
    if rtol == 0 and atol == 0:
        return bool(x.dtype == y.dtype and np.array_equal(x, y, equal_nan=x.dtype.kind == "f"))
    return bool(np.allclose(y, x, rtol=rtol, atol=atol, equal_nan=True))


def _best_scale(x: Array, y: Array) -> float:
    """Factor on ``y`` with the least squared error, for integers that carry no scale."""
    power = float(np.sum(np.square(y)))
    if power > 0:
        return float(np.sum(x * y)) / power
    return 1.0


def _row(match: Match, total: _Total) -> NodeDifference:
    name = match.b.onnx_name or match.a.onnx_name or f"step {match.b.index}"
    row = _of_total(total, name, (match.a.operator, match.b.operator), match.by)
    return replace(row, undone_db=total.undone_db)


def _of_total(
    total: _Total, name: str, operators: tuple[str, str], matched_by: str
) -> NodeDifference:
    return NodeDifference(
        name,
        *operators,
        total.shape,
        *total.dtypes,
        equal=total.equal,
        snr_db=total.snr_db,
        max_abs_error=total.max_error,
        scale=total.scale,
        matched_by=matched_by,
    )


Arrays = dict[str, NDArray[Any]]

LARGEST_INDEX = 10


def main_inputs(mod: IRModule) -> dict[str, TensorType]:
    """Types of the parameters of @main.

    Raises:
        EvaluationError: one is no tensor of static shape.
    """
    main = mod["main"]
    assert isinstance(main, Function)
    found: dict[str, TensorType] = {}
    for param in main.params:
        ty = param.checked_type_or_none or param.type_annotation
        if not isinstance(ty, TensorType) or is_dynamic(ty):
            raise EvaluationError(
                f"input %{param.name_hint} has type {ty}; a tensor of known shape is needed",
                fix="import the model with --dim",
            )
        found[param.name_hint] = ty
    return found


def random_inputs(mod: IRModule, rng: np.random.Generator) -> Arrays:
    """One array per parameter of @main.

    Floats are standard normal, integers lie in [0, LARGEST_INDEX) so that they are legal indices,
    bools are fair coins.

    Raises:
        EvaluationError: a parameter is no tensor of static shape.
    """
    arrays: Arrays = {}
    for name, ty in main_inputs(mod).items():
        shape = ty.concrete_shape
        if ty.dtype.startswith("float"):
            value: NDArray[Any] = rng.standard_normal(shape).astype(ty.dtype)
        elif ty.dtype == "bool":
            value = rng.integers(0, 2, shape).astype(bool)
        else:
            value = rng.integers(0, LARGEST_INDEX, shape).astype(ty.dtype)
        arrays[name] = value
    return arrays


def named_for(mod: IRModule, batch: Mapping[str, NDArray[Any]]) -> Arrays:
    """``batch`` under the parameter names of ``mod``: by name, or by order where names differ.

    Floats come in the dtype of the parameter: a module of a float16 model takes float32.

    Raises:
        EvaluationError: another number of inputs.
    """
    types = main_inputs(mod)
    if len(types) != len(batch):
        raise EvaluationError(
            f"the module has {len(types)} inputs and {len(batch)} are given",
            where=f"inputs {', '.join(types)}; given {', '.join(batch)}",
            fix="compare modules with the same inputs",
        )
    if set(types) == set(batch):
        found = dict(batch)
    else:
        found = dict(zip(types, batch.values()))
    for name, array in found.items():
        if array.dtype.kind == "f" and is_float(types[name].dtype):
            found[name] = array.astype(types[name].dtype)
    return found
