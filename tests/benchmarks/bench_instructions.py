"""Instructions and bytes of code of exported C on small cores, counted and predicted.

    python -m tests.benchmarks.bench_instructions [--cores NAME …] [--fit] [--json FILE]

Each network is compiled, exported, built for the core and run once under QEMU, where an instruction
takes one nanosecond (``-icount shift=0``) and a timer is read around it. The table compares that,
and the size of the object's code, with what ``compiler/targets/c/cores.py`` predicts, for networks
that the weights were not fitted to: the shapes of MLPerf Tiny and, where ../shared/data is, the
Fashion networks. ``--fit`` counts the kernels of the other networks one by one, fits the weights
and writes ``cores.toml``. ``--cmsis-nn FOLDER`` compares RAM, flash and instructions of the shapes
of MLPerf Tiny with calls of CMSIS-NN, whose sources are in the folder, and with TFLM's arena.

Debian: qemu-system-arm qemu-system-misc gcc-arm-none-eabi libnewlib-arm-none-eabi
gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf. The fit needs scipy.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx

import compiler.targets.c
import qsearch
from compiler.pipeline import lower, tflite_file
from compiler.targets.c.cores import CORES
from compiler.targets.c.package import CPackage, c_package, footprint
from compiler.targets.c.work import KINDS, Work, work_of
from tests.benchmarks import cmsis_nn, mlperf_tiny, real_models, unseen_networks
from tests.benchmarks.unseen_networks import Network

TOO_LARGE: Final = ("vgg", "painter", "upsampler", "convnext", "sequence")
"""Of the unseen networks: more constants or memory than the boards have, or minutes under QEMU."""
REWEIGHTED: Final = 30
PACKED: Final = "densenet"
"""The one that is fitted with weights of 4 bits, too."""


@dataclass(frozen=True, slots=True)
class Board:
    """A machine of QEMU with a core.

    Attributes:
        compiler: command and flags, the same ones for code that is counted and measured.
        machine: QEMU's name of it.
        flash, ram, large: where code, data and arenas lie: address and bytes.
        per_tick: instructions for a tick of its timer.
    """

    compiler: tuple[str, ...]
    machine: str
    flash: tuple[int, int]
    ram: tuple[int, int]
    large: tuple[int, int]
    per_tick: float

    @property
    def arm(self) -> bool:
        """Whether the core is a Cortex-M."""
        return self.compiler[0].startswith("arm")


_ARM: Final = ("arm-none-eabi-gcc", "-mthumb", "-O2")
_FOUR: Final = ((0, 4 << 20), (0x20000000, 4 << 20))
BOARDS: Final = {
    "cortex-m3": Board(
        (*_ARM, "-mcpu=cortex-m3"), "mps2-an385", *_FOUR, (0x21000000, 16 << 20), 40
    ),
    "cortex-m4": Board(
        (*_ARM, "-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
        "mps2-an386", *_FOUR, (0x21000000, 16 << 20), 40,
    ),
    "cortex-m7": Board(
        (*_ARM, "-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
        "mps2-an500", *_FOUR, (0x60000000, 16 << 20), 40,
    ),
    "cortex-m33": Board(
        (*_ARM, "-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
        "mps2-an505", (0x10000000, 4 << 20), (0x38000000, 4 << 20), (0x80000000, 16 << 20), 50,
    ),
    "cortex-m55": Board(
        (*_ARM, "-mcpu=cortex-m55+nomve", "-mfloat-abi=hard"),
        "mps3-an547", (0x10000000, 512 << 10), (0x30000000, 512 << 10), (0x70000000, 64 << 20),
        31.25,
    ),
    "rv32imc": Board(
        ("riscv64-unknown-elf-gcc", "-march=rv32imc", "-misa-spec=2.2", "-mabi=ilp32",
         "-mcmodel=medany", "--specs=picolibc.specs", "-O2"),
        "virt", (0x80000000, 32 << 20), (0x82000000, 32 << 20), (0x84000000, 32 << 20), 1,
    ),
}  # fmt: skip

_ARM_START = """
#define CONTROL (*(volatile unsigned *)0xE000E010)
#define RELOAD (*(volatile unsigned *)0xE000E014)
#define LEFT (*(volatile unsigned *)0xE000E018)
static volatile unsigned wraps;
static void tick(void) { wraps++; }
static unsigned long long now(void)
{
    unsigned before, left;
    do { before = wraps; left = LEFT; } while (before != wraps);
    return ((unsigned long long)before << 24) + (0xFFFFFFu - left);
}
static void host(unsigned number, const void *what)
{
    register unsigned r0 __asm("r0") = number;
    register const void *r1 __asm("r1") = what;
    __asm volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
}
static void put(char c) { host(3, &c); }
static void fault(void) { for (;;) host(0x18, (void *)0x20024); }
static int work(void);
extern unsigned char stack_top[];
static void start(void)
{
    *(volatile unsigned *)0xE000ED88 |= 0xFu << 20; /* floats */
    __asm volatile("dsb; isb");
    RELOAD = 0xFFFFFF; LEFT = 0; CONTROL = 7;
    while (!LEFT) {}
    work();
    for (;;) host(0x18, (void *)0x20026);
}
__attribute__((section(".vectors"), used)) static const void *const vectors[16] = {
    stack_top, (void *)start, (void *)fault, (void *)fault, (void *)fault, (void *)fault,
    (void *)fault, 0, 0, 0, 0, (void *)fault, (void *)fault, 0, (void *)fault, (void *)tick,
};
"""
_RISCV_START = """
static unsigned long long now(void)
{
    unsigned high, low, again;
    do {
        __asm volatile("csrr %0, minstreth" : "=r"(high));
        __asm volatile("csrr %0, minstret" : "=r"(low));
        __asm volatile("csrr %0, minstreth" : "=r"(again));
    } while (high != again);
    return (unsigned long long)high << 32 | low;
}
static void put(char c) { *(volatile unsigned char *)0x10000000 = (unsigned char)c; }
static int work(void);
__attribute__((used)) static void begin(void)
{
    work();
    *(volatile unsigned *)0x100000 = 0x5555;
    for (;;) {}
}
__attribute__((naked, section(".vectors"), used)) static void start(void)
{
    __asm volatile("la sp, stack_top\\n call begin");
}
"""
_COUNTED = """
static unsigned long long begun, total[{count}];
static unsigned calls[{count}];
static __attribute__((noinline)) void enter(void) {{ begun = now(); }}
static __attribute__((noinline)) void leave(int k) {{ total[k] += now() - begun; calls[k]++; }}
"""
_MAIN = """
static void number(unsigned long long value)
{{
    char digits[24];
    int n = 0;
    do {{ digits[n++] = (char)('0' + value % 10); value /= 10; }} while (value);
    while (n) put(digits[--n]);
    put(' ');
}}
static int work(void)
{{
    const unsigned long long first = now();
    {call};
    number(now() - first);
    for (int k = 0; k < {count}; ++k) {{ number(total[k]); number(calls[k]); }}
    {more}
    put('\\n');
    return 0;
}}
"""
_LINKED = """MEMORY {{
 flash (rx) : ORIGIN = {flash[0]}, LENGTH = {flash[1]}
 ram (rwx) : ORIGIN = {ram[0]}, LENGTH = {ram[1]}
 large (rwx) : ORIGIN = {large[0]}, LENGTH = {large[1]}
}}
SECTIONS {{
 .vectors : {{ KEEP(*(.vectors)) }} >flash
 .text : {{ *(.text*) }} >flash
 .rodata : {{ *(.rodata*) *(.srodata*) }} >{constants}
 .data : {{ *(.data*) *(.sdata*) }} >ram
 .bss (NOLOAD) : {{ *(.bss*) *(.sbss*) *(COMMON) }} >large
 .stack (NOLOAD) : {{ . = . + 0x10000; . = ALIGN(16); stack_top = .; }} >ram
 /DISCARD/ : {{ *(.ARM.exidx*) *(.eh_frame*) *(.comment) }}
}}
"""


_ENTRY = re.compile(r"^void \w+\([^;{=]*\)\n\{\n.*?^\}\n", re.M | re.S)
_KERNEL = re.compile(r"^static NO_INLINE void m_\w+\([^;{=]*\)\n\{\n.*?^\}\n", re.M | re.S)


FLAGS: Final = ("-std=gnu99", "-ffp-contract=off", "-w")


@dataclass(frozen=True, slots=True)
class Peer:
    """A network by calls of CMSIS-NN: instructions of a call, bytes of RAM and flash."""

    instructions: float
    ram: int
    flash: int


@dataclass(frozen=True, slots=True)
class Counted:
    """One network on one core.

    Attributes:
        instructions: of one call of its function.
        code_bytes: of its object.
        kernels: instructions of a call and bytes of each kernel, and of what unpacks constants, by
            name in C; empty where they were not counted apart.
    """

    instructions: float
    code_bytes: int
    kernels: dict[str, tuple[float, int]]


def counted(
    package: CPackage, board: Board, folder: Path, apart: bool, function: str = "main"
) -> Counted:
    """Build and run the C of a network.

    Args:
        function: the one that is called.
        apart: count its kernels one by one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    package.write(folder)
    name, text = package.name, package.files[f"{package.name}.c"]
    kernels = [*package.functions.values(), *_unpackers(text)] if apart else []
    if apart:
        macros = "".join(
            f"#define {kernel}(...) (enter(), {kernel}(__VA_ARGS__), leave({number}))\n"
            for number, kernel in enumerate(kernels)
        )
        first = re.search(r"^void ", text, re.M)
        assert first is not None
        text = text[: first.start()] + macros + text[first.start() :]
    entry = package.entries[function]
    arena = ["&arena"] if package.arena_bytes else []
    held = [f"static {name}_arena arena;"] if arena else []
    arguments = []
    for number, value in enumerate((*entry.params, *entry.results)):
        held.append(f"static _Alignas(8) unsigned char held{number}[{max(value.nbytes, 1)}];")
        arguments.append(f"(void *)held{number}")
    count = max(1, len(kernels))
    parts = [
        _COUNTED.format(count=count),
        text,
        "\n".join(held),
        _MAIN.format(
            call=f"{entry.symbol}({', '.join([*arena, *arguments])})", count=len(kernels), more=""
        ),
    ]
    numbers = ran(board, folder, "\n".join(parts))
    if len(numbers) != 1 + 2 * len(kernels):
        raise RuntimeError(f"{name} on {board.machine}: {numbers[:9]}")
    plain, program = folder / "plain.o", folder / "counted.elf"
    command = [*board.compiler, *FLAGS, "-c", str(folder / f"{name}.c"), "-o", str(plain)]
    subprocess.run(command, check=True)
    sizes = dict(_sizes(board, program))
    found = {
        kernel: (total * board.per_tick / calls, sizes.get(kernel, 0))
        for kernel, total, calls in zip(kernels, numbers[1::2], numbers[2::2])
        if calls
    }
    code = sum(size for _, size in _sizes(board, plain))
    return Counted(numbers[0] * board.per_tick, code, found)


def ran(board: Board, folder: Path, text: str, rest: Sequence[str] = ()) -> list[int]:
    """Build a program for the board and run it; the numbers that it prints.

    Args:
        text: C with the function ``work``.
        rest: further words for the compiler.
    Raises:
        subprocess.SubprocessError: it is not built, or does not end.
    """
    source, script, program = (folder / f"counted.{end}" for end in ("c", "ld", "elf"))
    source.write_text((_ARM_START if board.arm else _RISCV_START) + text)
    constants = "large" if board.flash[1] < 1 << 20 else "flash"
    script.write_text(
        _LINKED.format(flash=board.flash, ram=board.ram, large=board.large, constants=constants)
    )
    link = ("-nostartfiles", "-T", str(script), *rest, "-o", str(program))
    subprocess.run([*board.compiler, *FLAGS, str(source), *link], check=True)
    kind = "arm" if board.arm else "riscv32"
    words = [f"qemu-system-{kind}", "-machine", board.machine, "-nographic", "-monitor", "none"]
    words += ["-icount", "shift=0", "-kernel", str(program)]
    if board.arm:
        words += ["-serial", "null", "-semihosting-config", "enable=on,target=native"]
    else:
        words += ["-serial", "stdio", "-bios", "none"]
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True, timeout=600
    )
    return [int(word) for word in re.findall(r"\d+", done.stdout + done.stderr)]


def cmsis_nn_counted(model: onnx.ModelProto, board: Board, folder: Path, sources: Path) -> Peer:
    """The same shapes through CMSIS-NN."""
    folder.mkdir(parents=True, exist_ok=True)
    made = cmsis_nn.runner(model)
    built = []
    library = folder.parent / "cmsis-nn"  # one for all networks of a core
    library.mkdir(exist_ok=True)
    for target, words in cmsis_nn.objects(sources, library, (*board.compiler, *FLAGS)):
        if not target.exists():
            subprocess.run(words, check=True)
        built.append(str(target))
    text = made.text + _COUNTED.format(count=1)
    more = "number((unsigned)most_scratch); number((unsigned)failed);"
    text += _MAIN.format(call="network()", count=0, more=more)
    include = f"-I{sources / 'Include'}"
    ticks, scratch, failed = ran(board, folder, text, [*built, include, "-Wl,--gc-sections"])
    if failed:
        raise RuntimeError(f"{failed} layers of {model.graph.name} were refused by CMSIS-NN")
    code = sum(
        size
        for name, size in _sizes(board, folder / "counted.elf")
        if name.startswith("arm_") or name == "network"
    )
    return Peer(ticks * board.per_tick, made.activation_bytes + scratch, made.constant_bytes + code)


def tflm_ram(name: str, model: onnx.ModelProto, folder: Path) -> int:
    """Bytes of the arena that TFLM reports for the module's LiteRT file."""
    from tflite_micro.python.tflite_micro import runtime  # type: ignore[import-not-found]

    module = quantized(name, model, folder, "auto,requantization=tflite")
    file = tflite_file(module.module).data
    interpreter = runtime.Interpreter.from_bytes(file, arena_size=1 << 21)
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            interpreter.print_allocations()
        finally:
            os.dup2(kept, 2)
            os.close(kept)
        log.seek(0)
        found = re.search(rb"allocation total (\d+) bytes", log.read())
    assert found is not None
    return int(found[1])


def compare(cores: Sequence[str], folder: Path, sources: Path) -> list[dict[str, Any]]:
    """RAM, flash and instructions of the shapes of MLPerf Tiny beside the peers'."""
    rows = []
    print("network    core        RAM, CMSIS-NN, TFLM      flash, CMSIS-NN      M instructions")
    for name, make in mlperf_tiny.MODELS.items():
        model = make()
        package, _ = packaged(name, model, folder)
        tflm = tflm_ram(name, model, folder)
        for core in cores:
            # CMSIS-NN has integers only.
            place = folder / core / name
            ours = counted(package, BOARDS[core], place, apart=False, function="quantized_main")
            peer = cmsis_nn_counted(model, BOARDS[core], folder / core / f"{name}-cmsis", sources)
            flash = package.constant_bytes + ours.code_bytes
            rows.append({"network": name, "core": core, "ram": package.arena_bytes,
                         "cmsis_nn_ram": peer.ram, "tflm_ram": tflm, "flash": flash,
                         "cmsis_nn_flash": peer.flash, "instructions": ours.instructions,
                         "cmsis_nn_instructions": peer.instructions})  # fmt: skip
            print(f"{name:<10} {core:<10} {package.arena_bytes:8} {peer.ram:8} {tflm:8} "
                  f"{flash:8} {peer.flash:8} {ours.instructions / 1e6:8.2f} "
                  f"{peer.instructions / 1e6:8.2f}"
                  f"{ours.instructions / peer.instructions:6.2f}", flush=True)  # fmt: skip
    return rows


def _unpackers(text: str) -> list[str]:
    """The functions of a file that unpack constants."""
    return re.findall(r"^static NO_INLINE void (unpack_\w+)", text, re.M)


def _sizes(board: Board, file: Path) -> Iterable[tuple[str, int]]:
    """Functions of an object and their bytes."""
    tool = board.compiler[0].removesuffix("gcc") + "nm"
    done = subprocess.run([tool, "-S", str(file)], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        words = line.split()
        if len(words) == 4 and words[2] in "tT":
            yield words[3].split(".")[0], int(words[1], 16)


def quantized(
    name: str, model: onnx.ModelProto, folder: Path, qconfig: str = "auto"
) -> qsearch.QModule:
    """What ``compile`` makes of a network with samples of noise."""
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    rng = np.random.default_rng(3)
    held = {tensor.name for tensor in model.graph.initializer}
    data: dict[str, Any] = {}
    for entry in model.graph.input:
        if entry.name not in held:
            shape = [dim.dim_value or 1 for dim in entry.type.tensor_type.shape.dim]
            if entry.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
                data[entry.name] = rng.normal(size=(8, *shape[1:])).astype("float32")
            else:
                data[entry.name] = rng.integers(0, 16, (8, *shape[1:]))
    return qsearch.quantize(path, data, qconfig)


def packaged(
    name: str, model: onnx.ModelProto, folder: Path, qconfig: str = "auto"
) -> tuple[CPackage, Work]:
    """The C of a network, and its work."""
    lowered = lower(quantized(name, model, folder, qconfig).module, target="c").mod
    return c_package(lowered, name), footprint(lowered).work


def fitted(rows: Sequence[tuple[list[float], float]], least: float) -> dict[str, float]:
    """Weights of the kinds, none below 0, with small relative errors.

    Least absolute errors, by reweighted least squares: kernels whose work the kinds describe badly
    move the others' weights less.

    Args:
        rows: counts of the kinds, and what they take together.
        least: below it an error counts as if the sum were that.
    """
    from scipy.optimize import nnls

    counts, wanted = np.array([c for c, _ in rows]), np.array([w for _, w in rows])
    trust = np.maximum(wanted, least) ** -0.75
    even = np.ones(len(wanted))
    for _ in range(REWEIGHTED):
        weights, _ = nnls(counts * (trust * even)[:, None], wanted * trust * even)
        errors = np.abs(counts @ weights - wanted) * trust
        even = np.maximum(errors, np.median(errors) / 10 + 1e-9) ** -0.5
    return {kind: round(float(w), 3) for kind, w in zip(KINDS, weights) if w > 5e-4}


def layers() -> onnx.ModelProto:
    """Dense layers alone."""
    graph = Network(9)
    x, width = graph.input(1, 300), 300
    for out in (96, 200, 24, 160):
        x, width = graph.dense(x, width, out, "Relu"), out
    return graph.model(graph.dense(x, width, 250))


def fit(cores: Sequence[str], folder: Path) -> None:
    """Count kernels, fit the weights, write ``cores.toml``."""
    table = "# Written by python -m tests.benchmarks.bench_instructions --fit\n"
    packages = {
        name: packaged(name, make(), folder)[0]
        for name, make in unseen_networks.NETWORKS.items()
        if name not in TOO_LARGE
    }
    make = unseen_networks.NETWORKS[PACKED]
    packages["layers"] = packaged("layers", layers(), folder)[0]
    packages |= {"packed": packaged("packed", make(), folder, "auto,nbit_weight=4")[0]}
    for core in cores:
        times: list[tuple[list[float], float]] = []
        places: list[tuple[list[float], float]] = []
        with ThreadPoolExecutor(2) as pool:
            runs = list(
                pool.map(
                    lambda package, core=core: counted(
                        package, BOARDS[core], folder / core / package.name, apart=True
                    ),
                    packages.values(),
                )
            )
        for (name, package), run in zip(packages.items(), runs):
            text, found = package.files[f"{name}.c"], run.kernels
            rest = dict.fromkeys(KINDS, 0.0)
            for body in _ENTRY.findall(text):
                for kind, count in work_of(body, {kernel: {} for kernel in found}).places.items():
                    rest[kind] += count
            inside = sum(found[kernel][1] for kernel in package.functions.values())
            places.append((list(rest.values()), float(run.code_bytes - inside)))
            for definition in _KERNEL.findall(text):
                kernel = definition[len("static NO_INLINE void ") : definition.index("(")]
                if kernel in found:
                    work, (instructions, size) = work_of(definition), found[kernel]
                    times.append((list(work.times.values()), instructions))
                    places.append((list(work.places.values()), float(size)))
            for unpacker in _unpackers(text):
                calls = re.findall(rf"^ +{unpacker}\(\s*[^,]+,\s+(\d+),\s+(\d+),", text, re.M)
                if calls and unpacker in found:
                    sizes, bits = np.array(calls, float).T
                    kind = "wide_unpacked" if "64" in unpacker else "unpacked"
                    one = dict.fromkeys(KINDS, 0.0)
                    one |= {kind: sizes.mean(), f"{kind}_byte": (sizes * bits).mean() / 8}
                    times.append((list(one.values()), found[unpacker][0]))
        print(f"{core}: {len(times)} kernels", flush=True)
        table += f"\n[{core}]\ncompiler = {json.dumps(' '.join(BOARDS[core].compiler))}\n"
        for key, rows, least in (("instructions", times, 1000), ("code_bytes", places, 100)):
            inner = ", ".join(f"{kind} = {weight}" for kind, weight in fitted(rows, least).items())
            table += f"{key} = {{ {inner} }}\n"
    (Path(compiler.targets.c.__path__[0]) / "cores.toml").write_text(table)


def main() -> int:
    """Fit, or compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cores", nargs="+", choices=tuple(BOARDS), default=list(BOARDS))
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--cmsis-nn", type=Path, metavar="FOLDER", help="its sources: compare")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-instructions-") as scratch:
        folder = Path(scratch)
        if args.cmsis_nn:
            rows = compare(args.cores, folder, args.cmsis_nn)
            if args.json:
                args.json.write_text(json.dumps(rows, indent=1))
            return 0
        if args.fit:
            fit(args.cores, folder)
            return 0
        models = {name: make() for name, make in mlperf_tiny.MODELS.items()}
        if real_models.DATA.is_dir():
            names = [n for n in real_models.MODELS if n.startswith("fashion")]
            models |= {name: onnx.load(real_models.DATA / f"{name}.onnx") for name in names}
        rows = []
        print("network      core         M instructions, predicted      code bytes, predicted")
        for name, model in models.items():
            package, work = packaged(name, model, folder)
            for core in args.cores:
                made = counted(package, BOARDS[core], folder / core / name, apart=False)
                told, size = CORES[core].instructions_of(work), CORES[core].code_bytes_of(work)
                rows.append({"network": name, "core": core, "instructions": made.instructions,
                             "predicted": round(told), "code_bytes": made.code_bytes,
                             "predicted_bytes": round(size)})  # fmt: skip
                print(f"{name:<18} {core:<11} {made.instructions / 1e6:8.2f} {told / 1e6:8.2f} "
                      f"{told / made.instructions - 1:+7.1%}  {made.code_bytes:8} {size:8.0f} "
                      f"{size / made.code_bytes - 1:+7.1%}", flush=True)  # fmt: skip
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
