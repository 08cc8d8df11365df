"""Products: their operands and bounds, dense layers and matrix products.

Convolutions are depthwise, or products by runs of a window; transposed ones go by phases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

import numpy as np

from compiler.errors import PlanError
from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array
from compiler.targets.engine.epilogue import put_epilogue, repeated
from compiler.targets.engine.layouts import MOST_IMAGES, channels_last
from compiler.targets.engine.library import Library
from compiler.targets.engine.packing import (
    FILLED_ROWS,
    crossed_term,
    depthwise_columns,
    dot_unit,
    has_four_bits,
    least_columns,
    pack_depthwise,
    pack_four_bits,
    pack_product,
    product_scratch,
    rows_together,
    vectors_of,
    wide_steps,
)
from compiler.targets.engine.plan import MOST_ARENA
from compiler.targets.engine.planner import FORM, Planner, rule
from compiler.targets.engine.steps import by_axis, number
from compiler.targets.engine.tiles import tiling
from compiler.targets.engine.transposed import convolutions_of, pixels_joined, transposed
from compiler.targets.engine.values import INT32, Chain, Epilogue, Item, Product, constant
from compiler.targets.engine.views import Address, View, compact, merged_axes

Emit = Callable[[Item, Epilogue, Product], View]
"""``emit(item, epilogue, product)`` writes the steps of a product, and says where the item lies."""

_FULL = 255
_MOST_SUM = 1 << 30
_LEAST_OF_ROW = 1 << 20
"""Weights from which products of one row by bytes are faster than those of widened ones."""
_LEAST_CROSSED = 4, 48, 16
"""Rows, columns and elements of a row from which crossed dot steps are worth the sums of rows."""


def _sums(weight: Array, data: Item) -> tuple[Array, Array, bool]:
    """Bounds of the sums of products per channel, and whether int32 holds every partial sum.

    Args:
        weight: [channels, products of one sum].
        data: stored as bytes, or as int16, from which nothing is taken.
    """
    positive = np.maximum(weight, 0).sum(axis=1, dtype=np.int64)
    negative = weight.sum(axis=1, dtype=np.int64) - positive
    low, high = min(data.low, 0), max(data.high, 0)
    bounds = positive * low + negative * high, positive * high + negative * low
    if is_byte(data):
        fits = int((positive - negative).max()) * _FULL * 2 < _MOST_SUM
    else:
        fits = bool(INT32[0] <= bounds[0].min() and bounds[1].max() <= INT32[1])
    return *bounds, fits


def weights_fit(weight: Array, data: Item) -> bool:
    """Return whether weights are bytes and data have at most 16 bits."""
    return (
        -(1 << 15) <= data.low <= data.high < 1 << 16
        and weight.size > 0
        and int(weight.min()) >= -128
        and int(weight.max()) <= 127
    )


def byte_parts(planner: Planner, data: Item, base_bits: int = 8) -> list[tuple[int, Item]]:
    """A value as a sum of bytes times factors: itself, or its low and its high bits."""
    if is_byte(data) and (base_bits == 8 or data.high < 128):
        return [(1, planner.narrowed(data))]
    planner.materialise(data)
    ends = data.low >> base_bits, data.high >> base_bits
    high = Item(data.shape, *ends, chain=Chain("SHIFT", (data,), (base_bits,)), uses=1)
    times = planner.compose("MUL", (high, constant(1 << base_bits)))
    low = Item(data.shape, 0, (1 << base_bits) - 1, chain=Chain("SUB", (data, times)), uses=1)
    return [(1, planner.narrowed(low)), (1 << base_bits, planner.narrowed(high))]


def is_byte(item: Item) -> bool:
    """Return whether a stored byte holds every value."""
    return 0 <= item.low <= item.high <= 255 or -128 <= item.low <= item.high <= 127


def constant_product(
    planner: Planner,
    step: Step,
    weight: Array,
    data: Item,
    axis: int,
    emit: Callable[[Item, Item, Epilogue, Product], View],
    layout: str = "",
) -> bool:
    """The result of a step is a product with constant weights [channels, products of one sum]: of
    int16 where int32 holds their sums, else of the bytes of the data.

    Args:
        axis: of the channels in the result.
        emit: as ``Emit``, given in front a part of the data.
    Returns:
        False where int32 does not hold the sums.
    """
    products: list[tuple[int, Item]] = []
    short = not is_byte(data) and -(1 << 15) <= data.low <= data.high < 1 << 15
    whole = short and _sums(weight, data)[2]
    for factor, part in [(1, planner.narrowed(data))] if whole else byte_parts(planner, data):
        low, high, exact = _sums(weight, part)
        if not exact:
            return False
        product = _waiting(planner, step, (low, high), axis, partial(emit, part))
        product.image_layout = layout
        products.append((factor, product))
    return _settled(planner, step, products)


def _settled(planner: Planner, step: Step, products: Sequence[tuple[int, Item]]) -> bool:
    """The sum of products, each times a factor, is the result of a step."""
    total: Item | None = None
    for factor, product in products:
        if factor != 1:
            product = planner.compose("MUL", (product, constant(factor)))
        if total is None:
            total = product
        else:
            total = planner.compose("ADD", (total, product))
    return total is not None and planner.settle(step, total)


def _waiting(
    planner: Planner,
    step: Step,
    bounds: tuple[Array, Array],
    axis: int,
    emit: Emit,
    takes_bias: bool = True,
) -> Item:
    """A product with these bounds of its sums that waits; its steps are those of ``step``."""
    low, high = bounds
    span = planner.emitter.span

    def later(item: Item, epilogue: Epilogue) -> View:
        now = planner.emitter.span
        planner.emitter.span = span
        try:
            return emit(item, epilogue, product)
        finally:
            planner.emitter.span = now

    product = Product(later, axis, low, high, takes_bias)
    shape = step.results[0].type.concrete_shape
    return Item(shape, int(low.min()), int(high.max()), product=product, uses=1)


def bias_of(planner: Planner, view: View, weight: Array, rows: int) -> tuple[Array, int]:
    """Return the term that the bias of a product with weights [channels, elements of a row] takes
    back, because kernels multiply stored bytes, and whether its dot steps are crossed."""
    library, (columns, length) = planner.library, weight.shape
    sizes = zip((rows, columns, length), _LEAST_CROSSED)
    crossed = library.crosses and view.buffer.type == "U8" and all(n >= most for n, most in sizes)
    crossed = crossed and wide_steps(weight[:, None], library) is None
    if view.buffer.type == "U8":
        shift = library.activation_shift
    else:
        shift = 0
    bias = (shift - view.buffer.zero) * weight.astype(np.int64).sum(axis=1)
    return bias + crossed_term(weight, library) if crossed else bias, int(crossed)


def _taken_as(runs: Array, rows: int, library: Library) -> tuple[str, int]:
    """Choose the form of weights [channels, runs, elements of a run] for rows of bytes, and the
    number of wide steps that narrow ones end with: see step.h."""
    many = rows == 1 == runs.shape[1] and 0 < library.nibbles <= runs.size
    if many and has_four_bits(runs[:, 0]):
        return "FOUR_BITS", 0
    if (wide := wide_steps(runs, library)) is not None:
        return "NARROW_PAIRS", wide
    of_row = rows == 1 and library.has_narrow and runs.size >= _LEAST_OF_ROW
    return "BYTES_OF_ROW" if of_row else "ANY_WEIGHTS", 0


def write_product(
    planner: Planner,
    runs: Array,
    groups: int,
    fields: dict[str, Any],
    source: View,
    target: View,
    places: dict[str, Any],
) -> None:
    """One product step with constant weights [channels, runs, elements of a run]."""
    emitter = planner.emitter
    library = planner.library
    columns = len(runs) // groups
    if max(16 - columns, 0) * groups * prod(runs.shape[1:]) > MOST_ARENA // 4:
        raise PlanError("the engine would need GiB for columns of zeros", fix=FORM.fix)
    split = runs.reshape(groups, columns, *runs.shape[1:])
    kind = source.buffer.type
    rows = places["height"] * places["width"]
    crossed = fields.get("crossed", 0)
    taken = kind == "U8" and not crossed
    how, wide = _taken_as(runs, rows, library) if taken else ("ANY_WEIGHTS", 0)
    narrow = number(how)
    unit = dot_unit(kind, library, narrow > 0)
    split = np.pad(split, ((0, 0),) * 3 + ((0, -runs.shape[2] % 4 * crossed),))
    tiled = tiling(library, kind, groups, columns, runs.shape[2], places)
    if tiled:
        unit = tiled.unit
        places = places | tiled.fields
        split = np.pad(split, ((0, 0),) * 3 + ((0, tiled.length - runs.shape[2]),))
    if how == "FOUR_BITS":
        packed = np.concatenate([pack_four_bits(one[:, 0], library) for one in split])
    else:
        eights = how != "BYTES_OF_ROW" and (kind == "U8" or library.widens)
        packed = np.concatenate(
            [pack_product(one, unit, library, eights, tiled is not None) for one in split]
        )
    steps = -(-split.shape[3] // unit) * runs.shape[1] + crossed
    copies = library.columns_outside or (kind == "U8" and not narrow)
    size = product_scratch(rows, steps, library) if copies else 0
    scratch = emitter.scratch(tiled.scratch if tiled else size)
    emitter.step(
        "gemm",
        [source],
        [target, scratch],
        macs=rows * runs.size,
        constants=packed.size,
        groups=groups,
        columns=columns,
        type=number(kind),
        seg_items=runs.shape[2],
        weight=emitter.put(packed),
        weight_group=len(packed) // groups,
        narrow=narrow,
        wide=wide,
        scratch=Address(scratch),
        **places,
        **fields,
    )


# ---- dense and matrix products ----------------------------------------------------------------


@rule("nn.dense", "nn.matmul")
def dense(planner: Planner, step: Step, args: list[Item]) -> bool:
    """A product of rows with constant weights."""
    attrs: Any = step.attrs
    data, kernel = args
    if step.name == "nn.matmul" and attrs.transpose_a:
        return False
    if kernel.data is None or kernel.data.ndim != 2:
        return False
    by_column = step.name == "nn.matmul" and not attrs.transpose_b
    weight = kernel.data.T if by_column else kernel.data
    if not weights_fit(weight, data):
        return False

    def emit(part: Item, item: Item, epilogue: Epilogue, product: Product) -> View:
        return _write_rows(planner, weight, part, item, (epilogue, product))

    last = len(step.results[0].type.shape) - 1
    return constant_product(planner, step, weight, data, last, emit)


def _write_rows(
    planner: Planner, weight: Array, data: Item, item: Item, ends: tuple[Epilogue, Product]
) -> View:
    emitter = planner.emitter
    shape = item.shape
    source = planner.materialise(data)
    if source.shape[-1] > 1 and source.strides[-1] != source.buffer.item:
        source = emitter.contiguous(source, always=True)
    out = emitter.allocate(item, tuple(range(len(shape))))
    rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]], 2)
    if len(rows) > 2:
        source = emitter.contiguous(source, always=True)
        rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]], 2)
    if len(rows) > 2:  # images with a border, which their reader then adds itself
        out = compact(item.storage, shape)
        item.border = None
        rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]], 2)
    bias, crossed = bias_of(planner, source, weight, rows[0][0] * rows[1][0])
    fields = put_epilogue(planner, *ends, item, 1, bias) | {"crossed": crossed}
    write_product(
        planner,
        weight[:, None, :],
        1,
        fields,
        source,
        out,
        {
            "in_row": rows[0][1][0],
            "in_pixel": rows[1][1][0],
            "out_row": rows[0][1][1],
            "out_pixel": rows[1][1][1],
            "height": rows[0][0],
            "width": rows[1][0],
            "seg_y": 1,
            "seg_x": 1,
        },
    )
    return out


@rule("nn.batch_matmul")
def batch_matmul(planner: Planner, step: Step, args: list[Item]) -> bool:
    """The right operand is packed when it is there; constants are packed like activations."""
    left, right = args
    length = left.shape[1 if step.attrs.transpose_a else 2]
    if not all(-(1 << 14) <= x.low <= x.high < 1 << 14 for x in args):
        return False
    if length * 128 * _FULL * 2 >= 1 << 30:
        return False
    lefts = byte_parts(planner, left)
    rights = byte_parts(planner, right, 7)
    parts = [(fa * fb, _batches(planner, step, a, b)) for fa, a in lefts for fb, b in rights]
    return _settled(planner, step, parts)


def _batches(planner: Planner, step: Step, left: Item, right: Item) -> Item:
    """A product of bytes that waits for its epilogue."""
    attrs: Any = step.attrs
    columns = step.results[0].type.concrete_shape[2]
    a = planner.materialise(left)
    b = planner.materialise(right)
    a = a.permuted((0, 2, 1)) if attrs.transpose_a else a
    b = b.permuted((0, 2, 1)) if attrs.transpose_b else b
    ends = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
    low, high = (np.full(columns, a.shape[2] * end) for end in (min(ends), max(ends)))

    def emit(item: Item, epilogue: Epilogue, product: Product) -> View:
        return _write_batches(planner, item, epilogue, product, a, b)

    return _waiting(planner, step, (low, high), 2, emit, takes_bias=False)


def _write_batches(
    planner: Planner, item: Item, epilogue: Epilogue, product: Product, a: View, b: View
) -> View:
    emitter = planner.emitter
    library = planner.library
    batch, rows, columns = item.shape
    length = a.shape[2]
    if length > 1 and a.strides[2] != 1:
        a = emitter.contiguous(a, always=True)
    out = emitter.allocate(item, (0, 1, 2))
    places = {"height": 1, "width": rows, "in_row": 0, "in_pixel": a.strides[1]}
    places |= {"seg_y": 1, "seg_x": 1}
    tiled = tiling(library, "U8", batch, columns, length, places)
    if tiled:
        steps = tiled.length // library.k_unit
    else:
        steps = -(-length // library.k_unit)
    group = vectors_of(columns) * steps * 64
    weight = emitter.scratch(batch * group)
    bias = emitter.scratch(batch * vectors_of(columns) * 64)
    stride_a = a.strides[0] if a.shape[0] > 1 else 0
    emitter.step(
        "pack",
        [b],
        [weight, bias],
        in_group=b.strides[0] if b.shape[0] > 1 else 0,
        stride_k=b.strides[1],
        stride_n=b.strides[2],
        zero=b.buffer.zero,
        groups=batch,
        k=length,
        columns=columns,
        weight=Address(weight),
        weight_group=group,
        bias=Address(bias),
        comp=a.buffer.zero - library.activation_shift,
        tile=tiled.steps if tiled else 0,
    )
    ends = repeated(epilogue, product, batch)
    fields = put_epilogue(planner, *ends, item, batch, np.zeros(1, np.int64))
    size = product_scratch(rows, steps, library)
    scratch = emitter.scratch(tiled.scratch if tiled else size)
    fields |= places | (tiled.fields if tiled else {})
    fields["bias"] = Address(bias)
    emitter.step(
        "gemm",
        [a, weight, bias],
        [out, scratch],
        macs=batch * rows * columns * length,
        in_group=stride_a,
        out_pixel=out.strides[1],
        out_group=out.strides[0],
        groups=batch,
        columns=columns,
        seg_items=length,
        weight=Address(weight),
        weight_group=group,
        weight_in_arena=1,
        bias_in_arena=1,
        scratch=Address(scratch),
        **fields,
    )
    return out


# ---- convolutions --------------------------------------------------------------------------------


_MOST_SEGMENTS = 1024
_MOST_GROUPS = 1 << 16
_MOST_WINDOW = 1 << 14
"""Products of one sum of a convolution of several pixels."""


@rule("nn.conv2d")
def conv2d(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Depthwise ones by taps, all others as products over the runs of a window.

    A transposed one is such a convolution for every place modulo its stride.
    """
    attrs: Any = step.attrs
    data, kernel = args
    spread = transposed(step)
    if spread is not None:
        data = planner.item(planner.root(spread.value))
        if len(data.shape) == 6:
            view = planner.materialise(data).reshaped(
                tuple(data.shape[axis] for axis in (0, 1, 2, 4))
            )
            assert view is not None
            data = Item(view.shape, data.low, data.high, view=view)
    layout = attrs.data_layout
    out_layout = attrs.out_layout or attrs.data_layout
    if kernel.data is None:
        return False
    weight = kernel.data.transpose([attrs.kernel_layout.index(c) for c in "OIHW"])
    if not weights_fit(weight, data) or data.shape[layout.index("N")] > MOST_IMAGES:
        return False
    channels, inner, height, width = weight.shape
    if height * width > _MOST_SEGMENTS:
        return False
    depthwise = inner == 1 and attrs.groups == channels and channels > 1
    if attrs.groups > _MOST_GROUPS and not depthwise:
        return False
    flat = weight.reshape(channels, -1)
    padding = attrs.padding if spread is None else spread.padding()

    def emit(part: Item, item: Item, epilogue: Epilogue, product: Product) -> View:
        source = _bordered(planner, part, layout, padding)
        source = source.permuted([layout.index(c) for c in "NHWC"])
        out = planner.emitter.allocate(item, channels_last(out_layout))
        target = out.permuted(channels_last(out_layout))
        groups = 1 if depthwise else attrs.groups
        write = _write_depthwise if depthwise else _write_convolution
        whole = (attrs, weight, source, target)
        least = least_columns(planner.library)
        parts = convolutions_of(spread, *whole, least) if spread else [whole]
        for how, taps, one, made in parts:
            if attrs.groups == 1:
                how, taps, made = _pixels_as_channels(how, taps, made, least)
            one_run = attrs.groups == 1 and taps[0, 0].size == 1
            pixels = prod(made.shape[1:3]) if one_run else 0
            bias, crossed = bias_of(planner, source, taps.reshape(len(taps), -1), pixels)
            if depthwise:
                rows = _filled_rows(planner, how, taps, one, made)
            else:
                rows = 0
            ends = repeated(epilogue, product, len(taps) // channels)
            fields = put_epilogue(planner, *ends, item, groups, bias, rows > 0)
            fields |= {} if depthwise else {"crossed": crossed}
            write(planner, how, taps, one, made, fields)
        return out

    axis = out_layout.index("C")
    return constant_product(planner, step, flat, data, axis, emit, out_layout)


def _pixels_as_channels(
    attrs: Any, weight: Array, target: View, least: int
) -> tuple[Any, Array, View]:
    """A convolution with few channels of several pixels at once, which fill a vector.

    Their windows lie in one, with zeros where another pixel's window is; pixels that lie one behind
    the other are the channels of one of that stride.
    """
    channels, inner, height, width = weight.shape
    by = attrs.strides[1]
    pixel = channels * target.buffer.item
    if attrs.dilation[1] != 1 or target.strides[2:] != (pixel, target.buffer.item):
        return attrs, weight, target
    counts = [n for n in range(1, least // channels + 1) if target.shape[2] % n == 0]
    spans = {n: width + (n - 1) * by for n in counts}
    best = min(counts, key=lambda n: spans[n] / n, default=1)
    if best == 1 or spans[best] * inner * height > _MOST_WINDOW or spans[best] / best > 0.8 * width:
        return attrs, weight, target
    wide = np.zeros((best, channels, inner, height, spans[best]), weight.dtype)
    for place in range(best):
        wide[place, ..., place * by : place * by + width] = weight
    made = pixels_joined(target, best)
    how = replace(attrs, strides=(attrs.strides[0], best * by))
    return how, wide.reshape(best * channels, inner, height, spans[best]), made


def _bordered(planner: Planner, data: Item, layout: str, padding: Sequence[int]) -> View:
    """The data with the border that the convolution reads, starting in its corner."""
    top, left, bottom, right = padding
    view = planner.materialise(data)
    h, w, c = (layout.index(letter) for letter in "HWC")
    need = {h: (top, bottom), w: (left, right)}
    pads = [need.get(axis, (0, 0)) for axis in range(4)]
    held = data.border
    enough = not any(padding) or (
        held is not None
        and held[1] == 0
        and all(b >= x and a >= y for (b, a), (x, y) in zip(held[0], pads))
    )
    if not enough or (view.shape[c] > 1 and view.strides[c] != view.buffer.item):
        order = tuple(layout.index(letter) for letter in "NHWC")
        storage = view.buffer.storage
        made = planner.emitter.bordered(storage, data.shape, order, pads, view.buffer.zero)
        planner.emitter.copy(view, made)
        view = made
    offset = view.offset - top * view.strides[h] - left * view.strides[w]
    shape = list(view.shape)
    shape[h] += top + bottom
    shape[w] += left + right
    return View(view.buffer, offset, tuple(shape), view.strides)


def _filled_rows(planner: Planner, attrs: Any, weight: Array, source: View, target: View) -> int:
    """Output rows together in depthwise kernels that fill registers; 0 where there are none."""
    sides = {*weight.shape[2:]}
    strides = {*attrs.strides}
    even = len(sides) == len(strides) == 1 and tuple(attrs.dilation) == (1, 1)
    if planner.library.depthwise_block == 1 or not even:
        return 0
    unit = dot_unit(source.buffer.type, planner.library)
    rows = min(FILLED_ROWS[unit].get((*sides, *strides), 0), planner.library.depthwise_block)
    if rows <= target.shape[1]:
        return rows
    return 0


def _write_depthwise(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    emitter = planner.emitter
    library = planner.library
    channels, _, height, width = weight.shape
    (sy, sx), (dy, dx), block = attrs.strides, attrs.dilation, fields.get("block", 1)
    unit = dot_unit(source.buffer.type, library)
    together = rows_together(height, sy, dy, target.shape[1], unit)
    if block > 1:
        together = _filled_rows(planner, attrs, weight, source, target)
    elif library.columns_outside:
        together = 1
    lines = (together - 1) * sy + height
    packed = pack_depthwise(weight[:, 0], sy, together, block, unit, library)
    fields |= {"weight": emitter.put(packed), "block": block}
    columns = depthwise_columns(target.shape[2], width, sx, dx, block)
    for one, made in zip(source.images(), target.images()):
        scratch = emitter.scratch(columns * -(-lines // unit) * block * 64)
        emitter.step(
            "depthwise",
            [one],
            [made, scratch],
            macs=prod(made.shape) * height * width,
            constants=packed.size,
            type=number(one.buffer.type),
            channels=channels,
            together=together,
            scratch=Address(scratch),
            **by_axis(kernel=(height, width), stride=(sy, sx), dilation=(dy, dx)),
            **one.fields_to(made),
            **fields,
        )


def _write_convolution(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    channels, inner, height, width = weight.shape
    groups = attrs.groups
    (sy, sx), (dy, dx) = attrs.strides, attrs.dilation
    taps = weight.transpose(0, 2, 3, 1)
    # The taps of a window's row lie one behind the other: one run.
    joined = dx == 1 and source.strides[2] == inner * source.buffer.item and groups == 1
    runs = taps.reshape(channels, height, width * inner)
    if not joined:
        runs = taps.reshape(channels, height * width, inner)
    for one, made in zip(source.images(), target.images()):
        write_product(
            planner,
            runs,
            groups,
            fields,
            one,
            made,
            one.fields_to(made)
            | {
                "in_row": one.strides[0] * sy,
                "in_pixel": one.strides[1] * sx,
                "in_group": inner * one.strides[2],
                "out_group": channels // groups * made.strides[2],
                "seg_y": height,
                "seg_x": 1 if joined else width,
                "seg_row": one.strides[0] * dy,
                "seg_pixel": one.strides[1] * dx,
            },
        )
