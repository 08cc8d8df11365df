"""Convolutions, dense layers and matrix products: operands, bounds and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product as pairs
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.ir.dataflow import Step
from compiler.ops.nn.conv2d_transpose import turned_kernel
from compiler.targets.engine.elementwise import put_epilogue
from compiler.targets.engine.layouts import MOST_IMAGES, channels_last
from compiler.targets.engine.packing import (
    dot_steps,
    is_narrow,
    pack_depthwise,
    pack_product,
    product_scratch,
    rows_together,
    vectors_of,
)
from compiler.targets.engine.plan import MOST_ARENA, Address
from compiler.targets.engine.planner import FORM, Planner, rule
from compiler.targets.engine.transposed import Transposed, transposed
from compiler.targets.engine.values import Chain, Epilogue, Item, Product, constant
from compiler.targets.engine.views import View, merged_axes

Array = NDArray[Any]

_MOST_SEGMENTS = 1024
_MOST_GROUPS = 1 << 16
_FULL = 255


def _sums(weight: Array, data: Item) -> tuple[Array, Array, bool]:
    """Bounds of the sums of products per channel, and whether int32 holds every partial sum.

    Args:
        weight: [channels, products of one sum].
    """
    positive = np.maximum(weight, 0).sum(axis=1, dtype=np.int64)
    negative = weight.sum(axis=1, dtype=np.int64) - positive
    low, high = min(data.low, 0), max(data.high, 0)
    most = int((positive - negative).max(initial=0)) * _FULL * 2
    return positive * low + negative * high, positive * high + negative * low, most < 1 << 30


def _fits(weight: Array, data: Item) -> bool:
    """Whether weights are bytes and data have at most 16 bits."""
    return (
        -(1 << 15) <= data.low <= data.high < 1 << 16
        and weight.size > 0
        and int(weight.min()) >= -128
        and int(weight.max()) <= 127
    )


def byte_parts(planner: Planner, data: Item, base_bits: int = 8) -> list[tuple[int, Item]]:
    """A value as a sum of bytes times factors: itself, or its low and its high bits."""
    if is_byte(data) and (base_bits == 8 or data.high < 128):
        return [(1, planner.in_bytes(data))]
    planner.materialise(data)
    ends = data.low >> base_bits, data.high >> base_bits
    high = Item(data.shape, *ends, chain=Chain("SHIFT", (data,), (base_bits,)), uses=1)
    times = planner.compose("MUL", (high, constant(1 << base_bits)))
    low = Item(data.shape, 0, (1 << base_bits) - 1, chain=Chain("SUB", (data, times)), uses=1)
    return [(1, planner.in_bytes(low)), (1 << base_bits, planner.in_bytes(high))]


def is_byte(item: Item) -> bool:
    """Whether a stored byte holds every value."""
    return 0 <= item.low <= item.high <= 255 or -128 <= item.low <= item.high <= 127


def _settle_parts(planner: Planner, step: Step, parts: Sequence[tuple[int, Item | None]]) -> bool:
    """The sum of products of parts is the result of a step."""
    total: Item | None = None
    for factor, product in parts:
        if product is None:
            return False
        if factor != 1:
            product = planner.compose("MUL", (product, constant(factor)))
        total = product if total is None else planner.compose("ADD", (total, product))
    return total is not None and planner.settle(step, total)


def _waiting(
    planner: Planner,
    step: Step,
    weight: Array,
    data: Item,
    axis: int,
    emit: Callable[[Item, Epilogue, Product], View],
    layout: str = "",
) -> Item | None:
    """A product that waits for its epilogue."""
    low, high, exact = _sums(weight, data)
    if not exact:
        return None
    shape = step.results[0].type.concrete_shape
    bounds = int(low.min()), int(high.max())
    span = planner.emitter.span

    def later(item: Item, epilogue: Epilogue) -> View:
        now, planner.emitter.span = planner.emitter.span, span
        try:
            return emit(item, epilogue, product)
        finally:
            planner.emitter.span = now

    product = Product(later, axis, low, high)
    return Item(shape, *bounds, product=product, image_layout=layout, uses=1)


def _zero_term(planner: Planner, view: View, weight: Array) -> Array:
    """What the bias takes back, because kernels multiply stored bytes."""
    sums = weight.astype(np.int64).sum(axis=1)
    return np.asarray((planner.library.activation_shift - view.buffer.zero) * sums)


# ---- convolutions -----------------------------------------------------------------------------


@rule("nn.conv2d", "nn.conv2d_transpose")
def conv2d(planner: Planner, step: Step, args: list[Item]) -> bool:
    """Depthwise ones by taps, all others as products over the runs of a window.

    A transposed one is such a convolution for every place modulo its stride.
    """
    attrs: Any = step.attrs
    data, kernel = args
    spread = transposed(step)
    if spread is not None:
        data = planner.item(planner.root(spread.value))
    layout, out_layout = attrs.data_layout, attrs.out_layout or attrs.data_layout
    if kernel.data is None or data.data is not None or len(data.shape) != 4:
        return False
    if sorted(layout) != sorted("NCHW") or sorted(out_layout) != sorted("NCHW"):
        return False
    if sorted(attrs.kernel_layout) != sorted("OIHW"):
        return False
    turned = step.name == "nn.conv2d_transpose"
    letters = "IOHW" if turned else "OIHW"
    weight = kernel.data.transpose([attrs.kernel_layout.index(c) for c in letters])
    weight = turned_kernel(weight, attrs.groups) if turned else weight
    if not _fits(weight, data) or data.shape[layout.index("N")] > MOST_IMAGES:
        return False
    channels, inner, height, width = weight.shape
    if height * width > _MOST_SEGMENTS:
        return False
    depthwise = inner == 1 and attrs.groups == channels and channels > 1
    if attrs.groups > _MOST_GROUPS and not depthwise:
        return False
    flat = weight.reshape(channels, -1)
    padding = attrs.padding if spread is None else spread.padding()

    def product_of(part: Item) -> Item | None:
        def emit(item: Item, epilogue: Epilogue, product: Product) -> View:
            source = _bordered(planner, part, layout, padding)
            source = source.permuted([layout.index(c) for c in "NHWC"])
            out = planner.emitter.allocate(item, channels_last(out_layout))
            target = out.permuted(channels_last(out_layout))
            groups = 1 if depthwise else attrs.groups
            write = _write_depthwise if depthwise else _write_convolution
            whole = [(attrs, weight, source, target)]
            parts = whole if spread is None else _phases(spread, attrs, weight, source, target)
            for how, taps, one, made in parts:
                bias = _zero_term(planner, source, taps.reshape(channels, -1))
                fields = put_epilogue(planner, epilogue, product, item, groups, bias)
                write(planner, how, taps, one, made, fields)
            return out

        return _waiting(planner, step, flat, part, out_layout.index("C"), emit, out_layout)

    parts = [(factor, product_of(part)) for factor, part in byte_parts(planner, data)]
    return _settle_parts(planner, step, parts)


def _phases(
    spread: Transposed, attrs: Any, weight: Array, source: View, target: View
) -> Iterator[tuple[Any, Array, View, View]]:
    """Attributes, weight, source and target of the convolutions of a transposed one.

    Args:
        source: batch, rows, columns, channels, with ``spread.padding()`` around them.
        target: of the whole result, in the same order.
    """
    top, left, _, _ = spread.padding()
    rows, columns = spread.rows, spread.columns
    for (y, row), (x, column) in pairs(enumerate(rows.phases()), enumerate(columns.phases())):
        taps = weight[:, :, row.taps][:, :, :, column.taps]
        if not taps.size:
            taps = np.zeros_like(weight[:, :, :1, :1])
        offset = source.offset + (top + row.offset) * source.strides[1]
        offset += (left + column.offset) * source.strides[2]
        corner = View(source.buffer, offset, source.shape, source.strides)
        made = target.sliced(1, y, target.shape[1], rows.stride)
        made = made.sliced(2, x, target.shape[2], columns.stride)
        how = replace(attrs, strides=(1, 1), dilation=(row.step, column.step))
        yield how, taps, corner, made


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
    if not enough or (view.shape[c] > 1 and view.strides[c] != 1):
        order = tuple(layout.index(letter) for letter in "NHWC")
        made = planner.emitter.bordered(
            (view.buffer.type, view.buffer.zero), data.shape, order, pads, view.buffer.zero
        )
        planner.emitter.copy(view, made)
        view = made
    offset = view.offset - top * view.strides[h] - left * view.strides[w]
    shape = list(view.shape)
    shape[h] += top + bottom
    shape[w] += left + right
    return View(view.buffer, offset, tuple(shape), view.strides)


def _images(source: View, target: View) -> list[tuple[View, View]]:
    """Source and target of every image, without the batch axis."""

    def image(view: View, number: int) -> View:
        offset = view.offset + number * view.strides[0]
        return View(view.buffer, offset, view.shape[1:], view.strides[1:])

    return [(image(source, n), image(target, n)) for n in range(source.shape[0])]


def _write_depthwise(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    emitter, library = planner.emitter, planner.library
    channels, _, height, width = weight.shape
    (sy, sx), (dy, dx) = attrs.strides, attrs.dilation
    together = rows_together(height, sy, dy, target.shape[1], library)
    lines = (together - 1) * sy + height
    packed = pack_depthwise(weight[:, 0], sy, together, library)
    fields["weight"] = emitter.put(packed)
    columns = (target.shape[2] - 1) * sx + (width - 1) * dx + 1
    for one, made in _images(source, target):
        scratch = emitter.scratch(columns * -(-lines // library.k_unit) * 64)
        emitter.step(
            "depthwise",
            [one.buffer],
            [made.buffer, scratch],
            macs=prod(made.shape) * height * width,
            constants=packed.size,
            source=Address(one.buffer, one.offset),
            in_row=one.strides[0],
            in_pixel=one.strides[1],
            out=Address(made.buffer, made.offset),
            out_row=made.strides[0],
            out_pixel=made.strides[1],
            height=made.shape[0],
            width=made.shape[1],
            channels=channels,
            kernel_y=height,
            kernel_x=width,
            stride_y=sy,
            stride_x=sx,
            dilation_y=dy,
            dilation_x=dx,
            together=together,
            scratch=Address(scratch),
            **fields,
        )


def _write_convolution(
    planner: Planner, attrs: Any, weight: Array, source: View, target: View, fields: dict[str, Any]
) -> None:
    channels, inner, height, width = weight.shape
    groups = attrs.groups
    (sy, sx), (dy, dx) = attrs.strides, attrs.dilation
    taps = weight.transpose(0, 2, 3, 1)
    # The taps of a window's row lie one behind the other: one run of bytes.
    joined = dx == 1 and source.strides[2] == inner and groups == 1
    runs = taps.reshape(channels, height, width * inner)
    if not joined:
        runs = taps.reshape(channels, height * width, inner)
    for one, made in _images(source, target):
        _product(
            planner,
            runs,
            groups,
            fields,
            one.buffer,
            made.buffer,
            {
                "source": Address(one.buffer, one.offset),
                "in_row": one.strides[0] * sy,
                "in_pixel": one.strides[1] * sx,
                "in_group": inner * one.strides[2],
                "out": Address(made.buffer, made.offset),
                "out_row": made.strides[0],
                "out_pixel": made.strides[1],
                "out_group": channels // groups * made.strides[2],
                "height": made.shape[0],
                "width": made.shape[1],
                "seg_y": height,
                "seg_x": 1 if joined else width,
                "seg_row": one.strides[0] * dy,
                "seg_pixel": one.strides[1] * dx,
            },
        )


def _product(
    planner: Planner,
    runs: Array,
    groups: int,
    fields: dict[str, Any],
    source: Any,
    target: Any,
    places: dict[str, Any],
) -> None:
    """One product step with constant weights [channels, runs, elements of a run]."""
    emitter, library = planner.emitter, planner.library
    columns = len(runs) // groups
    if max(16 - columns, 0) * groups * prod(runs.shape[1:]) > MOST_ARENA // 4:
        raise CodegenError("the engine would need GiB for columns of zeros", fix=FORM.fix)
    split = runs.reshape(groups, columns, *runs.shape[1:])
    narrow = is_narrow(runs, library)
    packed = np.concatenate([pack_product(one, library, narrow) for one in split])
    steps = dot_steps(runs.shape[2], library) * runs.shape[1]
    rows = places["height"] * places["width"]
    scratch = emitter.scratch(0 if narrow else product_scratch(rows, steps, library))
    emitter.step(
        "gemm",
        [source],
        [target, scratch],
        macs=rows * runs.size,
        constants=packed.size,
        groups=groups,
        columns=columns,
        seg_bytes=runs.shape[2],
        weight=emitter.put(packed),
        weight_group=len(packed) // groups,
        narrow=int(narrow),
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
    if kernel.data is None or kernel.data.ndim != 2 or data.data is not None:
        return False
    by_column = step.name == "nn.matmul" and not attrs.transpose_b
    weight = kernel.data.T if by_column else kernel.data
    if not _fits(weight, data):
        return False
    shape = step.results[0].type.concrete_shape

    def product_of(part: Item) -> Item | None:
        def emit(item: Item, epilogue: Epilogue, product: Product) -> View:
            return _write_rows(planner, weight, part, item, (epilogue, product))

        return _waiting(planner, step, weight, part, len(shape) - 1, emit)

    parts = [(factor, product_of(part)) for factor, part in byte_parts(planner, data)]
    return _settle_parts(planner, step, parts)


def _write_rows(
    planner: Planner, weight: Array, data: Item, item: Item, ends: tuple[Epilogue, Product]
) -> View:
    emitter, shape = planner.emitter, item.shape
    source = planner.materialise(data)
    if source.shape[-1] > 1 and source.strides[-1] != 1:
        source = emitter.contiguous(source, always=True)
    out = emitter.allocate(item, tuple(range(len(shape))))
    rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]])
    if len(rows) > 2:
        source = emitter.contiguous(source, always=True)
        rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]])
    rows = [(1, (0, 0))] * (2 - len(rows)) + rows
    fields = put_epilogue(planner, *ends, item, 1, _zero_term(planner, source, weight))
    _product(
        planner,
        weight[:, None, :],
        1,
        fields,
        source.buffer,
        out.buffer,
        {
            "source": Address(source.buffer, source.offset),
            "in_row": rows[0][1][0],
            "in_pixel": rows[1][1][0],
            "out": Address(out.buffer, out.offset),
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
    lefts, rights = byte_parts(planner, left), byte_parts(planner, right, 7)
    parts = [(fa * fb, _batches(planner, step, a, b)) for fa, a in lefts for fb, b in rights]
    return _settle_parts(planner, step, parts)


def _batches(planner: Planner, step: Step, left: Item, right: Item) -> Item:
    """A product of bytes that waits for its epilogue."""
    attrs: Any = step.attrs
    shape = step.results[0].type.concrete_shape
    a, b = planner.materialise(left), planner.materialise(right)
    a = a.permuted((0, 2, 1)) if attrs.transpose_a else a
    b = b.permuted((0, 2, 1)) if attrs.transpose_b else b
    ends = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
    low, high = np.array([a.shape[2] * min(ends)]), np.array([a.shape[2] * max(ends)])
    span = planner.emitter.span

    def emit(item: Item, epilogue: Epilogue) -> View:
        now, planner.emitter.span = planner.emitter.span, span
        try:
            return _write_batches(planner, item, epilogue, product, a, b)
        finally:
            planner.emitter.span = now

    bounds = np.repeat(low, shape[2]), np.repeat(high, shape[2])
    product = Product(emit, 2, *bounds, takes_bias=False)
    return Item(shape, int(low[0]), int(high[0]), product=product, uses=1)


def _write_batches(
    planner: Planner, item: Item, epilogue: Epilogue, product: Product, a: View, b: View
) -> View:
    emitter, library = planner.emitter, planner.library
    batch, rows, columns = item.shape
    length = a.shape[2]
    if length > 1 and a.strides[2] != 1:
        a = emitter.contiguous(a, always=True)
    out = emitter.allocate(item, (0, 1, 2))
    steps = dot_steps(length, library)
    group = vectors_of(columns) * steps * 64
    weight, bias = emitter.scratch(batch * group), emitter.scratch(batch * vectors_of(columns) * 64)
    stride_a = a.strides[0] if a.shape[0] > 1 else 0
    emitter.step(
        "pack",
        [b.buffer],
        [weight, bias],
        source=Address(b.buffer, b.offset),
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
    )
    # Factors repeat for every batch.
    one = Product(product.emit, 2, np.tile(product.low, batch), np.tile(product.high, batch))
    nothing = Epilogue(np.zeros(1, np.int64), *_spread(epilogue, batch, columns))
    nothing.bits, nothing.added = epilogue.bits, epilogue.added
    nothing.low, nothing.high = epilogue.low, epilogue.high
    fields = put_epilogue(planner, nothing, one, item, batch, np.zeros(1, np.int64))
    scratch = emitter.scratch(product_scratch(rows, steps, library))
    fields["bias"] = Address(bias)
    emitter.step(
        "gemm",
        [a.buffer, weight, bias],
        [out.buffer, scratch],
        macs=batch * rows * columns * length,
        source=Address(a.buffer, a.offset),
        in_pixel=a.strides[1],
        in_group=stride_a,
        out=Address(out.buffer, out.offset),
        out_pixel=out.strides[1],
        out_group=out.strides[0],
        height=1,
        width=rows,
        groups=batch,
        columns=columns,
        seg_y=1,
        seg_x=1,
        seg_bytes=length,
        weight=Address(weight),
        weight_group=group,
        weight_in_arena=1,
        bias_in_arena=1,
        scratch=Address(scratch),
        **fields,
    )
    return out


def _spread(epilogue: Epilogue, batch: int, columns: int) -> tuple[Array | None, Array | None]:
    if epilogue.multiplier is None or epilogue.shift is None:
        return None, None
    return (
        np.tile(np.broadcast_to(epilogue.multiplier, (columns,)), batch),
        np.tile(np.broadcast_to(epilogue.shift, (columns,)), batch),
    )
