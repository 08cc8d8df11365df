"""Random hostile files of every kind that qsearch reads: no traceback, no endless work, no lie.

    python -m tests.benchmarks.bench_forgeries [--count 10000] [--seed 0] [--kinds qmod onnx …]
        [--json FILE] [--only KIND INDEX]

qmod: members of shipped modules changed at the level of bytes, JSON, arrays, or text, every hash
rewritten; half of them dressed as an attacker would: types, samples and record made to fit. ONNX:
bytes and valid protobuf fields; what imports is diagnosed, quantized and verified. engine: changed
.qmod as above on the kernels of the engine, and on those under sanitizers. text: the IR of
a module, parsed, typed and proved. data: .npz, .npy, preprocess, settings, qconfig, space and
hardware files. Commands run as on the command line, in child processes with limits.

Counted are exit codes, and four faults: a traceback or "unforeseen"; 60 CPU s more in
one command than an honest model with inputs of the same size takes, or 5 GB; a module that is
proved while exact integers at the ends of its inputs leave a dtype or a stated bound; other
integers on the engine than on the reference, or what sanitizers find. The command exits 1 where
there is any. ``--only`` runs one again.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import onnx

from compiler.errors import CodegenError, CompilerError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.proof.derive import derive, derive_static
from compiler.proof.replay import differing_elements
from compiler.proof.work import MAX_CPU_S, check_work, declared_work
from compiler.runtime.archive import write_archive
from compiler.runtime.artifact import TENSORS, QModule, load_qmod
from compiler.runtime.packed import unpack
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from qsearch.limits import DATA_BYTES
from qsearch.search.space_file import read_space
from qsearch.settings.config import resolve
from tests.benchmarks.changed_members import change, change_edge, change_word
from tests.benchmarks.honest_files import PREPROCESS, SETTINGS, Bases, silent
from tests.benchmarks.hostile import (
    change_message,
    changed_array,
    changed_bytes,
    changed_json,
    changed_npy,
    changed_tensors,
    changed_text,
    pick,
)
from tests.benchmarks.machine import machine
from tests.compiler.proof.exact_integers import Unsupported
from tests.compiler.proof.forged import contradiction
from tests.compiler.targets.engine.forged_inputs import forged_inputs
from tests.compiler.targets.engine.test_harness import plan_bytes

MORE_CPU_S = MAX_CPU_S
CPU_S_PER_ELEMENT = 7e-6
"""Of an input: an honest model of three convolutions is compiled on 64 made-up samples in this."""
MOST_ELEMENTS = 1 << 21
MOST_BYTES = DATA_BYTES + (1 << 30)
BATCH = 250
Generator = np.random.Generator
FAULTS = ("unforeseen", "over bounds", "falsely proved", "engine differs")


@dataclass(slots=True)
class Told:
    """What one mutant came to: what was done with it, CPU seconds of each command, and faults.

    Attributes:
        honest_s: what an honest file of this size takes.
    """

    outcomes: list[str] = field(default_factory=list)
    command_s: list[float] = field(default_factory=list)
    honest_s: float = 0.0
    faults: list[tuple[str, str]] = field(default_factory=list)


Kind = Callable[["Bases", Generator, Path, Told], None]
KINDS: dict[str, Kind] = {}


def kind(name: str) -> Callable[[Kind], Kind]:
    """Register how one mutant of a kind is made and read."""

    def add(function: Kind) -> Kind:
        KINDS[name] = function
        return function

    return add


# running ----------------------------------------------------------------------------------------


def command(told: Told, *words: str) -> int:
    """A command's exit code, counted."""
    began = _cpu()
    code, said = silent(words)
    told.command_s.append(_cpu() - began)
    told.outcomes.append(f"{words[0]} {code}")
    if code not in (0, 1, 2) or "unforeseen" in said or "Traceback" in said:
        told.faults.append(("unforeseen", f"{' '.join(words)}: {said[-400:]}"))
    return code


def judge(told: Told, mod: IRModule) -> None:
    """Compare what is proved of a module with exact integers."""
    try:
        against = contradiction(mod, derive_static(mod))
    except Unsupported:
        told.outcomes.append("proved, no oracle")
        return
    told.outcomes.append("proved, checked")
    if against is not None:
        told.faults.append(("falsely proved", against))


@kind("qmod")
def qmod(bases: Bases, rng: Generator, folder: Path, told: Told) -> None:
    """A changed .qmod through ``qsearch verify``."""
    path = folder / "m.qmod"
    _write_changed(bases, rng, path)
    if command(told, "verify", str(path), "-o", str(folder / "proof.json")) == 0:
        judge(told, load_qmod(path).module)


@kind("engine")
def engine(bases: Bases, rng: Generator, folder: Path, told: Told) -> None:
    """A changed .qmod on the engine, where the reference runs it."""
    path = folder / "m.qmod"
    _write_changed(bases, rng, path)
    try:
        mod = load_qmod(path).module
        check_work(declared_work(mod))
        cases = {}
        for name in ("main", "quantized_main"):
            given, reference = forged_inputs(mod, name, rng), ReferenceExecutor(mod, name)
            with np.errstate(all="ignore"):
                cases[name] = [(each, reference.run(each)) for each in given]
    except CompilerError as error:
        told.outcomes.append(f"refused: {type(error).__name__}")
        return
    for name, pairs in cases.items():
        for isa in (None, "generic"):
            try:
                made = EngineExecutor(mod, name, isa=isa)
            except CodegenError:
                told.outcomes.append("no plan")
                break
            for given, wanted in pairs:
                with np.errstate(all="ignore"):
                    differing = differing_elements(wanted, made.run(given))[1]
                told.outcomes.append("ran")
                if differing:
                    told.faults.append(("engine differs", f"@{name}, {isa}: {differing} elements"))
        else:
            _sanitized(bases, told, [plan_bytes(made.plan, *pair) for pair in pairs], folder)


def _sanitized(bases: Bases, told: Told, plans: Sequence[bytes], folder: Path) -> None:
    path = folder / "plans"
    path.write_bytes(np.int64(len(plans)).tobytes() + b"".join(plans))
    words = ["prlimit", "--as=unlimited", str(bases.harness), str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    told.outcomes.append("sanitized")
    if done.stdout != "generic: 0 wrong\n" or done.returncode:
        told.faults.append(("engine differs", f"{done.stdout[-200:]}{done.stderr[:600]}"))


def _write_changed(bases: Bases, rng: Generator, path: Path) -> None:
    which = int(rng.integers(len(bases.qmods)))
    members = dict(bases.qmods[which])
    level = rng.random()
    if level < 0.05:
        path.write_bytes(changed_bytes(bases.archives[which], rng))
    else:
        _change_member(members, rng, level)
        if rng.random() < 0.4:
            # What the first change broke has no second one at its level.
            with contextlib.suppress(
                CompilerError, ValueError, SyntaxError, RecursionError, TokenError
            ):
                _change_member(members, rng, level)
        write_archive(path, {n: data for n, data in members.items() if n != "manifest.json"})
        if level > 0.3 and rng.random() < 0.7:
            _dress(path, rng)


def _change_member(members: dict[str, bytes], rng: Generator, level: float) -> None:
    names = sorted(name for name in members if name != "manifest.json")
    if level < 0.15:
        name = pick(rng, names)
        members[name] = changed_bytes(members[name], rng)
    elif level < 0.3:
        name = pick(rng, [n for n in names if n.endswith(".json")])
        members[name] = changed_json(members[name], rng)
    elif level < 0.6:
        members[TENSORS] = changed_tensors(members[TENSORS], rng)
    elif level < 0.8:
        source = members["module.relay"].decode(errors="replace")
        members["module.relay"] = changed_text(source, rng).encode(errors="replace")
    else:
        change(members, rng)


def _dress(path: Path, rng: Generator) -> None:
    """Types in the text, outputs of the samples and the record as the module has them now."""
    with contextlib.suppress(CompilerError, ValueError, SyntaxError):
        found = load_qmod(path)
        check_work(declared_work(found.module))
        executor = ReferenceExecutor(found.module)
        samples = [(given, executor.run(given)) for given, _ in found.samples]
        record = derive_static(found.module).to_dict() if rng.random() < 0.5 else None
        QModule(found.module, qconfig=found.qconfig, samples=samples, proof=record).save(path)


@kind("onnx")
def onnx_file(bases: Bases, rng: Generator, folder: Path, told: Told) -> None:
    """A changed ONNX file through doctor, compile and verify."""
    path, out = folder / "m.onnx", folder / "m.qmod"
    models = bases.models if rng.random() < 0.5 else bases.operators
    model = onnx.ModelProto()
    model.CopyFrom(models[pick(rng, sorted(models))])
    if rng.random() < 0.35:
        path.write_bytes(changed_bytes(model.SerializeToString(), rng))
    else:
        for _ in range(int(rng.integers(1, 3))):
            change_message(model, rng, bases.words)
        path.write_bytes(model.SerializeToString())
    told.honest_s = CPU_S_PER_ELEMENT * _input_elements(model)
    resource.setrlimit(resource.RLIMIT_CPU, (_cpu_limit(told), resource.RLIM_INFINITY))
    if command(told, "doctor", str(path)) != 0:
        return
    if command(told, "compile", str(path), "-q", "-o", str(out)) != 0:
        return
    if command(told, "verify", str(out), "-o", str(folder / "proof.json")) == 0:
        judge(told, load_qmod(out).module)


def _input_elements(model: onnx.ModelProto) -> int:
    """Elements of the declared inputs, as far as an honest file may have them."""
    shapes = [
        [dim.dim_value for dim in given.type.tensor_type.shape.dim] for given in model.graph.input
    ]
    return min(sum(math.prod(max(dim, 1) for dim in shape) for shape in shapes), MOST_ELEMENTS)


@kind("text")
def ir_text(bases: Bases, rng: Generator, folder: Path, told: Told) -> None:
    """Changed text of a module: parsed, typed, proved and tested."""
    members = pick(rng, bases.qmods)
    tensors = unpack(members[TENSORS], TENSORS)
    edited = dict(members)
    if rng.random() < 0.5:
        source = members["module.relay"].decode()
        shown = text(parse(source, external_data=tensors), show_types=False)
        edited["module.relay"] = shown.encode()
    if rng.random() < 0.6:
        for _ in range(int(rng.integers(1, 3))):
            pick(rng, (change_word, change_word, change_edge))(edited, rng)
        source = edited["module.relay"].decode()
    else:
        source = changed_text(edited["module.relay"].decode(), rng)
    try:
        mod = infer_module(parse(source, external_data=tensors))
        check_work(declared_work(mod))
        proof = derive(mod, [])
    except CompilerError as error:
        told.outcomes.append(type(error).__name__)
        return
    told.outcomes.append("proved" if proof.holds else "refuted")
    if proof.holds:
        judge(told, mod)


@kind("data")
def data_file(bases: Bases, rng: Generator, folder: Path, told: Told) -> None:
    """A changed data, preprocess, settings, qconfig, space or hardware file."""
    base = bases.folder
    name = pick(rng, sorted(bases.models))
    model, module = str(base / f"{name}.onnx"), str(base / f"{name}0.qmod")
    which = int(rng.integers(7))
    if which <= 1:
        suffix = (".npz", ".npy")[which]
        path = folder / f"d{suffix}"
        _change_data(base / f"{name}{suffix}", path, rng)
        if rng.random() < 0.5:
            command(told, "compile", model, "-q", "--calib", str(path), "-o", str(folder / "o"))
        else:
            command(told, pick(rng, ("run", "verify")), module, "--eval", str(path))
    elif which == 2:
        path = folder / "p.yaml"
        path.write_bytes(changed_text(PREPROCESS, rng).encode(errors="replace"))
        words = ("--eval", str(base / "pictures.npz"), "--preprocess", str(path))
        command(told, "run", str(base / "convolutions0.qmod"), *words)
    elif which == 3:
        suffix = pick(rng, sorted(SETTINGS))
        path = folder / f"s{suffix}"
        path.write_bytes(changed_text(SETTINGS[suffix], rng).encode(errors="replace"))
        _read(told, "settings", lambda: resolve({}, config_file=path, environment={}))
    elif which == 4:
        path = folder / "q.json"
        path.write_bytes(changed_json(json.dumps(bases.config).encode(), rng))
        if command(told, "doctor", model, "--qconfig", str(path)) == 0:
            words = ("--qconfig", str(path), "-q", "-o", str(folder / "o.qmod"))
            command(told, "compile", model, *words)
    elif which == 5:
        path = folder / "space.yaml"
        path.write_bytes(changed_text(bases.space, rng).encode(errors="replace"))
        _read(told, "space", lambda: read_space(path, ["Gemm_0", "Gemm_2"]))
    else:
        path = folder / "hw.toml"
        path.write_bytes(changed_text(bases.hardware, rng).encode(errors="replace"))
        words = ("--format", "commands", "--hw", str(path), "-o", str(folder / "c"))
        command(told, "export", module, *words)


def _read(told: Told, name: str, read: Callable[[], object]) -> None:
    try:
        read()
        told.outcomes.append(f"{name} read")
    except CompilerError:
        told.outcomes.append(f"{name} refused")


def _change_data(source: Path, path: Path, rng: Generator) -> None:
    if rng.random() < 0.4:
        path.write_bytes(changed_bytes(source.read_bytes(), rng))
    elif source.suffix == ".npy":
        path.write_bytes(changed_npy(source.read_bytes(), rng))
    else:
        with np.load(source) as held:
            arrays = {name: held[name] for name in held.files}
        key = pick(rng, sorted(arrays))
        arrays[key] = changed_array(arrays[key], rng)
        if rng.random() < 0.2:
            arrays[str(pick(rng, ("x", "y", "z", "x/y", "é")))] = arrays.pop(key)
        np.savez(path, **arrays)


# limits -----------------------------------------------------------------------------------------


def one(name: str, bases: Bases, seed: int, index: int, folder: Path) -> dict[str, Any]:
    """Make and read one mutant, within limits."""
    place = folder / f"{name}{index}"
    place.mkdir(parents=True)
    told = Told()
    began = _cpu()
    _forget_peak()
    resource.setrlimit(resource.RLIMIT_CPU, (_cpu_limit(told), resource.RLIM_INFINITY))
    try:
        KINDS[name](bases, np.random.default_rng([seed, *name.encode(), index]), place, told)
    except Exception:
        told.faults.append(("unforeseen", traceback.format_exc()[-900:]))
    taken, peak = max(told.command_s, default=_cpu() - began), _peak()
    if taken > told.honest_s + MORE_CPU_S or peak > MOST_BYTES:
        told.faults.append(("over bounds", f"{taken:.1f} CPU s, {peak >> 20} MB"))
    if not told.faults:
        shutil.rmtree(place, ignore_errors=True)
    return {
        "index": index,
        "outcomes": told.outcomes,
        "faults": told.faults,
        "cpu_s": taken,
        "peak": peak,
    }


def _cpu_limit(told: Told) -> int:
    """Seconds of this process after which a command is killed."""
    return int(time.process_time() + 2 * (MORE_CPU_S + told.honest_s)) + 5


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak() -> int:
    """Most resident memory since ``_forget_peak``, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) << 10


def batch(
    name: str, bases: Bases, seed: int, indices: Sequence[int], folder: Path
) -> list[dict[str, Any]]:
    """Mutants in one child process; a child that is killed by a limit is followed by another."""
    rows: list[dict[str, Any]] = []
    while len(rows) < len(indices):
        read, write = os.pipe()
        child = os.fork()
        if not child:
            os.close(read)
            resource.setrlimit(resource.RLIMIT_AS, (3 * MOST_BYTES, resource.RLIM_INFINITY))
            with os.fdopen(write, "w", buffering=1) as stream:
                for index in indices[len(rows) :]:
                    stream.write(json.dumps(one(name, bases, seed, index, folder)) + "\n")
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as lines:
            rows += [json.loads(line) for line in lines if line.endswith("\n")]
        _, status = os.waitpid(child, 0)
        if status:
            row: dict[str, Any] = {"index": indices[len(rows)], "outcomes": ["killed"]}
            code = os.waitstatus_to_exitcode(status)
            row |= {"faults": [("over bounds", f"killed: {code}")], "cpu_s": 0.0, "peak": 0}
            rows.append(row)
    return rows


def measure(name: str, bases: Bases, seed: int, count: int, folder: Path) -> dict[str, Any]:
    """All mutants of one kind: counts and faults."""
    rows: list[dict[str, Any]] = []
    for first in range(0, count, BATCH):
        indices = range(first, min(first + BATCH, count))
        rows += batch(name, bases, seed, indices, folder)
        for row in rows[-len(indices) :]:
            for what, shown in row["faults"]:
                print(f"{name} {row['index']}: {what}: {shown}", file=sys.stderr, flush=True)
    outcomes = Counter(outcome for row in rows for outcome in row["outcomes"])
    faults = Counter(what for row in rows for what, _ in row["faults"])
    return {
        "kind": name,
        "mutants": len(rows),
        **{what: faults[what] for what in FAULTS},
        "cpu_s": round(sum(row["cpu_s"] for row in rows), 1),
        "worst_cpu_s": round(max(row["cpu_s"] for row in rows), 2),
        "worst_mb": max(row["peak"] for row in rows) >> 20,
        "outcomes": dict(outcomes.most_common()),
        "found": [(row["index"], *fault) for row in rows for fault in row["faults"]],
    }


def main() -> int:
    """Print a row per kind; 1 where there is a fault."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=10_000, help="mutants in all (10000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs=2, metavar=("KIND", "INDEX"), help="run one mutant again")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-forgeries-") as folder:
        os.environ["QSEARCH_CACHE_DIR"] = str(Path(folder) / "cache")
        bases = Bases(Path(folder))
        if args.only:
            kept = Path(tempfile.mkdtemp(prefix="forgery-"))
            print(json.dumps(one(args.only[0], bases, args.seed, int(args.only[1]), kept)), kept)
            return 0
        rows = []
        for name in args.kinds:
            share = -(-args.count // len(args.kinds))
            rows.append(measure(name, bases, args.seed, share, Path(folder)))
            shown = {key: value for key, value in rows[-1].items() if key != "found"}
            print(json.dumps(shown), flush=True)
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    return 1 if any(row[what] for row in rows for what in FAULTS) else 0


if __name__ == "__main__":
    sys.exit(main())
