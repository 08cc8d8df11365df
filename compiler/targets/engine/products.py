"""Products: their operands and bounds, dense layers and matrix products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from compiler.errors import PlanError
from compiler.ir.dataflow import Step
from compiler.ops.number_format import Array
from compiler.targets.engine.epilogue import put_epilogue, repeated
from compiler.targets.engine.library import Library
from compiler.targets.engine.packing import (
    crossed_term,
    dot_unit,
    has_four_bits,
    pack_four_bits,
    pack_product,
    product_scratch,
    vectors_of,
    wide_steps,
)
from compiler.targets.engine.plan import MOST_ARENA
from compiler.targets.engine.planner import FORM, Planner, rule
from compiler.targets.engine.steps import number
from compiler.targets.engine.tiles import tiling
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


def _parts(planner: Planner, weight: Array, data: Item) -> list[tuple[int, Item]]:
    """The operand of a product with constant weights [channels, products of one sum]: int16 as a
    whole where int32 holds their sums, else as a sum of bytes.
    """
    whole = not is_byte(data) and -(1 << 15) <= data.low <= data.high < 1 << 15
    if whole and _sums(weight, data)[2]:
        return [(1, planner.narrowed(data))]
    return byte_parts(planner, data)


def weights_fit(weight: Array, data: Item) -> bool:
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
        return [(1, planner.narrowed(data))]
    planner.materialise(data)
    ends = data.low >> base_bits, data.high >> base_bits
    high = Item(data.shape, *ends, chain=Chain("SHIFT", (data,), (base_bits,)), uses=1)
    times = planner.compose("MUL", (high, constant(1 << base_bits)))
    low = Item(data.shape, 0, (1 << base_bits) - 1, chain=Chain("SUB", (data, times)), uses=1)
    return [(1, planner.narrowed(low)), (1 << base_bits, planner.narrowed(high))]


def is_byte(item: Item) -> bool:
    """Whether a stored byte holds every value."""
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
    """The result of a step is a product with constant weights [channels, products of one sum].

    Args:
        axis: of the channels in the result.
        emit: as ``Emit``, given in front a part of the data.
    Returns:
        False where int32 does not hold the sums.
    """
    products: list[tuple[int, Item]] = []
    for factor, part in _parts(planner, weight, data):
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
        total = product if total is None else planner.compose("ADD", (total, product))
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
        now, planner.emitter.span = planner.emitter.span, span
        try:
            return emit(item, epilogue, product)
        finally:
            planner.emitter.span = now

    product = Product(later, axis, low, high, takes_bias)
    shape = step.results[0].type.concrete_shape
    return Item(shape, int(low.min()), int(high.max()), product=product, uses=1)


def zero_term(planner: Planner, view: View, weight: Array) -> Array:
    """What the bias takes back, because kernels multiply stored bytes."""
    sums = weight.astype(np.int64).sum(axis=1)
    shift = planner.library.activation_shift if view.buffer.type == "U8" else 0
    return np.asarray((shift - view.buffer.zero) * sums)


def bias_of(planner: Planner, view: View, weight: Array, rows: int) -> tuple[Array, int]:
    """What the bias of a product with weights [channels, elements of a row] takes back, and
    whether its dot steps are crossed."""
    library, (columns, length) = planner.library, weight.shape
    sizes = zip((rows, columns, length), _LEAST_CROSSED)
    crossed = library.crosses and view.buffer.type == "U8" and all(n >= most for n, most in sizes)
    crossed = crossed and wide_steps(weight[:, None], library) is None
    bias = zero_term(planner, view, weight)
    return bias + crossed_term(weight, library) if crossed else bias, int(crossed)


def takes_four_bits(runs: Array, library: Library) -> bool:
    """Whether a product of one row by weights [channels, runs, elements] takes them in 4 bits."""
    return 0 < library.nibbles <= runs.size and runs.shape[1] == 1 and has_four_bits(runs[:, 0])


def _taken_as(runs: Array, rows: int, library: Library) -> tuple[str, int]:
    """How rows of bytes take their weights [channels, runs, elements of a run], and how many wide
    steps narrow ones end with: see step.h."""
    if rows == 1 and takes_four_bits(runs, library):
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
    emitter, library = planner.emitter, planner.library
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
        unit, places = tiled.unit, places | tiled.fields
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
    if kernel.data is None or kernel.data.ndim != 2 or data.data is not None:
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
    emitter, shape = planner.emitter, item.shape
    source = planner.materialise(data)
    if source.shape[-1] > 1 and source.strides[-1] != source.buffer.item:
        source = emitter.contiguous(source, always=True)
    out = emitter.allocate(item, tuple(range(len(shape))))
    rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]], 2)
    if len(rows) > 2:
        source = emitter.contiguous(source, always=True)
        rows = merged_axes(shape[:-1], [source.strides[:-1], out.strides[:-1]], 2)
    if len(rows) > 2:  # images with a border, which their reader then adds itself
        item.border, out = None, compact(item.storage, shape)
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
    lefts, rights = byte_parts(planner, left), byte_parts(planner, right, 7)
    parts = [(fa * fb, _batches(planner, step, a, b)) for fa, a in lefts for fb, b in rights]
    return _settled(planner, step, parts)


def _batches(planner: Planner, step: Step, left: Item, right: Item) -> Item:
    """A product of bytes that waits for its epilogue."""
    attrs: Any = step.attrs
    columns = step.results[0].type.concrete_shape[2]
    a, b = planner.materialise(left), planner.materialise(right)
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
    emitter, library = planner.emitter, planner.library
    batch, rows, columns = item.shape
    length = a.shape[2]
    if length > 1 and a.strides[2] != 1:
        a = emitter.contiguous(a, always=True)
    out = emitter.allocate(item, (0, 1, 2))
    places = {"height": 1, "width": rows, "in_row": 0, "in_pixel": a.strides[1]}
    places |= {"seg_y": 1, "seg_x": 1}
    tiled = tiling(library, "U8", batch, columns, length, places)
    steps = tiled.length // library.k_unit if tiled else -(-length // library.k_unit)
    group = vectors_of(columns) * steps * 64
    weight, bias = emitter.scratch(batch * group), emitter.scratch(batch * vectors_of(columns) * 64)
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
