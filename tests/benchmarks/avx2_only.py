"""Runs a command as on a processor that ends at AVX2: onnxruntime sees no wider instructions.

    python -m tests.benchmarks.avx2_only -m tests.benchmarks.bench_engine --isa avx2

onnxruntime has no option for it, so a copy of its library asks another processor: every ``cpuid``
instruction becomes ``ud2``, which has the same length, and the handler of that signal answers as
the processor does, without the bits of AVX-512, AVX-VNNI and AMX. It asks while it is loaded, so
the copy is as fast as the original. Our engine takes its AVX2 kernels by ``QSEARCH_ENGINE_ISA``;
kernels of calibration and numpy stay as they are. Linux on x86-64, with a C compiler and binutils.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.benchmarks.machine import HELD_TO

CPUID, UD2 = b"\x0f\xa2", b"\x0f\x0b"

HANDLER = r"""
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

static void answer(int number, siginfo_t *info, void *context) {
  greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
  (void)info;
  if (memcmp((void *)regs[REG_RIP], "\x0f\x0b", 2) != 0) {
    signal(number, SIG_DFL);
    return;
  }
  unsigned leaf = (unsigned)regs[REG_RAX], part = (unsigned)regs[REG_RCX], a, b, c, d;
  __cpuid_count(leaf, part, a, b, c, d);
  if (leaf == 7 && part == 0) {
    b &= ~(1u << 16 | 1u << 17 | 1u << 21 | 1u << 26 | 1u << 27 | 1u << 28 | 1u << 30 | 1u << 31);
    c &= ~(1u << 1 | 1u << 6 | 1u << 11 | 1u << 12 | 1u << 14);
    d &= ~(1u << 2 | 1u << 3 | 1u << 8 | 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25);
  }
  if (leaf == 7 && part == 1) {
    a &= ~(1u << 4 | 1u << 5 | 1u << 21 | 1u << 23);
    d &= ~(1u << 4 | 1u << 5 | 1u << 10 | 1u << 19);
  }
  regs[REG_RAX] = a, regs[REG_RBX] = b, regs[REG_RCX] = c, regs[REG_RDX] = d;
  regs[REG_RIP] += 2;
}

__attribute__((constructor)) static void begin(void) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = answer;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGILL, &action, 0);
}
"""


def hide_wide_instructions(library: Path) -> int:
    """Replace every ``cpuid`` of a library, in place; how many there were."""
    listed = subprocess.run(
        ["objdump", "-h", "-j", ".text", library], capture_output=True, text=True, check=True
    )
    found = re.search(r"\.text +[0-9a-f]+ +([0-9a-f]+) +[0-9a-f]+ +([0-9a-f]+)", listed.stdout)
    assert found is not None, "no .text in the library"
    begin, offset = (int(group, 16) for group in found.groups())
    command = ["objdump", "-d", "-j", ".text", "--no-show-raw-insn", str(library)]
    count = 0
    with (
        library.open("r+b") as file,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as lines,
    ):
        assert lines.stdout is not None
        for line in lines.stdout:
            if line.rstrip().endswith("\tcpuid"):
                place = int(line.partition(":")[0], 16) - begin + offset
                file.seek(place)
                assert file.read(2) == CPUID, line
                file.seek(place)
                file.write(UD2)
                count += 1
    return count


def prepare(folder: Path) -> dict[str, str]:
    """Write the copy and the handler; the environment variables that make a process use them."""
    spec = importlib.util.find_spec("onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    copy = folder / "onnxruntime"
    shutil.copytree(Path(spec.origin).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for library in copy.rglob("onnxruntime_pybind11_state*.so"):
        hidden = hide_wide_instructions(library)
        print(f"{library.name}: {hidden} cpuid instructions replaced", file=sys.stderr)
    source, handler = folder / "handler.c", folder / "handler.so"
    source.write_text(HANDLER)
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", handler, source], check=True)
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {
        "PYTHONPATH": path,
        "LD_PRELOAD": str(handler),
        "QSEARCH_ENGINE_ISA": "avx2",
        HELD_TO: "AVX2",
    }


def main(arguments: list[str]) -> int:
    """Run Python with the arguments; its exit code."""
    with tempfile.TemporaryDirectory(prefix="qsearch-avx2-") as folder:
        variables = prepare(Path(folder))
        command = [sys.executable, *arguments]
        return subprocess.run(command, env={**os.environ, **variables}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
