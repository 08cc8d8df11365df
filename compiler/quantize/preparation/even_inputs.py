"""Columns of a table get the scale that the first layer gives them, before they are quantized.

    before                              after, a per column a power of two
    nn.dense(%x, w)                     nn.dense(multiply(%x, a), w / a)

Features come in units of their own (rooms, inhabitants), and one step of the largest would be all
that is left of the others. A layer that was trained on them has weights that even this out: behind
the factors a column counts as much as it changes the sums. The factors stay real, in
``quantize_inputs``: a scale per column. Powers of two change no bit of the float model.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.walk import behind, mentions, nodes_of
from compiler.ops.evaluate import evaluate_call
from compiler.ops.op_call import op_call
from compiler.qtypes.channel_ranges import ChannelRanges
from compiler.qtypes.report import MARKER_OPS
from compiler.quantize.rewriting import rewritten
from compiler.quantize.scales.weight_grid import range_on_few_levels
from compiler.quantize.weighted_calls import weighted_calls

Columns = NDArray[np.float32]
DataOf = Callable[[Expr, Columns, Mapping[Expr, Expr]], Expr]
"""Makes the data of a layer from its data, the factors, and the new forms of nodes."""

_UNEVEN: Final = 16
"""Largest by smallest weight of the columns, from which more than 4 of 8 bits may be lost."""
_UNREAD: Final = 2.0**-20
_LARGEST: Final = 60
"""Exponent of a factor; float32 has 127."""
_MOST_COLUMNS: Final = 256
"""Largest number of columns of a table. Wider inputs are signals, whose values have one unit."""
_ARITHMETIC: Final = ("add", "subtract", "multiply", "divide")
_SAME_VALUES: Final = ("reshape", "expand_dims", "squeeze")
_AFFINE: Final = (*_ARITHMETIC, *_SAME_VALUES)
_MOST_SELECTED: Final = 4096
"""Columns of all tables that the selections of an input may make."""


def even_inputs(mod: IRModule) -> IRModule:
    """The module with factors for the columns that ``nn.dense`` reads of inputs, or itself.

    Args:
        mod: float, typed; constants folded.
    """
    mod = _columns_apart(mod)
    main: Function = mod["main"]
    if not mentions(main, ("nn.dense",)):
        return mod
    factors = _found(main, _factors)
    if factors:
        mod = _with_layers(mod, factors, _scaled, -1.0)
    return _selected_last(mod)


@dataclass(frozen=True, slots=True)
class _Selection:
    """Columns that are selected from a table of a width: ``take(table, columns, axis=1)``."""

    table: Expr
    width: int
    columns: NDArray[np.int64]

    @property
    def value(self) -> Expr:
        return op_call("take", self.table, Constant(self.columns), axis=1)

    def spread(self, numbers: NDArray[Any], neutral: float) -> NDArray[Any] | None:
        """Return numbers of the selected columns as a row of all; None where one has two."""
        row = np.full(self.width, neutral, numbers.dtype)
        selected = np.broadcast_to(numbers, (1, *self.columns.shape))[0]
        row[self.columns] = selected
        if not np.array_equal(row[self.columns], selected):
            return None
        return row


def _selected_last(mod: IRModule) -> IRModule:
    """Move arithmetic with a constant for each column in front of the selection of the columns.

        before                                  after
        subtract(take(%x, c), m)                take(subtract(multiply(%x, mask), m'), c)

    Columns share the scale of the table that they are selected from. Each selection gets a table of
    its own, whose other columns are 0.
    """
    uneven = _selected_tables(mod["main"])
    selections: dict[Expr, _Selection] = {}

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        source = _selected_from(node)
        selection: _Selection | None
        if source is not None and source in uneven:
            selection = _selection(node, source, new[source])
            if selection is None:
                return None
        elif is_op_call(node, *_ARITHMETIC):
            _, data, constant = node.operands()
            moved = selections.get(new[data])
            if moved is None or not isinstance(constant, Constant):
                return None
            neutral = float(is_op_call(node, "multiply", "divide"))
            row = None
            if constant.data.ndim <= 1 + moved.columns.ndim:
                row = moved.spread(constant.data, neutral)
            if row is None or node.tensor_type.shape != data.tensor_type.shape:
                return None
            table = node.with_fields(args=(moved.table, Constant(row)))
            selection = _Selection(table, moved.width, moved.columns)
        elif is_op_call(node, *_SAME_VALUES) and new[node.args[0]] in selections:
            moved = selections[new[node.args[0]]]
            shape = node.tensor_type.concrete_shape[1:]
            selection = _Selection(moved.table, moved.width, moved.columns.reshape(shape))
        else:
            return None
        value = selection.value
        selections[value] = selection
        return value

    return rewritten(mod, made)


def _selected_tables(main: Function) -> set[Expr]:
    """Return the inputs whose columns are selected, and get numbers of their own behind it."""
    selected: dict[Expr, Expr] = {}
    work: Counter[Expr] = Counter()
    uneven = set()
    for node in nodes_of(main):
        source = _selected_from(node)
        if source in main.params and _is_table(source):
            selected[node] = source
            work[source] += source.tensor_type.concrete_shape[1]
        elif is_op_call(node, *_AFFINE):
            data = next((arg for arg in node.args if arg in selected), None)
            if data is not None:
                selected[node] = selected[data]
                columns = math.prod(node.tensor_type.concrete_shape[1:])
                if any(isinstance(arg, Constant) and arg.data.size == columns for arg in node.args):
                    uneven.add(selected[data])
    return {source for source in uneven if work[source] <= _MOST_SELECTED}


def _is_table(value: Expr) -> bool:
    kind = value.tensor_type
    return (
        kind.dtype == "float32" and len(kind.shape) == 2 and kind.concrete_shape[1] <= _MOST_COLUMNS
    )


def _selected_from(node: Expr) -> Expr | None:
    """Return the value that a node selects from; None for other nodes."""
    if isinstance(node, TupleGetItem):
        node = node.tuple
        if not is_op_call(node, "split"):
            return None
    elif not is_op_call(node, "strided_slice", "take"):
        return None
    if all(isinstance(arg, Constant) for arg in node.args[1:]):
        return node.args[0]
    return None


def _selection(node: Expr, source: Expr, table: Expr) -> _Selection | None:
    """Return the columns that a node selects from a table, the others made 0."""
    rows, size = source.tensor_type.concrete_shape
    call = node.tuple if isinstance(node, TupleGetItem) else node
    assert isinstance(call, Call)
    numbers = np.arange(rows * size, dtype=np.float32).reshape(rows, size)
    constants = [arg.data for arg in call.args[1:] if isinstance(arg, Constant)]
    selected = evaluate_call(call, [numbers, *constants])
    if isinstance(node, TupleGetItem):
        selected = selected[node.index]
    columns = np.asarray(selected[0], np.int64)
    offsets = size * np.arange(rows).reshape(rows, *(1,) * columns.ndim)
    if not np.array_equal(selected, columns + offsets):
        return None  # rows are selected, too
    mask = np.zeros(size, np.float32)
    mask[columns] = 1
    if mask.all():
        return _Selection(table, size, columns)
    return _Selection(op_call("multiply", table, Constant(mask)), size, columns)


def _columns_apart(mod: IRModule) -> IRModule:
    """Move arithmetic with constants in front of the concatenate that joins columns of inputs.

    Columns that are joined first share a scale, and a scaler behind them comes too late.
    """
    params = frozenset(mod["main"].params)
    apart: dict[Expr, tuple[list[Expr], list[int]]] = {}

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not is_op_call(node, *_ARITHMETIC):
            return None
        _, data, constant = node.operands()
        if not isinstance(constant, Constant) or node.tensor_type.shape != data.tensor_type.shape:
            return None
        if new[data] not in apart:
            old = _parts(data)
            if len(old) == 1 or any(_source(part) not in params for part in old):
                return None
            sizes = [part.tensor_type.concrete_shape[-1] for part in old]
            apart[new[data]] = [new[part] for part in old], sizes
        parts, sizes = apart[new[data]]
        numbers = constant.data
        split = [numbers] * len(parts)
        if numbers.size > 1:
            if numbers.size != sum(sizes) or numbers.shape[-1] != numbers.size:
                return None
            split = np.split(numbers, np.cumsum(sizes)[:-1], axis=-1)
        own = [
            node.with_fields(args=(part, Constant(own)))
            for part, own in zip(parts, split, strict=True)
        ]
        joined = _joined(own)
        apart[joined] = [*own], sizes
        return joined

    return rewritten(mod, made)


def with_one_scale(
    mod: IRModule, ranges: Sequence[ChannelRanges]
) -> tuple[IRModule, Sequence[ChannelRanges]]:
    """The module with the factors of columns in the weights again, and ``ranges`` of its layers."""
    main: Function = mod["main"]
    held = _found(main, _held)
    if not held:
        return mod, ranges
    calls = (call for call, _ in weighted_calls(main))
    told = [
        one.times(1 / held[call].astype(np.float64)) if call in held else one
        for call, one in zip(calls, ranges)
    ]
    return _with_layers(mod, held, _plain, 1.0), told


def _found(
    main: Function, factors_of: Callable[[Expr, Collection[Expr]], Columns | None]
) -> dict[Expr, Columns]:
    params = frozenset(main.params)
    found = ((node, factors_of(node, params)) for node in nodes_of(main))
    return {node: factors for node, factors in found if factors is not None}


def _with_layers(
    mod: IRModule, factors: Mapping[Expr, Columns], data_of: DataOf, power: float
) -> IRModule:
    """The module whose layers read other data, with weights times this power of the factors."""

    def made(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if not isinstance(node, Call) or node not in factors:
            return None
        data, weight = node.args
        assert isinstance(weight, Constant)
        scaled = Constant(weight.data * factors[node] ** np.float32(power))
        return node.with_fields(args=(data_of(data, factors[node], new), scaled))

    return rewritten(mod, made)


def _held(node: Expr, params: Collection[Expr]) -> Columns | None:
    """The factors of the columns that a layer reads; None where one has none."""
    if not is_op_call(node, "nn.dense") or not isinstance(node.operands()[2], Constant):
        return None
    found = []
    for part in _parts(node.operands()[1]):
        if not is_op_call(part, "multiply") or _source(part) not in params:
            return None
        factor = part.operands()[2]
        if not isinstance(factor, Constant) or factor.data.size != part.tensor_type.shape[-1]:
            return None
        found.append(factor.data.reshape(-1))
    return np.concatenate(found)


def reads_columns(layer: Call, params: Collection[Expr]) -> bool:
    """Return whether a layer reads inputs behind a factor for each column; points may stand
    between."""
    parts = _parts(behind(layer.args[0], MARKER_OPS)[1])
    return all(_source(part) in params for part in parts) and any(map(_has_factors, parts))


def _factors(node: Expr, params: Collection[Expr]) -> Columns | None:
    """Return the factor of each column; None where they are even, or no columns of inputs."""
    if not is_op_call(node, "nn.dense"):
        return None
    data, weight = node.args
    if not isinstance(weight, Constant) or weight.data.dtype != np.float32:
        return None
    if weight.data.shape[1] > _MOST_COLUMNS:
        return None
    if any(_source(part) not in params for part in _parts(data)):
        return None
    largest = np.abs(weight.data).max(axis=0)
    seen = largest[largest > 0]
    if not len(seen) or not np.isfinite(seen).all() or seen.max() / _UNEVEN <= seen.min():
        return None
    if range_on_few_levels(weight.data, 8, 0) is not None:
        return None  # the weights are quantized already
    least, most = np.rint(np.log2([seen.min(), seen.max()]))
    # What nothing reads is made small, whatever its unit, so that it widens no range.
    powers = np.rint(np.log2(np.where(largest > 0, largest, seen.min() * _UNREAD)))
    powers = np.clip(powers - np.floor((least + most) / 2), -_LARGEST, _LARGEST)
    return np.asarray(np.exp2(powers), np.float32)


def _parts(data: Expr) -> tuple[Expr, ...]:
    """Return the values that are joined along the columns, or the one value."""
    if is_op_call(data, "concatenate"):
        (joined,) = data.args
        axis = getattr(data.attrs, "axis", 0)
        if isinstance(joined, Tuple) and axis in (-1, len(data.tensor_type.shape) - 1):
            return joined.fields
    return (data,)


def _source(value: Expr) -> Expr:
    """Return the value behind arithmetic with constants, and a selection of columns."""
    while True:
        value = behind(value, MARKER_OPS)[1]
        read = [_selected_from(value)]
        if is_op_call(value, *_AFFINE):
            read = [arg for arg in value.args if not isinstance(arg, Constant)]
        if len(read) != 1 or read[0] is None:
            return value
        value = read[0]


def _has_factors(value: Expr) -> bool:
    _, value = behind(value, (*MARKER_OPS, *_SAME_VALUES, "take"))
    return is_op_call(value, "multiply") and any(
        isinstance(arg, Constant) and arg.data.ndim > 0 for arg in value.operands()
    )


def _scaled(data: Expr, factors: Columns, new: Mapping[Expr, Expr]) -> Expr:
    parts = _parts(data)
    ends = np.cumsum([part.tensor_type.concrete_shape[-1] for part in parts])
    split = np.split(factors, ends[:-1])
    return _joined(
        [op_call("multiply", new[p], Constant(own)) for p, own in zip(parts, split, strict=True)]
    )


def _plain(data: Expr, factors: Columns, new: Mapping[Expr, Expr]) -> Expr:
    return _joined([new[part.operands()[1]] for part in _parts(data)])


def _joined(parts: Sequence[Expr]) -> Expr:
    if len(parts) == 1:
        return parts[0]
    return op_call("concatenate", Tuple(tuple(parts)), axis=-1)
