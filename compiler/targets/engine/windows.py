"""Rules of pools, reductions, tables, softmax and standardization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from compiler.ir.dataflow import Step
from compiler.ir.ty import integer_range
from compiler.ops.nn.integer_standardize import output_bound
from compiler.ops.number_format import Array
from compiler.ops.reduce.axes import axes_of
from compiler.targets.engine.general import dense_view, taken
from compiler.targets.engine.layouts import MOST_IMAGES, channels_last, layout_of
from compiler.targets.engine.lines import as_lines
from compiler.targets.engine.planner import Planner, rule
from compiler.targets.engine.steps import by_axis, number
from compiler.targets.engine.values import INT32, Chain, Item
from compiler.targets.engine.views import STORED, Address, Shape, View, compact, merged_axes

Window = tuple[Sequence[int], ...]
"""Kernel, strides, dilation, padding: of height and width."""

_PLAIN: Final = ((1, 1), (1, 1), (0, 0, 0, 0))
"""Strides, dilation and padding of a pool without them."""
_FEW_CHANNELS: Final = 8
"""Fewer are no vectors, so nothing is gained by their order."""
_FEW: Final = 128
"""Elements that are looked up one by one."""
_TOGETHER: Final = 2048
"""Elements of a softmax whose entries are looked up at once."""


def _factor_in_front(planner: Planner, data: Item) -> tuple[Item, int]:
    """The operand of ``multiply(x, constant)`` in front of an average, and the constant."""
    chain = data.chain
    if chain is None or data.view is not None or data.uses > 1 or chain.op != "MUL":
        return data, 1
    inner, factor = chain.args
    if inner.data is not None:
        inner, factor = factor, inner
    if factor.data is None or factor.data.size != 1 or inner.shape != data.shape:
        return data, 1
    return inner, int(factor.data.reshape(()))


def _sums_fit(data: Item, terms: int, factor: int) -> bool:
    """Return whether 32 bits hold a sum of so many values, and 62 its product with the factor."""
    most = terms * max(abs(data.low), abs(data.high))
    return most < 1 << 31 and most * abs(factor) < 1 << 62 and abs(factor) < 1 << 30


def _window(step: Step, size: Sequence[int]) -> Window:
    """Kernel, strides, dilation and padding; the window of a global pool has the data's size."""
    attrs: Any = step.attrs
    if "global" in step.name:
        return size, *_PLAIN
    return attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding


@rule("nn.max_pool2d", "nn.avg_pool2d", "nn.global_avg_pool2d", "nn.global_max_pool2d")
def pool(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Windows are cut at the borders of the data."""
    attrs: Any = step.attrs
    layout = layout_of(step) or ""
    out_layout = getattr(attrs, "out_layout", "") or layout
    data = args[0]
    average = "avg" in step.name
    if data.shape[layout.index("N")] > MOST_IMAGES:
        return False
    data, factor = _factor_in_front(planner, data) if average else (data, 1)
    axes = [layout.index(c) for c in "NHWC"]
    shape = step.results[0].type.concrete_shape
    window = _window(step, [data.shape[a] for a in axes[1:3]])
    size = window[0]
    padding = window[-1]
    count = 0
    sizes = [(data.shape[a], shape[out_layout.index(c)]) for a, c in zip(axes[1:3], "HW")]
    reached = all(map(_reached, sizes, *window))
    if not average:
        if not reached:
            return False
    elif not _sums_fit(data, prod(size), factor):
        return False
    elif getattr(attrs, "count_include_pad", False) and any(padding):
        if attrs.ceil_mode:
            return False
        count = prod(size)
    low, high = sorted((data.low * factor, data.high * factor))
    if count or not reached:  # averages of padding, which is 0
        low, high = min(low, 0), max(high, 0)
    if not INT32[0] <= low <= high <= INT32[1]:
        return False
    source = planner.materialise(data).permuted(axes)
    if source.shape[3] > 1 and source.strides[3] != source.buffer.item:
        source = planner.emitter.contiguous(source, always=True)
    item = planner.define(step, Item(shape, low, high, image_layout=out_layout))
    item.stored = ("S32", 0) if average else None
    if not average and item.storage != source.buffer.storage:
        return False
    item.view = planner.emitter.allocate(item, channels_last(out_layout))
    target = item.view.permuted([out_layout.index(c) for c in "NHWC"])
    _write_pool(planner, "AVERAGE" if average else "MAX", source, target, window, factor, count)
    return True


def _reached(sizes: tuple[int, int], kernel: int, stride: int, dilation: int, before: int) -> bool:
    """Return whether every window of one axis reaches data; the largest of padding is the dtype's
    least.

    Args:
        sizes: of the data and of the result.
    """
    start = np.arange(sizes[1]) * stride - before
    tap = np.maximum(-(start // dilation), 0)  # the first that lies behind the padding
    return bool(((tap < kernel) & (start + tap * dilation < sizes[0])).all())


def _write_pool(
    planner: Planner, how: str, source: View, target: View, window: Window, factor: int, count: int
) -> None:
    """A step for each image; both views in the order batch, height, width, channels."""
    kernel, strides, dilation, padding = window
    for one, made in zip(source.images(), target.images()):
        planner.emitter.step(
            "pool",
            [one],
            [made],
            type=number(source.buffer.type),
            in_height=one.shape[0],
            in_width=one.shape[1],
            channels=made.shape[2],
            zero=source.buffer.zero,
            how=number(f"POOL_{how}"),
            top=padding[0],
            left=padding[1],
            factor=factor,
            count=count,
            **by_axis(kernel=kernel, stride=strides, dilation=dilation),
            **one.fields_to(made),
        )


@rule("mean", "sum", "max")
def reduce(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A pool with one window over up to two runs of axes, if the kept axes are one run."""
    average = step.name == "mean"
    data, factor = _factor_in_front(planner, args[0]) if average else (args[0], 1)
    terms = prod(data.shape[a] for a in axes_of(step))
    if step.name != "max" and not _sums_fit(data, terms, factor):
        return False
    scale = {"mean": factor, "sum": terms, "max": 1}[step.name]
    low, high = sorted((data.low * scale, data.high * scale))
    whole = _windowed(planner, planner.materialise(data), tuple(axes_of(step)))
    if whole is None or not INT32[0] <= low <= high <= INT32[1] or whole.buffer.type == "S64":
        return False
    if step.name == "max":
        stored = whole.buffer.storage
    else:
        stored = ("S32", 0)
    # In one run, whatever order and border its readers want.
    item = Item(step.results[0].type.concrete_shape, low, high)
    out = dense_view(planner, step, item, stored, row_major=True)
    run = (0, 0, 0, out.buffer.item)
    target = View(out.buffer, out.offset, (1, 1, 1, whole.shape[3]), run)
    how = "MAX" if step.name == "max" else "AVERAGE"
    window = (whole.shape[1:3], *_PLAIN)
    _write_pool(planner, how, whole, target, window, factor, count=0 if average else 1)
    return True


def _windowed(planner: Planner, source: View, axes: Shape) -> View | None:
    """The axes as rows and columns of one image, the others as its channels, which lie in one run;
    of a copy where they do not. None where a copy gains nothing."""
    kept = tuple(a for a in range(len(source.shape)) if a not in axes)
    order = tuple(sorted(axes, key=lambda a: (-source.strides[a], a)))
    channels = prod(source.shape[a] for a in kept)
    source = source.permuted((*order, *kept))
    while True:
        parts = slice(len(order)), slice(len(order), None)
        gone, run = (merged_axes(source.shape[p], [source.strides[p]]) for p in parts)
        if len(run) == 1 and len(gone) <= 2 and run[0][1][0] in (0, source.buffer.item):
            break
        if channels < _FEW_CHANNELS:
            return None
        source = planner.emitter.contiguous(source, always=True)
    (rows, (row,)), (columns, (column,)) = [(1, (0,))] * (2 - len(gone)) + gone
    shape = (1, rows, columns, channels)
    strides = (0, row, column, source.buffer.item)
    return View(source.buffer, source.offset, shape, strides)


_IN_TABLES: Final[Mapping[str, Callable[..., Array]]] = {
    "ADD": np.add,
    "SUB": np.subtract,
    "MIN": np.minimum,
    "MAX": np.maximum,
    "CLIP": lambda x, low, high: np.maximum(np.minimum(x, high), low),
}
"""Elementwise operators that a table can do as well."""


def _in_table(data: Item) -> tuple[Item, list[Chain]]:
    """Return the operand that a table reads instead of its data, and the operators between them,
    which the table does.

    Not for bytes; neither is what it reads wider than the data, nor does the table grow.
    """
    links: list[Chain] = []
    size = STORED[data.storage[0]].itemsize
    most = 1 << (data.high - data.low).bit_length()
    while size > 1 and data.view is None and data.uses <= 1 and data.chain is not None:
        inner = [a for a in data.chain.args if a.data is None]
        numbers = [a for a in data.chain.args if a.data is not None]
        if data.chain.op not in _IN_TABLES or len(inner) != 1 or any(a.shape for a in numbers):
            break
        (read,) = inner
        wider = STORED[read.storage[0]].itemsize > size or read.high - read.low >= most
        if wider or read.shape != data.shape:
            break
        links.append(data.chain)
        data = read
    return data, links[::-1]


@rule("lookup")
def lookup(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A table over all that is stored: of 256 entries for bytes, else for all that bounds allow.

    Few values are looked up by the program of the operators around them. The entry of a value lies
    where the last bits of what is stored say. Sums and clips in front of
    a lookup of more than 8 bits are part of its table.
    """
    data, table = args
    smallest = integer_range(step.args[0].type.dtype)[0]
    source, links = _in_table(data)
    few = prod(data.shape) <= _FEW and source.high - source.low < 1 << 16 and table.fits_int32
    if few and table.data is not None:
        entries = _entries(links, table.data, smallest, source.low, source.high)
        return planner.settle(
            step, planner.compose("TABLE", (source,), _placed(entries, source.low))
        )
    view = planner.materialise(source)
    in_kind, in_zero = view.buffer.storage
    low, high = (-in_zero, 255 - in_zero) if in_kind == "U8" else (source.low, source.high)
    if table.data is None or not table.fits_int32 or in_kind == "S64" or high - low >= 1 << 16:
        return taken(planner, step, table, data, (1, table.shape[0], smallest, False))
    found = _entries(links, table.data, smallest, low, high)
    entries = _placed(found, low + in_zero)
    item = planner.define(step, Item(data.shape, int(found.min()), int(found.max())))
    item.image_layout = data.image_layout
    out = item.view = planner.emitter.allocate(item, view.axis_order)
    kind, zero = item.storage
    order = out.axis_order
    s = view.permuted(order)
    t = out.permuted(order)
    loops = merged_axes(s.shape, [s.strides, t.strides], 3)
    if len(loops) > 3 or loops[-1][1] not in ((view.buffer.item, out.buffer.item), (0, 0)):
        view = planner.emitter.contiguous(view, always=True)
        out = item.view = compact(item.storage, item.shape)
        item.border = None
        loops = merged_axes(view.shape, [view.strides, out.strides], 3)
    planner.emitter.step(
        "lookup",
        [view],
        [out],
        size_0=loops[0][0],
        size_1=loops[1][0],
        columns=loops[2][0],
        in_type=number(in_kind),
        in_stride_0=loops[0][1][0],
        in_stride_1=loops[1][1][0],
        out_stride_0=loops[0][1][1],
        out_stride_1=loops[1][1][1],
        type=number(kind),
        table=planner.emitter.put((entries + zero).astype(STORED[kind])),
        entries=len(entries),
        **_lines(planner, entries + zero, in_kind, kind),
    )
    return True


def _entries(links: list[Chain], table: Array, smallest: int, low: int, high: int) -> Array:
    """The entry of every value from ``low`` to ``high``, with the operators in front of it."""
    values = np.arange(low, high + 1)
    for link in links:
        numbers = [values if a.data is None else a.data for a in link.args]
        values = _IN_TABLES[link.op](*numbers, *link.params)
    return table[np.clip(values - smallest, 0, table.size - 1)].astype(np.int64)


def _placed(found: Array, first: int) -> Array:
    """Entries where the last bits of what is stored say; those of nothing repeat the nearest one.

    Args:
        found: the entry of every value, from the least on, which is stored as ``first``.
    """
    size = 1 << (len(found) - 1).bit_length()
    behind = (size - len(found)) // 2
    whole = np.pad(found, (size - len(found) - behind, behind), "edge")
    return np.roll(whole, first - (size - len(found) - behind))


def _lines(planner: Planner, entries: Array, in_kind: str, kind: str) -> dict[str, int]:
    """Fields of a lookup whose table is lines as well; none where it is not."""
    if not planner.library.has_lines or (in_kind, kind) != ("S16", "U8"):
        return {}
    lines = as_lines(entries)
    if lines is None:
        return {}
    return {"lined": 1, "lines": planner.emitter.put(lines)}


def _rows(
    planner: Planner, step: Step, data: Item, bounds: tuple[int, int]
) -> tuple[View, View, dict[str, int]]:
    """The data with the step's axis last and in one run, its result, and fields of the kernel."""
    rank = len(data.shape)
    axis = step.attrs.axis
    axes = (*(a for a in range(rank) if a != axis % rank), axis % rank)
    view = planner.materialise(data).permuted(axes)
    loops = merged_axes(view.shape[:-1], [view.strides[:-1]])
    if len(loops) > 1 or (view.shape[-1] > 1 and view.strides[-1] != view.buffer.item):
        view = planner.emitter.contiguous(view, always=True)
        loops = merged_axes(view.shape[:-1], [view.strides[:-1]])
    item = planner.define(step, Item(data.shape, *bounds, stored=("S32", 0)))
    item.view = compact(("S32", 0), item.shape, axes)
    fields = {"rows": loops[0][0], "columns": view.shape[-1], "in_stride": loops[0][1][0]}
    fields |= {"out_stride": 4 * view.shape[-1], "in_type": number(view.buffer.type)}
    return view, item.view, fields


@rule("nn.integer_softmax")
def integer_softmax(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows along the last axis."""
    data, table = args
    if table.data is None:
        return False
    entries = np.maximum(table.data.astype(np.int64), 0)
    columns = data.shape[step.attrs.axis]
    if int(entries.max(initial=0)) * columns >= 1 << 31:
        return False
    bits = step.attrs.out_bits
    view, out, fields = _rows(planner, step, data, (0, 1 << bits))
    in_bytes = view.buffer.type == "U8" and int(entries.max()) < 1 << 24
    together = max(1, min(fields["rows"], _TOGETHER // columns))
    scratch = planner.emitter.scratch(8 * columns * together + 256)
    planner.emitter.step(
        "softmax",
        [view],
        [out, scratch],
        table=planner.emitter.put(entries.astype(np.int32)),
        entries=len(entries),
        in_bytes=int(in_bytes),
        bytes=planner.emitter.put(_bytes_of(entries)) if in_bytes else 0,
        together=together,
        out_bits=bits,
        scratch=Address(scratch),
        **fields,
    )
    return True


def _bytes_of(entries: Array) -> Array:
    """The low, middle and high bytes of the entries of every difference of bytes."""
    every = np.pad(entries[:256], (0, max(256 - len(entries), 0)), "edge")
    return np.asarray(every >> np.array([[0], [8], [16]]) & 255, np.uint8)


@rule("nn.integer_standardize")
def integer_standardize(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Rows along the last axis, where 62 bits hold every product."""
    attrs: Any = step.attrs
    (data,) = args
    columns = data.shape[attrs.axis]
    largest = max(abs(data.low), abs(data.high))
    spread = (columns * largest) ** 2 + attrs.epsilon
    top = 2 * columns * largest << (attrs.out_bits + attrs.root_bits + 1)
    if spread << (2 * attrs.root_bits) >= 1 << 62 or top >= 1 << 61 or not columns:
        return False
    bound = output_bound(columns, attrs.out_bits)
    if bound >= 1 << 30:
        return False
    view, out, fields = _rows(planner, step, data, (-bound, bound))
    planner.emitter.step(
        "standardize",
        [view],
        [out],
        zero=view.buffer.zero,
        epsilon=attrs.epsilon,
        root_bits=attrs.root_bits,
        out_bits=attrs.out_bits,
        centred=int(attrs.centred),
        most=bound,
        **fields,
    )
    return True
