"""Hostile .qmod files: each is refused within seconds and memory, by a message and an exit code."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.runtime.archive import write_archive
from compiler.runtime.npy import npy_bytes

# Imports what verify needs, then verifies each file as the command does, in a limited child.
RUNNER = """
import contextlib, io, json, os, resource, sys
import qsearch.commands.verification, qsearch.run.run_folder
from qsearch.cli.main import run
from qsearch.limits import forked

for path in sys.argv[1:]:
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.dup2(write, 1)
        os.dup2(write, 2)
        words = ["verify", path]
        code = forked(words)
        if code is None:
            code = run(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read().decode(errors="replace")[:4000]
    _, status, used = os.wait4(child, 0)
    code = os.waitstatus_to_exitcode(status)
    end = {"code": code, "said": said, "cpu_s": used.ru_utime + used.ru_stime}
    print(json.dumps({**end, "gib": used.ru_maxrss / (1 << 20)}), flush=True)
"""

QUANTIZED = "Tensor[(1, 4), int8]"


def source(core: str, *more: str, result: str = QUANTIZED) -> str:
    """A module whose core is the given lines on %q, int8 (1, 4)."""
    return f"""#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4), float32]) {{
  let %a = @quantize_inputs(%x);
  let %b = @quantized_main(%a.0);
  let %c = @dequantize_outputs(%b);
  %c
}}
def @quantize_inputs(%x: Tensor[(1, 4), float32]) {{
  %0 = clip(round(%x), a_min=-127f, a_max=127f);
  (cast(%0, dtype="int8"),)
}}
def @quantized_main(%q: {QUANTIZED}) {{
{core}
}}
def @dequantize_outputs(%r: {result}) {{
  cast(%r, dtype="float32")
}}
{"".join(more)}"""


def doubled(line: str, start: str, count: int = 60) -> str:
    """``line`` again and again, {0} the name before and {1} the name it makes."""
    names = [start, *(f"%{i}" for i in range(count))]
    return "\n".join(line.format(one, other) for one, other in pairwise(names))


CALLS = [f"def @f0(%x: {QUANTIZED}) {{ nn.relu(%x) }}\n"]
CALLS += [f"def @f{i}(%x: {QUANTIZED}) {{ @f{i - 1}(@f{i - 1}(%x)) }}\n" for i in range(1, 60)]
WIDE = '  %0 = cast(%q, dtype="int64");\n'
FIXED = "  fixed_point_multiply(%0, multiplier=1073741824, shift={})"
FUNCTIONS = "".join(
    f"  let %f{i} = fn (%x) {{ {'(%x, %x)' if not i else f'(%f{i - 1}, %f{i - 1})'} }};\n"
    for i in range(60)
)
SECOND = "Tensor[(1, 4), int64]"

ROW = "  strided_slice({0}, begin=[0, 0], end=[1, 4], strides=[1, 1])"
IMAGE = "  %0 = reshape(%q, newshape=[1, 1, 2, 2]);\n"
CORNER = (
    "  %8 = strided_slice({0}, begin=[0, 0, 0, 0], end=[1, 1, 2, 2]);\n"
    "  reshape(%8, newshape=[1, 4])"
)
ZERO = '  %7 = cast(0, dtype="int8");\n'
SPREAD = "(" + ", ".join(["%q"] * 4000) + ")"


def turns(body: str, length: int) -> str:
    """A loop over %q as its state."""
    fn = f"fn (%h: {QUANTIZED}) {{ {body} }}"
    loop = f"scan({fn}, (%q,), (,), (,), length={length}, reverse_inputs=[], reverse_outputs=[])"
    return loop.replace("(,)", "()")


def cut(line: str, *before: str) -> str:
    """The first row of what ``line`` makes of %q."""
    return source("".join(before) + f"  %9 = {line};\n" + ROW.format("%9"))


def corner(line: str) -> str:
    """The first pixels of what ``line`` makes of the image %0."""
    return source(IMAGE + f"  %9 = {line};\n" + CORNER.format("%9"))


MEMORY = "there is not enough memory"
TIME = "CPU seconds for one run"

# Name → module text, exit code, a part of what is said.
TEXTS: dict[str, tuple[str, int, str]] = {
    "a shift of 10^10": (source(WIDE + FIXED.format(10**10), result=SECOND), 1, "is no int32"),
    "a shift of 10^9": (source(WIDE + FIXED.format(10**9), result=SECOND), 1, "shifts by"),
    "8,000 operands": (
        source("  %0 = concatenate((" + ", ".join(["%q"] * 8000) + "), axis=0);\n  (%q, %0).0"),
        0,
        "proved",
    ),
    "sixty pairs": (
        source(doubled("  {1} = ({0}, {0});", "%q") + "\n  %59" + ".0" * 60),
        1,
        "more than 4096",
    ),
    "sixty pairs by let": (
        source(
            doubled("  let {1} = ({0}, {0});", "%q").replace("%", "%a").replace("%aq", "%q")
            + "\n  %q"
        ),
        1,
        "more than 4096",
    ),
    "sixty pairs of functions": (source(FUNCTIONS + "  %q"), 1, "more than 4096"),
    "2^60 calls": (source("  @f59(%q)", *CALLS), 2, "more than"),
    "a recursion": (
        source("  @r(%q)", f"def @r(%x: {QUANTIZED}) -> {QUANTIZED} {{ @r(%x) }}\n"),
        2,
        "calls itself",
    ),
    # Beyond the time of the check, or on a fast machine beyond that of a run.
    "700,000 minus signs": (source("  " + "-" * 700_000 + "%q"), 2, "more than"),
    "a number of 5,000 digits": (source(f"  add(%q, {'9' * 5000})"), 2, "more than 64 char"),
    "a shape of 5,000 digits": (
        source("  %q", result=f"Tensor[({'9' * 5000}), int8]"),
        2,
        "64 char",
    ),
    "an infinite bound": (source("  clip(%q, a_min=0f, a_max=1e999f)"), 2, "does not fit"),
    "an endless name": (source(f"  let %{'a' * 5_000_000} = %q;\n  %q"), 2, "65536 characters"),
    "5,000 parentheses": (source("  " + "(" * 5000 + "%q" + ")" * 5000), 2, "60 deep"),
    "a tile of a terabyte": (source("  tile(%q, reps=[1, 1000000000000])"), 1, "2^40 elements"),
    "a tile of gigabytes": (
        source("  tile(%q, reps=[1, 1000000000])", result="Tensor[(1, 4000000000), int8]"),
        2,
        TIME,
    ),
    "a wide product": (
        source(
            "  %0 = tile(%q, reps=[20000, 500]);\n"
            '  %1 = nn.dense(%0, %0, out_dtype="int32");\n'
            '  %2 = cast(%1, dtype="int8");\n'
            "  strided_slice(%2, begin=[0, 0], end=[1, 4], strides=[1, 1])"
        ),
        2,
        TIME,
    ),
    "a tile of 400 MB, cut": (cut("tile(%q, reps=[1, 100000000])"), 2, MEMORY),
    "a repetition": (cut("repeat(%q, repeats=100000000, axis=1)"), 2, MEMORY),
    "a broadcast": (cut("broadcast_to(%q, shape=[200000000, 4])"), 2, TIME),
    "a padding": (
        cut("nn.pad(%q, %7, pad_width=[[0, 0], [200000000, 200000000]])", ZERO),
        2,
        MEMORY,
    ),
    "a depth of one_hot": (
        cut(
            'reshape(one_hot(cast(%q, dtype="int32"), cast(1, dtype="int8"), cast(0, '
            'dtype="int8"), depth=100000000, axis=-1, dtype="int8"), newshape=[4, 100000000])'
        ),
        2,
        MEMORY,
    ),
    "an arange": (
        cut(
            'reshape(cast(arange(cast(0, dtype="int32"), cast(200000000, dtype="int32"), cast(1, '
            'dtype="int32"), dtype="int32"), dtype="int8"), newshape=[1, 200000000])'
        ),
        2,
        "cannot be told",
    ),
    "elements taken": (
        cut(
            'take(reshape(%q, newshape=[4]), cast(tile(%q, reps=[1, 50000000]), dtype="int32"), '
            'axis=0, mode="clip")'
        ),
        2,
        MEMORY,
    ),
    "an image resized": (
        corner('image.resize2d(%0, size=[20000, 20000], method="nearest_neighbor")'),
        2,
        MEMORY,
    ),
    "an image scaled": (
        corner("nn.upsampling(%0, scale_h=10000f, scale_w=10000f)"),
        2,
        MEMORY,
    ),
    "a wide sum": (
        corner(
            "nn.avg_pool2d(%0, pool_size=[9000, 9000], padding=[9001, 9001, 9001, 9001], "
            "count_include_pad=True)"
        ),
        2,
        "more than",
    ),
    "many wide windows": (
        corner("nn.max_pool2d(%0, pool_size=[250, 250], padding=[250, 250, 250, 250])"),
        2,
        TIME,
    ),
    "a product of 8 GMAC": (
        cut(
            'cast(nn.dense(%0, %0, out_dtype="int32"), dtype="int8")',
            "  %0 = tile(%q, reps=[2000, 500]);\n",
        ),
        1,
        "",
    ),
    "a product of int64": (
        cut(
            'cast(nn.dense(%1, %1, out_dtype="int64"), dtype="int8")',
            '  %0 = tile(%q, reps=[1200, 300]);\n  %1 = cast(%0, dtype="int64");\n',
        ),
        2,
        TIME,
    ),
    "a kernel that is computed": (
        source(
            IMAGE + "  %1 = tile(%0, reps=[1, 1, 2500, 2500]);\n"
            "  %2 = nn.conv2d(%1, %1, kernel_size=[5000, 5000], channels=1, "
            'padding=[9, 9, 9, 9], out_dtype="int32");\n  %9 = cast(%2, dtype="int8");\n'
            + CORNER.format("%9")
        ),
        1,
        "the accumulator may reach",
    ),
    "a dilation": (
        corner(
            "nn.max_pool2d(%0, pool_size=[2, 2], dilation=[1000000000, 1000000000], "
            "padding=[1000000000, 1000000000, 1000000000, 1000000000])"
        ),
        1,
        "2^40 elements",
    ),
    "thousands of wide tuples": (
        source(
            f"  %0 = {SPREAD};\n"
            + "".join(f"  %{i} = (%0,);\n" for i in range(1, 20_000))
            + "  ("
            + ", ".join(f"%{i}.0.0" for i in range(1, 4000))
            + ").0"
        ),
        1,
        "the types of all nodes hold more than",
    ),
    "a loop of 2^24 steps": (
        source(f"  {turns('(nn.relu(%h),)', 1 << 24)}.0"),
        2,
        TIME,
    ),
    "loops within loops": (
        source(
            f"  {turns('(' + turns('(nn.relu(%h),)', 5000).replace('%q', '%h') + '.0,)', 5000)}.0"
        ),
        2,
        TIME,
    ),
    "a function that is called by many": (
        source(
            f"  let %f0 = fn (%x: {QUANTIZED}) {{ nn.relu(%x) }};\n"
            + "".join(
                f"  let %f{i} = fn (%x: {QUANTIZED}) {{ %f{i - 1}(%f{i - 1}(%x)) }};\n"
                for i in range(1, 40)
            )
            + "  %f39(%q)"
        ),
        2,
        "",
    ),
    "a padded image, seldom read": (
        corner(
            "nn.max_pool2d(%0, pool_size=[2, 2], strides=[50000, 50000], "
            "padding=[50000, 50000, 50000, 50000])"
        ),
        2,
        MEMORY,
    ),
    "a padded image of a convolution": (
        source(
            IMAGE + "  %1 = nn.conv2d(%0, %0, strides=[60000, 60000], channels=1, "
            'kernel_size=[2, 2], padding=[60000, 60000, 60000, 60000], out_dtype="int32");\n'
            '  %9 = cast(%1, dtype="int8");\n' + CORNER.format("%9")
        ),
        1,
        "its result may reach",
    ),
    "a dilated kernel": (
        source(
            IMAGE + "  %1 = nn.conv2d(%0, %0, dilation=[60000, 60000], channels=1, "
            "kernel_size=[2, 2], strides=[60000, 60000], padding=[60000, 60000, 60000, 60000], "
            'out_dtype="int32");\n  %9 = cast(%1, dtype="int8");\n' + CORNER.format("%9")
        ),
        1,
        "its result may reach",
    ),
    "thousands of millions of axes": (
        source("  %0 = expand_dims(%q, axis=0, num_newaxis=4000000000);\n  %q"),
        2,
        "num_newaxis=4000000000 is not within",
    ),
    "thousands of millions of pieces": (
        source(
            "  %0 = repeat(%q, repeats=1000000000, axis=1);\n"
            "  %1 = split(%0, indices_or_sections=1000000000, axis=1);\n  %1.0"
        ),
        2,
        "indices_or_sections=1000000000 is not within",
    ),
    "no element between two long axes": (
        source(
            "  %4 = reshape(%q, newshape=[1, 1, 4]);\n"
            "  %0 = strided_slice(%4, begin=[0, 0, 0], end=[1, 1, 0]);\n"
            "  %1 = repeat(%0, repeats=1000000, axis=0);\n"
            "  %2 = repeat(%0, repeats=1000000, axis=1);\n  %3 = add(%1, %2);\n  (%q, %3).0"
        ),
        2,
        "more than",
    ),
    "no element beside axes of 2^40": (
        source(
            "  %0 = strided_slice(%q, begin=[0, 0], end=[0, 1], strides=[1, 1]);\n"
            "  %1 = broadcast_to(reshape(%0, newshape=[0, 1, 1]), "
            "shape=[0, 1099511627776, 1099511627776]);\n  (%q, %1).0"
        ),
        1,
        "2^40 elements",
    ),
    "no element beside an axis of 2^31, which indices are made of": (
        source("  %0 = tile(%q, reps=[2147483648, 0]);\n  (%q, %0).0"),
        2,
        TIME,
    ),
    "a stride of 2^63 - 1": (
        cut("strided_slice(%q, begin=[0, 0], end=[1, 4], strides=[1, 9223372036854775807])"),
        2,
        "is not within",
    ),
    "12 MB of text": (source("  nn.relu(%q)" + " " * 12_000_000), 0, "proved"),
    "a long comment": (source("  nn.relu(%q) // " + "/* ty=" * 60_000), 0, "proved"),
    "comments that do not end": (
        source("  nn.relu(%q) " + "/* ty=int8 span=" * 60_000),
        2,
        "this comment has no end",
    ),
    "a wide window": (
        source(
            "  %0 = reshape(%q, newshape=[1, 1, 2, 2]);\n"
            "  %1 = nn.max_pool2d(%0, pool_size=[9999, 9999], padding=[9998, 9998, 9998, 9998]);\n"
            "  %2 = strided_slice(%1, begin=[0, 0, 0, 0], end=[1, 1, 2, 2]);\n"
            "  reshape(%2, newshape=[1, 4])"
        ),
        2,
        "more than",
    ),
}


def tensor_of(*shape: int, body: bytes = b"") -> bytes:
    """A constant of int8 as ``compiler.runtime.packed`` writes it, of any shape."""
    return struct.pack(f"<2sBBB{len(shape)}I", b"i1", 8, 255, len(shape), *shape) + body


def members(text: str, tensor: bytes | None = None) -> dict[str, bytes]:
    made = {"module.relay": text.encode(), "qconfig.json": b"{}", "provenance.json": b"{}"}
    return {**made, "tensors.bin": tensor or b""}


def with_constant(tensor: bytes) -> dict[str, bytes]:
    listed = '#[metadata]\n{"relay.Constant": [{"npz": "k0"}]}\n'
    return members(source("  add(%q, meta[relay.Constant][0])", listed), tensor)


SAMPLE = npy_bytes(np.zeros((1, 4), "float32"))
SAMPLES = {f"samples/s{i}_{end}0.npy": SAMPLE for i in range(5_000) for end in ("input", "output")}


def write_twice(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("module.relay", "a")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("module.relay", "b")


def write_packed(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("module.relay", b"\0" * 100_000_000)


# Name → how the file is written, a part of what is said.
FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "an array of 2^60 elements": (
        lambda path: write_archive(path, with_constant(tensor_of(1 << 30, 1 << 30))),
        "holds no arrays",
    ),
    "an array without elements and with 10^300 in a row": (
        lambda path: write_archive(path, with_constant(tensor_of(0, *[999_999_999] * 33))),
        "holds no arrays",
    ),
    "an array of 100 axes": (
        lambda path: write_archive(path, with_constant(tensor_of(*[1] * 100, body=b"\1"))),
        "holds no arrays",
    ),
    "provenance nested 50,000 deep": (
        lambda path: write_archive(
            path,
            {
                **members(source("  %q")),
                "provenance.json": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
            },
        ),
        "is not JSON",
    ),
    "5,000 samples": (
        lambda path: write_archive(path, {**members(source("  nn.relu(%q)")), **SAMPLES}),
        "50 of 5000 runs",
    ),
    "samples that repeat 4 numbers": (
        lambda path: write_archive(
            path,
            {
                **members(source("  nn.relu(%q)").replace("(1, 4)", "(1, 30000000)")),
                **{f"samples/s{i}_input0_begin.npy": SAMPLE for i in range(9)},
            },
        ),
        "does not fit the module",
    ),
    "a member twice": (write_twice, "which no .qmod has"),
    "a member packed 1000 times": (write_packed, "packed or encrypted"),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What verifying each file came to, all in one process with a child for each."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = {}
    for number, name in enumerate([*TEXTS, *FILES]):
        paths[name] = folder / f"{number}" / "m.qmod"
        paths[name].parent.mkdir()
        if name in FILES:
            FILES[name][0](paths[name])
        else:
            samples = {name: SAMPLES[name] for name in list(SAMPLES)[:2]}
            write_archive(paths[name], {**members(TEXTS[name][0]), **samples})
    words = [sys.executable, "-c", RUNNER, *map(str, paths.values())]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=600)
    return dict(zip(paths, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_module_is_refused_within_seconds(
    name: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    _, code, part = TEXTS[name]
    assert outcomes[name]["code"] == code, outcomes[name]["said"]
    assert part in outcomes[name]["said"]
    assert "unforeseen" not in outcomes[name]["said"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_a_hostile_archive_is_refused_within_seconds(
    name: str, outcomes: dict[str, dict[str, Any]]
) -> None:
    # Samples beyond what verifying runs are left out.
    code = 0 if name == "5,000 samples" else 2
    assert outcomes[name]["code"] == code, outcomes[name]["said"]
    assert FILES[name][1] in outcomes[name]["said"]
    assert "unforeseen" not in outcomes[name]["said"]
