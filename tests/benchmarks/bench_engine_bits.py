"""Does the engine give the bits of the reference? Random configurations of every stored model.

    python -m tests.benchmarks.bench_engine_bits [--models NAME …] [--configs 50] [--seed 0]
        [--isa vnni …] [--cpu-minutes N] [--json FILE] [--data ../shared/data]

For every model: seeded random fully integral configurations are built on real images, and each runs
on dev images, on noise and on 30 times both. The engine on every instruction set at hand, with one
thread and with two, the exact integer ONNX is compared with the reference, element by
element. A model stops after so many CPU minutes and says how many configurations it ran. Exit code
1 where any element differs; the line names model, seed, form and the fields of the configuration.

    python -m tests.benchmarks.bench_engine_bits --minutes 60 [--seed 0]

For so many minutes: random modules with limits inside their dtypes (tests/compiler/inner_limits.py)
on the engine, as integer ONNX and, the proved ones, as C. Exit code 1 where one differs from the
reference or ends in an error that its form does not know. With ``--isa``, on these kernels of the
engine only, emulated where the processor lacks them, with every product by tiles that they have.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import QuantizeError
from compiler.ir.module import IRModule
from compiler.quantize import QConfig, layer_names
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import available_isas
from compiler.targets.engine.tiles import TILES_VARIABLE
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.benchmarks.bench_emitted import Model
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, MODELS
from tests.compiler.emitted import random_qconfig
from tests.compiler.inner_limits import Found, search
from tests.compiler.targets.engine.emulated import libraries

REACH = 30.0
"""How far inputs go beyond those of the calibration."""
CALIBRATION_IMAGES = {"efficientnet_lite0": 4}
DRAWS = 20
CHUNK = 200
COMPILED = 100
"""Modules of one compilation."""

Array = np.ndarray[Any, Any]


def inputs_of(model: Model, rng: np.random.Generator) -> list[Array]:
    """A batch of images, noise, and both far outside the ranges."""
    (image,) = model.batches[int(rng.integers(len(model.batches)))].values()
    noise = rng.normal(0, 1, image.shape).astype(np.float32)
    return [a * np.float32(reach) for a in (image, noise) for reach in (1.0, REACH)]


def drawn(model: Model, rng: np.random.Generator) -> tuple[QConfig, IRModule]:
    """A configuration that can be built, and its module of integers."""
    for _ in range(DRAWS):
        config = random_qconfig(rng, layer_names(model.mod))
        try:
            candidate = model.candidate(config)
        except QuantizeError:
            continue
        assert candidate.partitioned is not None
        return config, candidate.partitioned
    raise RuntimeError(f"{model.name}: none of {DRAWS} configurations could be built")


def differing(mod: IRModule, inputs: Sequence[Array], isas: Sequence[str]) -> Counter[str]:
    """Elements that differ from the reference, by form."""
    forms: dict[str, Callable[[Array], list[Array]]] = {}
    for name, executor in (("integer", IntegerExecutor(mod)),):
        forms[name] = lambda x, run=executor.run: run([x])  # type: ignore[misc]
    engines = {isa: EngineExecutor(mod, isa=isa) for isa in isas}
    for isa, engine in engines.items():
        forms[isa] = lambda x, run=engine.run: run([x])  # type: ignore[misc]
    reference = ReferenceExecutor(mod)
    found: Counter[str] = Counter()
    wanted = [reference.run([x]) for x in inputs]
    for x, right in zip(inputs, wanted):
        for form, run in forms.items():
            found[form] += unequal(right, run(x))
    joined = [np.concatenate(outs) for outs in zip(*wanted)]
    for isa, engine in engines.items():
        batch = engine.run_batch([np.concatenate(inputs)], len(inputs), threads=2)
        found[f"{isa}, 2 threads"] += unequal(joined, batch)
        found[f"{isa}, 2 threads"] += unequal(wanted[0], engine.run_together([inputs[0]], 2))
    return found


def unequal(wanted: Sequence[Array], found: Sequence[Array]) -> int:
    """Elements that differ, in dtype or value."""
    return sum(
        a.size if a.dtype != b.dtype or a.shape != b.shape else int(np.count_nonzero(a != b))
        for a, b in zip(wanted, found, strict=True)
    )


def run_model(
    data: Path, name: str, options: argparse.Namespace, isas: Sequence[str]
) -> dict[str, Any]:
    """Every configuration of one model, within its CPU minutes."""
    begin = time.process_time()
    model = Model(data, name, 64, CALIBRATION_IMAGES.get(name, 32))
    recommended = QConfig.recommended().to_dict()
    total: Counter[str] = Counter()
    configs = 0
    for index in range(options.configs):
        if time.process_time() - begin > 60 * options.cpu_minutes:
            break
        rng = np.random.default_rng([options.seed, index])
        config, mod = drawn(model, rng)
        found = differing(mod, inputs_of(model, rng), isas)
        configs += 1
        total.update(found)
        if any(found.values()):
            changes = {k: v for k, v in config.to_dict().items() if v != recommended[k]}
            print(f"{name} --seed {options.seed} configuration {index}: {dict(+found)} {changes}")
    result = {
        "configs": configs,
        "differing": dict(total),
        "cpu_s": round(time.process_time() - begin, 1),
    }
    print(name, json.dumps(result), flush=True)
    return result


def run_modules(seed: int, minutes: float, isas: Sequence[str] = ()) -> int:
    """A line every 2,000 modules; 1 where one of them differs."""
    kernels = [each for each in libraries() if each.isa in isas]
    if isas:
        os.environ.setdefault(TILES_VARIABLE, "rows=2,columns=1,saved=0,products=1")
    until, start, found = time.monotonic() + 60 * minutes, 0, Found()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, for numbers that wrap
        while time.monotonic() < until:
            found.add(search(seed, range(start, start + CHUNK), compiled=COMPILED, kernels=kernels))
            start += CHUNK
            if start % 2000 == 0 or time.monotonic() >= until:
                told = ", ".join(f"{count} {what}" for what, count in found.counts.items())
                failed = f"{len(found.differ)} differ, {len(found.unforeseen)} unforeseen"
                print(f"seed {seed}: {told}: {failed}", flush=True)
    for place in (*found.differ, *found.unforeseen):
        print(place)
    return int(bool(found.differ or found.unforeseen))


def main(arguments: list[str] | None = None) -> int:
    """A line for each model; 1 where an element differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--configs", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--isa", nargs="*", default=[])
    parser.add_argument("--cpu-minutes", type=float, default=15.0, help="for one model")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--minutes", type=float, help="random modules instead of models")
    options = parser.parse_args(arguments)
    if options.minutes is not None:
        return run_modules(options.seed, options.minutes, options.isa)
    isas = options.isa or list(available_isas())
    print(f"seed {options.seed}, instruction sets {', '.join(isas)}", flush=True)
    rows = {name: run_model(options.data, name, options, isas) for name in options.models}
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": machine(), "models": rows}, indent=1))
    return int(any(any(row["differing"].values()) for row in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
