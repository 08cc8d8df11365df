"""Real models as C: the same bits as the reference, in every build, and what they cost.

    python -m tests.benchmarks.bench_c_export [--data DIR] [--models NAME …] [--inputs 100]
                                              [--config K=V,…] [--json FILE]

For every model: quantized fully_integral with the recommended configuration on calibration images,
fused, lowered, written as C; then compiled with -std=c99 -Wall -Wextra -Werror -pedantic in three
builds (optimised; AddressSanitizer and UBSan; 32-bit x86) and run on real images of the dev split.
Columns: outputs that differ from the numpy reference in any bit, per build; messages; arena
bytes, the largest set of values alive at once, their ratio; CPU milliseconds an image. The command
exits 1 where a bit differs, a compiler or sanitizer says anything, the arena exceeds 1.15
of its bound, or a build is missing.

Speed is CPU time of one thread, in turns with onnxruntime float in one process, of the C compiled
with plain -O3 and with -O3 -march=native; the ratios are those of the medians. The C compiler's
CPU seconds are those of plain -O3. The first line names the instruction set.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler import lower, quantize
from compiler.frontend.from_onnx.load import load
from compiler.ir.module import IRModule
from compiler.targets.c.c_types import c_type
from compiler.targets.c.executor import CExecutor
from compiler.targets.c.package import CPackage, c_package
from compiler.targets.c.toolchain import EXACT_FLAGS, Command, find_compiler, zig_compiler
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.benchmarks.machine import alternated_ms, machine
from tests.benchmarks.real_models import DATA, MODELS, read_split

Array = NDArray[Any]
STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
LARGEST_RATIO = 1.15
CALIBRATION_IMAGES = 32
TIMED = 15
EXACT = tuple(flag for flag in EXACT_FLAGS if flag.startswith("-f"))
SPEEDS = {"plain": ("-O3",), "native": ("-O3", "-march=native")}


def integral_module(folder: Path, name: str, changes: str) -> IRModule:
    """The model on integers, partitioned."""
    mod, params = load(folder / f"{name}.onnx")
    mod = quantize.prerequisite_optimize(mod, params, opt_level=3)
    images = read_split(folder, name, "calib", CALIBRATION_IMAGES).images
    batches = [{"input": images[i : i + 1]} for i in range(len(images))]
    config = quantize.qconfig_from_text(changes)
    annotated, _ = quantize.mark(mod, config)
    stats = quantize.calibration_stats(annotated, batches)
    scales = quantize.activation_scales(stats, config)
    made = quantize.build_candidate(mod, config, scales).partitioned
    assert made is not None
    return made


def driver(package: CPackage) -> str:
    """A program that reads inputs from stdin until they end and writes outputs to stdout."""
    entry = package.entries["main"]
    (given,), (made,) = entry.params, entry.results
    arena = "&arena, " if entry.placement.arena_bytes else ""
    state = f"static {package.name}_arena arena;\n" if arena else ""
    return (
        f'#include "{package.name}.h"\n#include <stdio.h>\n\n'
        f"static {c_type(given.dtype)} given[{given.size}];\n"
        f"static {c_type(made.dtype)} made[{made.size}];\n{state}\n"
        "int main(void)\n{\n"
        "    while (fread(given, sizeof given, 1, stdin) == 1) {\n"
        f"        {entry.symbol}({arena}given, made);\n"
        "        if (fwrite(made, sizeof made, 1, stdout) != 1) return 2;\n"
        "    }\n    return 0;\n}\n"
    )


def builds(cc: Command) -> dict[str, tuple[str, ...]]:
    """Compiler and flags by name of the build."""
    found = {
        "O3": (*cc, "-O3"),
        "sanitized": (*cc, "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    }
    probe = ["-x", "c", "-", "-o", "/dev/null"]
    m32 = [*cc, "-m32", *probe]
    works = subprocess.run(
        m32, input=b"int main(void){return 0;}", capture_output=True, check=False
    )
    zig = zig_compiler()
    if works.returncode == 0:
        found["32-bit"] = (*cc, "-m32", "-O2")
    elif zig is not None:
        found["32-bit"] = (*zig, "-target", "x86-linux-musl", "-O2")
    return found


def outputs_of(
    command: Sequence[str], sources: Sequence[Path], images: Array, output: Array
) -> tuple[int, str, float]:
    """(outputs that differ, messages, CPU seconds of compilation) of one build."""
    program = sources[0].parent / "program"
    begin = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = subprocess.run(
        [*command, *STRICT, *sources, "-o", program], capture_output=True, text=True, check=False
    )
    end = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = end.ru_utime - begin.ru_utime + end.ru_stime - begin.ru_stime
    if made.returncode != 0:
        return output.size, made.stderr, seconds
    done = subprocess.run([program], input=images.tobytes(), capture_output=True, check=False)
    messages = made.stderr + done.stderr.decode(errors="replace")
    if len(done.stdout) != output.nbytes:
        return output.size, f"{messages}{len(done.stdout)} bytes came out", seconds
    bits = np.dtype(f"u{output.dtype.itemsize}")
    found = np.frombuffer(done.stdout, bits)
    return int((found != output.reshape(-1).view(bits)).sum()), messages, seconds


def measure(folder: Path, name: str, inputs: int, changes: str) -> dict[str, Any]:
    """One row of the table."""
    module = integral_module(folder, name, changes)
    images = read_split(folder, name, "dev", inputs).images
    reference = ReferenceExecutor(module)
    outputs = np.concatenate([reference.run({"input": image[None]})[0] for image in images])
    begin = time.process_time()
    package = c_package(lower(module, target="c").mod, name, ([images[:1]], [outputs[:1]]))
    core = package.entries["quantized_main"].placement
    row: dict[str, Any] = {
        "model": name,
        "inputs": len(images),
        "generate_s": time.process_time() - begin,
        "source_bytes": sum(map(len, package.files.values())),
        "kernels": package.kernels,
        "arena_bytes": core.arena_bytes,
        "lower_bound_bytes": core.lower_bound_bytes,
        "ratio": core.arena_bytes / max(core.lower_bound_bytes, 1),
        "differing": {},
        "messages": {},
        "compile_s": {},
    }
    cc = find_compiler()
    assert cc is not None, "no C compiler"
    with tempfile.TemporaryDirectory(prefix="qsearch-bench-") as scratch:
        package.write(Path(scratch))
        sources = [Path(scratch) / f"{package.name}.c", Path(scratch) / "driver.c"]
        sources[1].write_text(driver(package), encoding="utf-8")
        for build, command in builds(cc).items():
            differing, messages, seconds = outputs_of(command, sources, images, outputs)
            row["differing"][build] = differing
            row["messages"][build] = messages
            row["compile_s"][build] = seconds
        check = [Path(scratch) / f"{package.name}.c", Path(scratch) / "main.c"]
        program = Path(scratch) / "check"
        subprocess.run([*cc, *STRICT, "-O1", *check, "-o", program], check=True)
        row["self_check"] = subprocess.run([program], check=False).returncode
    executors = {name: CExecutor(module, flags=(*flags, *EXACT)) for name, flags in SPEEDS.items()}
    peer = OrtExecutor((folder / f"{name}.onnx").read_bytes())
    sample = {"input": images[:1]}
    sides = {k: partial(side.run, sample) for k, side in {**executors, "float": peer}.items()}
    row["ms"] = alternated_ms(sides, TIMED)
    return row


def reached(row: dict[str, Any]) -> bool:
    """Whether everything that must be shown of a model is."""
    return (
        len(row["differing"]) == 3
        and not any(row["differing"].values())
        and not any(row["messages"].values())
        and row["self_check"] == 0
        and row["ratio"] <= LARGEST_RATIO
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--inputs", type=int, default=100)
    parser.add_argument("--config", default="")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(", ".join(f"{key}: {value}" for key, value in machine().items()))
    head = (
        f"{'model':<20}{'inputs':>7}{'differ O3/asan/32':>19}{'messages':>10}{'arena':>9}"
        f"{'bound':>9}{'ratio':>7}{'plain':>8}{'native':>8}{'float':>8}  / float{'cc s':>14}"
    )
    print(head)
    rows = []
    for name in args.models:
        row = measure(args.data, name, args.inputs, args.config)
        rows.append(row)
        differing = "/".join(
            str(row["differing"].get(b, "-")) for b in ("O3", "sanitized", "32-bit")
        )
        messages = sum(len(text.splitlines()) for text in row["messages"].values())
        ms = row["ms"]
        ratios = "  ".join(f"{ms[name] / ms['float']:.2f}" for name in SPEEDS)
        print(
            f"{name:<20}{row['inputs']:>7}{differing:>19}{messages:>10}{row['arena_bytes']:>9}"
            f"{row['lower_bound_bytes']:>9}{row['ratio']:>7.3f}{ms['plain']:>8.2f}"
            f"{ms['native']:>8.2f}{ms['float']:>8.2f}  {ratios}"
            f"{row['compile_s']['O3']:>9.1f}{'' if reached(row) else '  MISSED'}",
            flush=True,
        )
        for build, text in row["messages"].items():
            if text:
                print(f"  {build}: {text[:2000]}")
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=1))
    return 0 if all(map(reached, rows)) else 1


if __name__ == "__main__":
    sys.exit(main())
