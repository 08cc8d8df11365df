"""Compilers of this machine, and a network on integers as C."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from compiler import lower, relay
from compiler.ir.module import IRModule
from compiler.pipeline import evaluate
from compiler.quantize import QConfig, build_candidate, prerequisite_optimize
from compiler.runtime.artifact import Sample
from compiler.targets.c.package import CPackage, c_package
from compiler.targets.c.toolchain import Command, find_compiler, zig_compiler
from tests.needs import skip

STRICT = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
Build = Callable[[CPackage, Sequence[str]], Path]


@pytest.fixture(scope="session")
def cc() -> Command:
    """The C compiler."""
    found = find_compiler()
    if found is None:
        skip("a C compiler")
    return found


@pytest.fixture(scope="session")
def cc32(cc: Command, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """A compiler for 32-bit x86 whose programs run here."""
    folder = tmp_path_factory.mktemp("cc32")
    source, program = folder / "probe.c", folder / "probe"
    source.write_text("int main(void) { return sizeof(void *) != 4; }\n")
    zig = zig_compiler()
    for command in ((*cc, "-m32"), (*zig, "-target", "x86-linux-musl") if zig else ()):
        if not command:
            continue
        made = subprocess.run([*command, source, "-o", program], capture_output=True, check=False)
        if made.returncode == 0 and subprocess.run([program], check=False).returncode == 0:
            return command
    skip("a 32-bit C compiler")


@pytest.fixture
def exit_code(tmp_path: Path) -> Callable[[CPackage, Command, Sequence[str]], int]:
    """``exit_code(package, compiler, flags)``: what main.c of a package, compiled, ends with."""

    def run(package: CPackage, compiler: Command, flags: Sequence[str]) -> int:
        package.write(tmp_path)
        program = tmp_path / "program"
        sources = [tmp_path / name for name in package.files if name.endswith(".c")]
        made = subprocess.run(
            [*compiler, *STRICT, *flags, *sources, "-o", program],
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        assert made.stderr == ""
        done = subprocess.run([program], capture_output=True, text=True, check=False)
        assert done.stderr == ""
        return done.returncode

    return run


@pytest.fixture(scope="session")
def integral_of() -> Callable[[int], IRModule]:
    """``integral`` with weights of some bits, of which a row may be negated."""
    return lambda bits: _integral(nbit_weight=bits)


@pytest.fixture(scope="session")
def integral() -> IRModule:
    """Padded, strided and depthwise convolutions, a residual addition, pooling, a classifier."""
    return _integral()


def _integral(**options: int) -> IRModule:
    rng = np.random.default_rng(5)
    op = relay.op

    def weight(*shape: int) -> relay.Constant:
        return relay.const(rng.normal(0, 0.3, shape).astype("float32"))

    x = relay.var("x", (1, 3, 9, 11))
    first = op.nn.relu(op.nn.conv2d(x, weight(8, 3, 3, 3), padding=(1, 1), strides=(2, 2)))
    deep = op.nn.conv2d(first, weight(8, 1, 3, 3), padding=(1, 1), groups=8, channels=8)
    second = op.nn.conv2d(op.clip(deep, 0.0, 6.0), weight(8, 8, 1, 1))
    joined = op.add(op.add(second, weight(8, 1, 1)), first)
    pooled = op.nn.max_pool2d(joined, pool_size=(2, 2), strides=(2, 2), padding=(1, 1))
    flat = op.nn.batch_flatten(op.nn.global_avg_pool2d(pooled))
    body = op.add(op.nn.dense(flat, weight(10, 8)), weight(10))
    module = prerequisite_optimize(relay.module(relay.Function((x,), body)), {}, opt_level=3)
    config = QConfig.recommended(calibrate_mode="global_scale", global_scale=3.0, **options)
    made = build_candidate(module, config, None).partitioned
    assert made is not None
    return made


@pytest.fixture(scope="session")
def samples(integral: IRModule) -> list[Sample]:
    """Four inputs with the outputs of the reference."""
    rng = np.random.default_rng(6)
    inputs = [{"x": rng.normal(0, 1, (1, 3, 9, 11)).astype("float32")} for _ in range(4)]
    return [(one, evaluate(integral, one)) for one in inputs]


@pytest.fixture(scope="session")
def package(integral: IRModule, samples: list[Sample]) -> CPackage:
    """The network as C, with its first sample."""
    inputs, outputs = samples[0]
    return c_package(lower(integral).mod, "net", (list(inputs.values()), outputs))
