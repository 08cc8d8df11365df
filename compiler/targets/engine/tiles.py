"""Products by tiles: which steps take them, and how their rows come to the tiles.

A tile instruction multiplies rows of activations with several dot steps of weights at once: sixteen
rows with AMX (``tiled.h``), two with the i8mm extension of Arm (``isa_i8mm.h``). Products that are
small take the dot steps of one row, which begin sooner. From which size on is a matter of the
processor: ``QSEARCH_ENGINE_TILES`` sets it, and ``python -m tests.benchmarks.bench_tiles`` prints
what both cost for each step.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from compiler.errors import CodegenError
from compiler.targets.engine.library import Library
from compiler.targets.engine.packing import vectors_of
from compiler.targets.engine.steps import number

TILES_VARIABLE: Final = "QSEARCH_ENGINE_TILES"
"""Environment variable with other limits, "rows=8,columns=32", or the path of a file of such lines;
"rows=0" for no tiles."""

_UNIT: Final = 4
_ROWS = 16
_ROW_BYTES = 64
_MOST_BLOCK = 64
_LEAST_BLOCK = 4
_CACHED = 48 << 10, 1 << 20
"""Bytes of the rows of a block: where the second-level cache holds the weights, and where not."""
_POOR_STRIDE = 1024
"""Bytes between rows that share few sets of the first-level cache."""
_LONG_ROW = 256
"""Bytes of a row from which copies, which lie one behind the other, are read faster."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The least sizes of a product by tiles.

    Attributes:
        rows: of the result; 0: no tiles.
        columns: of one group.
        saved: dot steps of a sum that tiles save. A tile takes the time of two for sixteen rows,
            and the way of its sums through the cache that of four.
        products: of all groups.
    """

    rows: int = 4
    columns: int = 8
    saved: int = 4
    products: int = 1 << 14


_LIMITS: Final = {"i8mm": Limits(rows=2, columns=1, saved=0, products=1)}


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tiles of a product.

    Attributes:
        steps: dot steps of a tile.
        unit: reduced elements of a column that lie one behind the other.
        length: elements of a run with those that fill its last tile.
        scratch: bytes for copies of rows.
        fields: of the product's step.
    """

    steps: int
    unit: int
    length: int
    scratch: int
    fields: dict[str, int]


def limits_of(isa: str) -> Limits:
    """The limits for the tiles of an instruction set.

    Raises:
        CodegenError: the environment variable says something else.
    """
    limits = _LIMITS.get(isa, Limits())
    given = os.environ.get(TILES_VARIABLE, "")
    if given and "=" not in given:
        try:
            given = ",".join(Path(given).read_text(encoding="utf-8").split())
        except (OSError, UnicodeDecodeError) as error:
            raise CodegenError(f"{TILES_VARIABLE}={given!r}: {error}", fix=_FIX) from error
    for part in filter(None, given.split(",")):
        name, _, value = part.partition("=")
        if name.strip() not in {field.name for field in fields(Limits)} or not value.isdecimal():
            raise CodegenError(f"{TILES_VARIABLE} has {part!r}", fix=_FIX)
        limits = replace(limits, **{name.strip(): int(value)})
    return limits


_FIX: Final = f"it should be like {','.join(f'{f.name}={f.default}' for f in fields(Limits))}"


def tiling(
    library: Library, kind: str, groups: int, columns: int, length: int, places: dict[str, Any]
) -> Tiling | None:
    """Return the tiles of a product; None where dot steps of single rows are better.

    Args:
        kind: as which its input is stored.
        columns: of one group.
        length: elements of a run.
        places: fields of the step: height, width, in_row, in_pixel, seg_y, seg_x.
    """
    if not library.tile_steps or (kind == "S16" and not library.has_tile_registers):
        return None
    least, (height, width) = limits_of(library.isa), (places["height"], places["width"])
    rows = height * width
    runs = places["seg_y"] * places["seg_x"]
    steps = -(-length // _UNIT)
    count = -(-steps // library.tile_steps)
    saved = max(runs * (steps * min(rows, _ROWS) // _ROWS - 2 * count), 0)
    sizes = rows, columns, saved, groups * rows * columns * length * runs
    wanted = least.rows, least.columns, least.saved, least.products
    if not least.rows or any(size < most for size, most in zip(sizes, wanted)):
        return None
    if not library.has_tile_registers:
        padded = count * library.tile_steps * _UNIT
        steps = library.tile_steps
        unit = library.tile_steps * _UNIT
        return Tiling(steps, unit, padded, 0, {"tile": steps})
    # Equal tiles need few weights of 0; long runs end with less than a whole tile of them.
    tile = -(-steps // count) if count <= 8 else library.tile_steps
    by, tiles = _rows_by(kind, columns, runs, length, places)
    whole = count * tile * _UNIT * runs
    bound = _CACHED[vectors_of(columns) * 16 * whole > _CACHED[1]]
    block = min(max(bound // (_ROWS * whole), _LEAST_BLOCK), _MOST_BLOCK)
    blocks = max(round(tiles / block), -(-tiles // _MOST_BLOCK))  # equal ones, in pairs of tiles
    block = min(-(-tiles // blocks) + 1 & -2, _MOST_BLOCK)
    if kind == "S16":
        pairs = min(tiles, block)
    else:
        pairs = -(-min(tiles, block) // 2)
    if by == "BY_COPY":
        scratch = pairs * runs * count * 2 * _ROWS * _ROW_BYTES
    else:
        scratch = 0
    made = {"tile": tile, "rows_by": number(by), "block": block}
    return Tiling(tile, _UNIT, count * tile * _UNIT, scratch, made)


def _rows_by(
    kind: str, columns: int, runs: int, length: int, places: dict[str, Any]
) -> tuple[str, int]:
    """The way that needs the fewest tiles of rows, copies and poor strides counted in, and how many
    they are."""
    height = places["height"]
    width = places["width"]
    pixel = places["in_pixel"]
    row = places["in_row"]
    copied = _tiles(height * width)
    if kind == "S16":
        return "BY_COPY", copied
    slower = 1.0 + (pixel % _POOR_STRIDE == 0) + 0.25 * (runs == 1 and length > _LONG_ROW)
    ways = {"BY_COPY": (copied * (1 + 2 / vectors_of(columns)), copied)}
    lines = height * _tiles(width)
    ways["BY_LINE"] = lines * slower, lines
    if height == 1 or (pixel and row % pixel == 0 and row // pixel >= width):
        run = _tiles((height - 1) * (row // pixel if height > 1 else 0) + width)
        ways["BY_RUN"] = run * slower, run
    best = min(ways, key=lambda way: (ways[way][0], way != "BY_RUN"))
    return best, ways[best][1]


def _tiles(rows: int) -> int:
    return -(-rows // _ROWS)
