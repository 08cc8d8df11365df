"""Small files with huge attributes: is each refused in time and memory, or within what is allowed?

    python -m tests.benchmarks.bench_declared --count 10000 --commands 300 --seed 77

Chains of one to three operators get numbers from a list of uncomfortable ones. Each file is
verified in a child of its own of one process, ``--commands`` of them as commands as well. The ends
are counted by exit code; a file is listed that ends otherwise, or takes more than SECONDS of CPU or
GIB of memory and is not proved or refuted by a run that README allows.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from compiler.runtime.archive import write_archive
from qsearch.cli.main import run
from qsearch.limits import forked
from tests.qsearch.test_hostile_files import SAMPLES, members, source

SECONDS, GIB = 30, 2.0
ALLOWED_S, ALLOWED_GIB = 80, 6
"""The limits of a child: what README allows of a run, and reading and proving beside it."""
NUMBERS = [
    *(0, 1, 2, 3, 4, 7, 100, 5000, 1 << 15, (1 << 20) + 1, 10**9, (1 << 31) - 1, 1 << 31),
    *((1 << 32) + 5, 1 << 40, 1 << 53, 1 << 62, (1 << 63) - 1, 1 << 63, 10**25, -1, -2, -(1 << 31)),
    -(1 << 63),
]
VECTORS = [
    "expand_dims({x}, axis={s}, num_newaxis={n})",
    "split({x}, indices_or_sections={n}, axis={s}).0",
    "split({x}, indices_or_sections=[{n}, {n}], axis={s}).1",
    "repeat({x}, repeats={n}, axis={s})",
    "tile({x}, reps=[{n}, {n}])",
    "reshape({x}, newshape=[{n}, {n}])",
    "broadcast_to({x}, shape=[{n}, {n}])",
    "strided_slice({x}, begin=[{n}, {n}], end=[{n}, {n}], strides=[{n}, {n}])",
    'nn.pad({x}, cast(0, dtype="int8"), pad_width=[[{n}, {n}], [{n}, {n}]])',
    'one_hot(cast({x}, dtype="int32"), cast(1, dtype="int8"), cast(0, dtype="int8"), '
    'depth={n}, axis={s}, dtype="int8")',
    "topk({x}, k={n}, axis={s}).0",
    "cumsum({x}, axis={n})",
    "reverse({x}, axis={n})",
    "squeeze({x}, axis=[{n}])",
    "sum({x}, axis=[{n}], keepdims=True)",
    "transpose({x}, axes=[{n}, {s}])",
    'take({x}, cast({n}, dtype="int32"), axis={s}, mode="clip")',
    "concatenate(({x}, {x}), axis={n})",
    "stack(({x}, {x}), axis={n})",
    'full(cast(0, dtype="int8"), shape=[{n}, {n}], dtype="int8")',
    'add({x}, zeros(shape=[{n}, {n}], dtype="int8"))',
    'cast(fixed_point_multiply(cast({x}, dtype="int32"), multiplier={n}, shift={n}), dtype="int8")',
    'cast(right_shift(cast({x}, dtype="int32"), {n}), dtype="int8")',
    "scan(fn (%h: Tensor[(1, 4), int8]) {{ (nn.relu(%h),) }}, ({x},), (), (), length={n}, "
    "reverse_inputs=[], reverse_outputs=[]).0",
]
WINDOW = "strides=[{n}, {n}], padding=[{n}, {n}, {n}, {n}]"
IMAGES = [
    f"nn.max_pool2d({{x}}, pool_size=[{{n}}, {{n}}], dilation=[{{n}}, {{n}}], {WINDOW})",
    f"nn.avg_pool2d({{x}}, pool_size=[{{n}}, {{n}}], {WINDOW})",
    f'cast(nn.conv2d({{x}}, {{x}}, dilation=[{{n}}, {{n}}], {WINDOW}, out_dtype="int32"), '
    'dtype="int8")',
    f"cast(nn.conv2d_transpose({{x}}, {{x}}, output_padding=[{{n}}, {{n}}], {WINDOW}, "
    'out_dtype="int32"), dtype="int8")',
    'image.resize2d({x}, size=[{n}, {n}], method="nearest_neighbor")',
    "nn.upsampling({x}, scale_h={n}f, scale_w={n}f)",
    "nn.depth_to_space({x}, block_size={n})",
    "nn.space_to_depth({x}, block_size={n})",
    "nn.adaptive_avg_pool2d({x}, output_size=[{n}, {n}])",
]


def drawn(rng: np.random.Generator) -> str:
    """The text of a module, mostly of small numbers so that some get through inference."""
    image = rng.random() < 0.4
    lines, value = [], "%q"
    if image:
        lines.append("  %0 = reshape(%q, newshape=[1, 1, 2, 2]);")
        value = "%0"
    for place in range(int(rng.integers(1, 4))):
        template = str(rng.choice(IMAGES if image else VECTORS))
        huge = rng.random()
        text = template.replace("{{", "{").replace("}}", "}")
        while "{n}" in text:
            kinds = 5 if rng.random() > huge else len(NUMBERS)
            text = text.replace("{n}", str(NUMBERS[int(rng.integers(0, kinds))]), 1)
        while "{s}" in text:
            text = text.replace("{s}", str(int(rng.integers(-2, 3))), 1)
        name = f"%{place + 1}"
        lines.append(f"  {name} = {text.replace('{x}', value)};")
        value = name
    lines.append(f"  (%q, {value}).0")
    return source("\n".join(lines))


def verified(path: Path) -> dict[str, Any]:
    """The end of one verification in a child of this process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        limit()
        os.dup2(write, 1)
        os.dup2(write, 2)
        words = ["verify", str(path)]
        code = forked(words)
        if code is None:
            code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read().decode(errors="replace")
    return end_of(child, text[:600])


def command(path: Path) -> dict[str, Any]:
    """The end of one verification as a command."""
    words = [sys.executable, "-m", "qsearch", "verify", str(path)]
    with tempfile.TemporaryFile() as file:
        child = subprocess.Popen(words, stdout=file, stderr=file, preexec_fn=limit)
        end = end_of(child.pid, "")
        child.returncode = end["code"]
        file.seek(0)
        return {**end, "said": file.read().decode(errors="replace")}


def limit() -> None:
    """Limit this process to what a child may take."""
    resource.setrlimit(resource.RLIMIT_CPU, (ALLOWED_S, ALLOWED_S + 1))
    resource.setrlimit(resource.RLIMIT_AS, (ALLOWED_GIB << 30, ALLOWED_GIB << 30))


def end_of(child: int, said: str) -> dict[str, Any]:
    """Wait for a child; its exit code, CPU time and memory."""
    _, status, used = os.wait4(child, 0)
    return {
        "code": os.waitstatus_to_exitcode(status),
        "said": said,
        "cpu_s": used.ru_utime + used.ru_stime,
        "gib": used.ru_maxrss / (1 << 20),
    }


def main() -> None:
    """Draw, verify, count and list."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--commands", type=int, default=0)
    parser.add_argument("--seed", type=int, default=77)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    import qsearch.commands.verification  # noqa: F401  # children find it imported

    codes: Counter[str] = Counter()
    most = {"cpu_s": 0.0, "gib": 0.0}
    listed = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "m.qmod"
        for number in range(asked.count):
            text = drawn(np.random.default_rng([asked.seed, number]))
            write_archive(path, {**members(text), **dict(list(SAMPLES.items())[:2])})
            ends = [verified(path)]
            ends += [command(path)] if number < asked.commands else []
            for end in ends:
                codes[str(end["code"])] += 1
                refused = end["code"] == 2
                slow = refused and (end["cpu_s"] > SECONDS or end["gib"] > GIB)
                if end["code"] not in (0, 1, 2) or slow or "unforeseen" in end["said"]:
                    listed.append({"number": number, "text": text, **end})
                for name in most if refused else ():
                    most[name] = max(most[name], end[name])
    found = {"seed": asked.seed, "codes": codes, "most of those refused": most, "listed": listed}
    print(json.dumps({**found, "listed": [(e["number"], e["code"]) for e in listed]}))
    for end in listed[:10]:
        print(end["number"], end["code"], f"{end['cpu_s']:.1f} s", end["said"][:300])
        print(end["text"])
    if asked.json is not None:
        asked.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
