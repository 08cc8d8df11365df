"""CPU time of every product by tiles, and by dot steps of single rows: what sets the limits.

    python -m tests.benchmarks.bench_tiles [--models NAME …] [--isa amx] [--rounds 20]

For every product of the networks of products.py: its sizes, the least CPU microseconds of both
choices over rounds in turns, which one the planner takes, and "other" where the other one is
faster by a tenth. ``QSEARCH_ENGINE_TILES`` sets the limits of the planner (engine/tiles.py).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from compiler.ir.module import IRModule
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas, load_library
from compiler.targets.engine.steps import layout
from compiler.targets.engine.tiles import TILES_VARIABLE
from tests.benchmarks.bench_engine import float_and_integers
from tests.benchmarks.machine import machine
from tests.benchmarks.products import PRODUCTS, TRUE_SIZE, model_of

Array = np.ndarray[Any, Any]
LIMITS = {"tiles": "rows=2,columns=1,saved=0,products=1", "rows": "rows=0"}
"""The settings that make every product take one choice."""


@contextmanager
def limits(text: str) -> Iterator[None]:
    """Plan with other limits."""
    before = os.environ.get(TILES_VARIABLE)
    os.environ[TILES_VARIABLE] = text
    try:
        yield
    finally:
        del os.environ[TILES_VARIABLE]
        if before is not None:
            os.environ[TILES_VARIABLE] = before


def products(engine: EngineExecutor) -> list[dict[str, int]]:
    """Numbers and fields of the products of a plan."""
    names = layout()[0]["gemm"]
    return [
        {"step": step} | dict(zip(names, map(int, row)))
        for step, (row, info) in enumerate(zip(engine.plan.rows, engine.plan.infos))
        if info.kind == "gemm"
    ]


def compared(mod: IRModule, given: Array, isa: str, rounds: int) -> list[tuple[Any, ...]]:
    """(sizes, groups, microseconds by tiles, by rows, choice of the planner) of every product."""
    engines = {}
    for name, text in LIMITS.items():
        with limits(text):
            engines[name] = EngineExecutor(mod, isa=isa)
    chosen = products(EngineExecutor(mod, isa=isa))
    best = {name: np.full(len(engine.steps), np.inf) for name, engine in engines.items()}
    for _ in range(rounds):
        for name, engine in engines.items():
            best[name] = np.minimum(best[name], engine.profile([given], rounds=1))
    rows = []
    for tiled, single, own in zip(*map(products, engines.values()), chosen, strict=True):
        sizes = (
            tiled["height"] * tiled["width"],
            tiled["columns"],
            tiled["seg_y"] * tiled["seg_x"],
            tiled["seg_items"],
        )
        times = (1e6 * best[name][each["step"]] for name, each in zip(best, (tiled, single)))
        rows.append((sizes, tiled["groups"], *times, "tiles" if own["tile"] else "rows"))
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each product."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    known = [*PRODUCTS, *TRUE_SIZE]
    parser.add_argument("--models", nargs="*", default=[*PRODUCTS, "resnet50"], choices=known)
    parser.add_argument("--isa", default=available_isas()[0])
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    if not load_library(options.isa).tile_steps:
        print(f"{options.isa} has no tiles here")
        return 2
    print(machine())
    print("network        rows columns   runs x length groups   tiles us    rows us  chosen")
    for name in options.models:
        _, mod, inputs = float_and_integers(model_of(name))
        for sizes, groups, tiled, single, chosen in compared(
            mod, inputs[0], options.isa, options.rounds
        ):
            rows, columns, runs, length = sizes
            better = "tiles" if tiled < single else "rows"
            much = max(tiled, single) > 1.1 * min(tiled, single)
            print(
                f"{name:12} {rows:6} {columns:7} {runs:6} x {length:6} {groups:6} {tiled:10.1f} "
                f"{single:10.1f}  {chosen} {'other' if much and better != chosen else ''}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
