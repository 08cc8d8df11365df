"""Mutated ONNX files through the importer: a typed error or a right import, in 5 CPU s and 1 GB.

    python -m tests.compiler.frontend.fuzz_onnx                 2,000 files
    python -m tests.compiler.frontend.fuzz_onnx --only 1234     one of them, with its outcome
    python -m tests.compiler.frontend.fuzz_onnx --count 200 --seed 7
    python -m tests.compiler.frontend.fuzz_onnx --compare       numbers against onnxruntime too

File *i* of a seed is always the same. Workers are processes limited to 1 GB of address space and
to 5 s of CPU time for a file. Every tenth file also goes through ``qsearch show``, which must
answer with an exit code and no traceback.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.compiler.frontend.mutations import MUTATIONS, ModelFile

CPU_S = 5.0
# Only for a worker that waits for something: the CPU time says nothing about it.
WALL_S = 600.0
BYTES = 1 << 30
CLI_EVERY = 10
# A worker starts anew now and then, so that what one file leaves behind cannot hide in the next.
FILES_PER_WORKER = 250


@dataclass(frozen=True)
class Outcome:
    """What became of one file: "imported", "refused", or what must not happen."""

    index: int
    mutation: str
    status: str
    detail: str = ""
    seconds: float = 0.0

    @property
    def allowed(self) -> bool:
        return self.status in ("imported", "refused")


@cache
def seeds() -> tuple[bytes, ...]:
    """Models to mutate: ONNX's own single-node cases and some small networks."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = [case.model.SerializeToString() for case in collect_testcases(None)]
    small = sorted(data for data in found if len(data) < 4000)
    return (*small[:: max(len(small) // 150, 1)], *(tiny_network(i) for i in range(40)))


def tiny_network(seed: int) -> bytes:
    """Convolutions, normalization, a residual and a classifier, all of a few elements."""
    rng = np.random.default_rng(seed)
    weights: list[onnx.TensorProto] = []

    def weight(name: str, *shape: int) -> str:
        weights.append(numpy_helper.from_array(rng.normal(size=shape).astype("f4"), name))
        return name

    nodes = [
        helper.make_node("Conv", ["x", weight("w0", 4, 3, 3, 3)], ["c0"], pads=[1, 1, 1, 1]),
        helper.make_node(
            "BatchNormalization",
            ["c0", *(weight(f"bn{i}", 4) for i in range(4))],
            ["b0"],
        ),
        helper.make_node("Relu", ["b0"], ["r0"]),
        helper.make_node("MaxPool", ["r0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node(
            "Conv", ["p0", weight("w1", 4, 1, 3, 3)], ["c1"], group=4, pads=[1, 1, 1, 1]
        ),
        helper.make_node("Add", ["c1", "p0"], ["a"]),
        helper.make_node("GlobalAveragePool", ["a"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", weight("w2", 5, 4), weight("b2", 5)], ["y"], transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])],
        weights,
    )
    version = int(rng.choice([11, 13, 17, 21]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8)
    return bytes(model.SerializeToString())


def mutated(index: int, seed: int, folder: Path) -> tuple[str, Path]:
    """File ``index`` of a seed: the mutation's name and the path."""
    rng = np.random.default_rng([seed, index])
    names = list(MUTATIONS)
    name = names[index % len(names)]
    pool = seeds()
    model = onnx.ModelProto.FromString(pool[int(rng.integers(len(pool)))])
    file = ModelFile(model, folder)
    MUTATIONS[name](file, rng)
    return name, file.write()


def import_one(path: Path, compare: bool = False) -> tuple[str, str]:
    """Load a file and look at what came: ("imported" | "refused" | "broken", detail)."""
    import compiler
    from compiler.errors import CompilerError
    from compiler.frontend.from_onnx.load import load
    from compiler.ir.well_formed import well_formed

    try:
        mod, params = load(path)
    except CompilerError as error:
        return "refused", f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
    except MemoryError:
        return "broken", "MemoryError"
    except Exception as error:
        return "broken", f"{type(error).__name__}: {error}"[:300]
    problems = well_formed(mod)
    if problems:
        return "broken", f"not well formed: {problems[0]}"
    names = [p.name_hint for p in mod["main"].params]
    if len(set(names)) != len(names) or not set(params) <= set(names):
        return "broken", "parameters without a name of their own"
    again = compiler.parse(compiler.text(mod))
    if not compiler.structural_equal(again, mod):
        return "broken", "the text does not give the module back"
    if compare:
        from tests.compiler.frontend.ort_oracle import disagreement

        different = disagreement(path, mod, params)
        return ("broken", different) if different else ("imported", "")
    return "imported", ""


def show(model: str) -> int:
    """Exit code of ``qsearch show``."""
    from qsearch.cli.main import run as command

    return command(["show", model])


def show_one(path: Path) -> tuple[str, str]:
    """The same file at the command line."""
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = show(str(path))
    text = err.getvalue()
    if "Traceback" in text or "unforeseen" in text or code not in (0, 2):
        return "broken", f"qsearch show: exit {code}, {text[:200]}"
    return ("imported" if code == 0 else "refused"), ""


def work(first: int, last: int, seed: int, compare: bool) -> None:
    """A worker: one line before each file and one after it."""
    import compiler.frontend.from_onnx.load
    import compiler.ops  # noqa: F401

    seeds()
    # What a command imports counts once, not for the first file that meets it.
    with redirect_stdout(StringIO()):
        show("digits")
    if not compare:
        # onnxruntime alone reserves more than that.
        resource.setrlimit(resource.RLIMIT_AS, (BYTES, BYTES))
    for index in range(first, last):
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root) / "model"
            folder.mkdir()
            name, path = mutated(index, seed, folder)
            print(json.dumps({"begin": index, "mutation": name}), flush=True)
            start = time.process_time()
            signal.setitimer(signal.ITIMER_PROF, CPU_S)  # SIGPROF ends this process
            status, detail = import_one(path, compare)
            if index % CLI_EVERY == 0 and status in ("imported", "refused"):
                shown, why = show_one(path)
                if shown != status:
                    status, detail = "broken", why or f"import {status}, qsearch show {shown}"
            signal.setitimer(signal.ITIMER_PROF, 0.0)
            seconds = time.process_time() - start
            line = {"end": index, "status": status, "detail": detail, "seconds": seconds}
            print(json.dumps(line), flush=True)


def run(first: int, last: int, seed: int = 0, compare: bool = False) -> Iterator[Outcome]:
    """Outcomes of files ``first`` to ``last - 1``; a lost worker costs one file."""
    while first < last:
        batch_end = min(first + FILES_PER_WORKER, last)
        for outcome in _run_worker(first, batch_end, seed, compare):
            yield outcome
            first = outcome.index + 1


def _run_worker(first: int, last: int, seed: int, compare: bool) -> Iterator[Outcome]:
    module = "tests.compiler.frontend.fuzz_onnx"
    command = [sys.executable, "-W", "ignore", "-m", module, *(["--compare"] if compare else [])]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[3]
    worker = subprocess.Popen(
        [*command, "--work", str(first), str(last), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=root,
        env={**environment, "PYTHONPATH": str(root)},
    )
    assert worker.stdout is not None
    assert worker.stderr is not None
    current, name = first, ""
    try:
        while True:
            ready, _, _ = select.select([worker.stdout], [], [], WALL_S)
            if not ready:
                yield Outcome(current, name, "hang", f"no news for {WALL_S:.0f} s")
                return
            line = worker.stdout.readline()
            if not line:
                worker.wait()
                if worker.returncode == -signal.SIGPROF:
                    yield Outcome(current, name, "hang", f"more than {CPU_S:.0f} s of CPU time")
                elif current < last:
                    why = worker.stderr.read().decode(errors="replace")[-400:]
                    yield Outcome(current, name, "crash", f"exit {worker.returncode}: {why}")
                return
            message: dict[str, Any] = json.loads(line)
            if "begin" in message:
                current, name = message["begin"], message["mutation"]
            else:
                yield Outcome(
                    current, name, message["status"], message["detail"], message["seconds"]
                )
                current += 1
    finally:
        worker.kill()
        worker.wait()
        worker.stdout.close()
        worker.stderr.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="number of one file")
    parser.add_argument("--compare", action="store_true", help="run imports, and onnxruntime too")
    parser.add_argument("--work", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(*options.work, options.seed, options.compare)
        return 0
    first = 0 if options.only is None else options.only
    last = options.count if options.only is None else options.only + 1
    outcomes = []
    for outcome in run(first, last, options.seed, options.compare):
        outcomes.append(outcome)
        if not outcome.allowed or options.only is not None:
            print(f"file {outcome.index} {outcome.mutation}: {outcome.status} {outcome.detail}")
    counts = Counter(outcome.status for outcome in outcomes)
    slowest = max(outcomes, key=lambda o: o.seconds)
    print(
        f"{len(outcomes)} files: {dict(sorted(counts.items()))}; slowest {slowest.seconds:.2f} s "
        f"(file {slowest.index}, {slowest.mutation})"
    )
    return 0 if all(outcome.allowed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
