"""Random changes of one thing in shipped modules, every hash rewritten: verify must refute each.

    python -m tests.benchmarks.bench_mutations [--data ../shared/data] [--models NAME …]
        [--changes 60] [--seed 0] [--json FILE]

A change is one element of a constant by one step, two elements exchanged, a constant's dtype, a
float scale by its last bit, one number or word of the text, or one operand replaced by another
value. A change that reads back as the same module changes nothing and is counted apart. Every
tenth change is tried with stale hashes as well. The command exits 1 where verify accepts one.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import zipfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import qsearch
from compiler.errors import CompilerError
from compiler.ir.structural import structural_equal
from compiler.runtime.archive import MANIFEST, write_archive
from compiler.runtime.artifact import TENSORS, load_qmod
from compiler.runtime.packed import pack, unpack
from tests.benchmarks.machine import machine
from tests.benchmarks.real_models import DATA, batch_of, read_split

CONFIGS: tuple[dict[str, Any], ...] = (
    {},
    {"activation_scheme": "asymmetric", "rounding": "TONEAREST", "weight_granularity": "tensor"},
    {"calibrate_mode": "max", "requantization": "power_of_two", "avg_pool_round": False},
)
MODELS = ("digits_cnn", "fashion_mobilenet", "fashion_resnet", "fashion_vit")
STALE_EVERY = 10
Members = dict[str, bytes]


def shipped(data: Path, name: str, config: dict[str, Any], path: Path) -> Members:
    """The members of what compile writes for a trained model."""
    calib = read_split(data, name, "calib", 64, batch_of(name))
    module = qsearch.quantize(data / f"{name}.onnx", calib.images, config, dim={"N": 1})
    module.save(path)
    with zipfile.ZipFile(path) as archive:
        return {member: archive.read(member) for member in archive.namelist()}


def change(members: Members, rng: np.random.Generator) -> str:
    """Change one thing in place; what it was."""
    kinds = (_element, _element, _exchange, _dtype, change_word, change_edge)
    return kinds[rng.integers(len(kinds))](members, rng)


def _tensor(members: Members, rng: np.random.Generator) -> tuple[str, np.ndarray[Any, Any]]:
    tensors = unpack(members[TENSORS], TENSORS)
    name = sorted(tensors)[rng.integers(len(tensors))]
    return name, tensors[name]


def _replace(members: Members, name: str, array: np.ndarray[Any, Any]) -> None:
    members[TENSORS] = pack({**unpack(members[TENSORS], TENSORS), name: array})


def _element(members: Members, rng: np.random.Generator) -> str:
    """By one step; a float by its last bit."""
    name, array = _tensor(members, rng)
    flat = array.copy().reshape(-1)
    place = rng.integers(flat.size)
    if flat.dtype.kind == "f":
        flat[place] = np.nextafter(flat[place], flat.dtype.type(np.inf))
    elif flat.dtype == bool:
        flat[place] = ~flat[place]
    else:
        step = flat.dtype.type(1)
        flat[place] = flat[place] - step if flat[place] > 0 else flat[place] + step
    _replace(members, name, flat.reshape(array.shape))
    return f"element {place} of {name} {array.dtype}{array.shape}"


def _exchange(members: Members, rng: np.random.Generator) -> str:
    """Two elements change places."""
    name, array = _tensor(members, rng)
    flat = array.copy().reshape(-1)
    a, b = rng.integers(flat.size, size=2)
    flat[[a, b]] = flat[[b, a]]
    _replace(members, name, flat.reshape(array.shape))
    return f"elements {a} and {b} of {name} {array.dtype}{array.shape}"


def _dtype(members: Members, rng: np.random.Generator) -> str:
    """A wider or narrower dtype with the same values where they fit."""
    name, array = _tensor(members, rng)
    others = [d for d in ("int8", "int16", "int32", "int64") if d != str(array.dtype)]
    dtype = others[rng.integers(len(others))]
    _replace(members, name, array.astype(dtype))
    return f"dtype of {name} {array.dtype} to {dtype}"


def change_word(members: Members, rng: np.random.Generator) -> str:
    """A number or a word of the text becomes another one of its kind."""
    source = members["module.relay"].decode()
    pattern = (r"(?<![\w.%@])-?\d+(?![\w.])", r"(?<=\")[a-z]+\d*(?=\")", r"[a-z_]+(?=\()")
    found = list(re.finditer(pattern[rng.integers(len(pattern))], source))
    here, there = (found[i] for i in rng.integers(len(found), size=2))
    members["module.relay"] = (
        source[: here.start()] + there.group() + source[here.end() :]
    ).encode()
    return f"{here.group()!r} to {there.group()!r} in the text"


def change_edge(members: Members, rng: np.random.Generator) -> str:
    """An operand becomes another value."""
    source = members["module.relay"].decode()
    found = list(re.finditer(r"(?<=[(, ])%\d+(?=[,)])", source))
    here, there = (found[i] for i in rng.integers(len(found), size=2))
    members["module.relay"] = (
        source[: here.start()] + there.group() + source[here.end() :]
    ).encode()
    return f"operand {here.group()} to {there.group()}"


def rehash(path: Path, members: Members) -> None:
    """Write the members with every hash made to match."""
    write_archive(path, {name: data for name, data in members.items() if name != MANIFEST})


def stale(path: Path, members: Members) -> None:
    """Write the members with the hashes of before."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(members):
            archive.writestr(zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0)), members[name])


def verdict(path: Path) -> str:
    """What stands against the file: its checks, "unreadable", or "accepted"."""
    try:
        found = qsearch.verify(path)
    except CompilerError:
        return "unreadable"
    against = {finding.check for finding in (*found.findings, *found.record_findings)}
    return "accepted" if found.acceptable() else "+".join(sorted(against))


def measure(data: Path, name: str, changes: int, seed: int) -> dict[str, Any]:
    """One model: how its changes were found out."""
    counts: Counter[str] = Counter()
    passed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="bench-mutations-") as folder:
        original, path = Path(folder) / "original.qmod", Path(folder) / "changed.qmod"
        for number, config in enumerate(CONFIGS):
            members = shipped(data, name, config, original)
            assert verdict(original) == "accepted", f"{name} {config} is not proved itself"
            for index in range(changes // len(CONFIGS)):
                rng = np.random.default_rng([seed, number, index])
                edited = dict(members)
                what = change(edited, rng)
                if edited == members:
                    counts["nothing changed"] += 1
                    continue
                rehash(path, edited)
                found = verdict(path)
                if found == "accepted" and _same(path, original):
                    found = "nothing changed"
                elif found == "accepted":
                    passed.append(f"{name} {config}: {what}")
                counts[found] += 1
                if index % STALE_EVERY == 0:
                    stale(path, edited)
                    if verdict(path) != "hashes":
                        passed.append(f"{name} {config}, stale hashes: {what}")
    return {"model": name, "verdicts": dict(counts.most_common()), "passed": passed}


def _same(a: Path, b: Path) -> bool:
    return structural_equal(load_qmod(a).module, load_qmod(b).module)


def main() -> int:
    """Print a row per model; 1 where a change was accepted."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--changes", type=int, default=60, help="per model (60)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.models:
        rows.append(measure(args.data, name, args.changes, args.seed))
        print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 1 if any(row["passed"] for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
