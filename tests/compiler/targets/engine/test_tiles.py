"""Products by tiles, emulated where the processor has none: bits, plans, limits, instructions."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler import relay
from compiler.errors import CodegenError
from compiler.ir.module import IRModule
from compiler.targets.c.toolchain import build_library
from compiler.targets.engine import library as engine_library
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.engine.library import Library, build_of, open_library
from compiler.targets.engine.steps import layout, number
from compiler.targets.engine.tiles import TILES_VARIABLE, limits_of
from tests.compiler.targets.engine.emulated import libraries
from tests.compiler.targets.engine.kernel_cases import agree, drawn, requantized
from tests.needs import NEEDS_C, skip, skip_without

pytestmark = NEEDS_C
op = relay.op


def amx() -> Library:
    found = next((each for each in libraries() if each.isa == "amx"), None)
    return found or skip_without("AVX512-VNNI, on which tiles are emulated")


def field(mod: IRModule, name: str) -> list[int]:
    """A field of every product of a plan for AMX."""
    plan = EngineExecutor(mod, isa=amx()).plan
    place = layout()[0]["gemm"].index(name)
    rows = zip(plan.rows, plan.infos)
    return [int(row[place]) for row, info in rows if info.kind == "gemm"]


@pytest.fixture
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TILES_VARIABLE, "rows=2,columns=1,saved=0,products=1")


def dense(rows: int, length: int, columns: int, dtype: str = "uint8") -> IRModule:
    rng = np.random.default_rng(rows)
    x = relay.var("x", (rows, length), dtype)
    return relay.module(
        op.nn.dense(x, relay.const(drawn(rng, (columns, length), "int8", False)), out_dtype="int32")
    )


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16"])
@pytest.mark.parametrize(
    ("rows", "length", "columns"),
    [(4, 16, 8), (15, 65, 33), (16, 64, 16), (17, 130, 48), (33, 1100, 20), (200, 300, 96)],
)
def test_dense_layers_of_all_tails_agree(dtype: str, rows: int, length: int, columns: int) -> None:
    mod = dense(rows, length, columns, dtype)
    for extreme in (False, True):
        agree(mod, drawn(np.random.default_rng(1), (rows, length), dtype, extreme))
    assert all(field(mod, "tile"))


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize(
    ("image", "kernel", "how", "by"),
    [
        ((20, 20, 20), (40, 20, 3, 3), {"padding": 1}, "BY_RUN"),
        ((2, 7, 9), (96, 2, 9, 9), {"padding": 4}, "BY_COPY"),
        ((40, 34, 33), (96, 40, 3, 3), {"padding": 1, "strides": (2, 2)}, "BY_COPY"),
        ((24, 15, 32), (16, 24, 3, 3), {"padding": 1, "strides": (2, 2)}, "BY_LINE"),
        ((70, 6, 5), (33, 70, 1, 1), {}, "BY_RUN"),
        ((64, 9, 9), (64, 16, 3, 3), {"groups": 4, "padding": 1}, "BY_RUN"),
        ((33, 12, 12), (19, 33, 3, 3), {"dilation": (2, 2)}, "BY_RUN"),
    ],
)
def test_convolutions_agree_however_their_rows_lie(
    image: tuple[int, ...], kernel: tuple[int, ...], how: dict[str, Any], by: str
) -> None:
    rng = np.random.default_rng(3)
    x = relay.var("x", (1, *image), "uint8")
    weight = relay.const(drawn(rng, kernel, "int8", False))
    made = op.nn.conv2d(x, weight, out_dtype="int32", **how)
    outputs = [requantized(made, kernel[0], 1, rng, wide) for wide in (False, True)]
    mod = relay.module(relay.Tuple((*outputs, made)))
    agree(mod, drawn(rng, (1, *image), "uint8", False))
    assert set(field(mod, "rows_by")) == {number(by)}


@pytest.mark.usefixtures("any_size")
@pytest.mark.parametrize("transposed", [False, True])
def test_products_of_two_activations_agree(transposed: bool) -> None:
    x = relay.var("x", (3, 37, 50), "int8")
    y = relay.var("y", (3, 41, 50) if transposed else (3, 50, 41), "int8")
    y2 = y if transposed else op.transpose(y, axes=(0, 2, 1))
    mod = relay.module(op.nn.batch_matmul(x, y2, out_dtype="int32"))
    rng = np.random.default_rng(5)
    shapes = [tuple(v.type_annotation.concrete_shape) for v in (x, y)]
    agree(mod, *(drawn(rng, shape, "int8", False) for shape in shapes))
    assert all(field(mod, "tile"))


def test_small_products_take_no_tiles_unless_they_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    few, short, many = dense(3, 256, 64), dense(48, 16, 64), dense(48, 256, 64)
    assert [field(mod, "tile") for mod in (few, short, many)] == [[0], [0], [16]]
    monkeypatch.setenv(TILES_VARIABLE, "rows=2, products=1")
    assert field(few, "tile") == [16]
    (tmp_path / "limits").write_text("rows=0\n")
    monkeypatch.setenv(TILES_VARIABLE, str(tmp_path / "limits"))
    assert field(many, "tile") == [0]


@pytest.mark.parametrize("text", ["rows=many", "lines=4", "nowhere/limits"])
def test_limits_that_say_nothing_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TILES_VARIABLE, text)
    with pytest.raises(CodegenError, match="rows=4,columns=8"):
        limits_of("amx")


@pytest.mark.parametrize(("given", "best"), [(True, "amx"), (False, "vnni")])
def test_a_kernel_that_refuses_tiles_leaves_vnni(
    given: bool, best: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    features = " ".join(engine_library.ISAS["amx"].features)
    monkeypatch.setattr(engine_library.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(engine_library, "cpu_features", lambda: features)
    monkeypatch.setattr(engine_library, "has_tiles", lambda: given)
    assert engine_library.available_isas.__wrapped__()[0] == best


@pytest.mark.slow
def test_tiles_are_loaded_where_rows_lie_and_sums_stay_in_them() -> None:
    """The kernels that an AMX machine runs: this one may only look at them."""
    amx()
    dump = shutil.which("objdump") or skip("gcc")
    path = build_library(*build_of("amx"))
    text = subprocess.run([dump, "-d", str(path)], capture_output=True, text=True, check=True)
    (body,) = re.findall(r"<qk_run_tiles>:\n(.*?)\n\n", text.stdout + "\n\n", flags=re.S)
    loops = re.findall(
        r"(?:\ttile(?!zero|stored).*\n|\ttdp.*\n){8}", re.sub(r".*:\t.*\t", "\t", body)
    )
    assert {"tdpbusd", "tdpbssd"} <= set(re.findall(r"tdpb\w+", body))
    assert len([loop for loop in loops if loop.count("tdp") == loop.count("tileloadd") == 4]) == 2
    assert body.count("ldtilecfg") == body.count("tilerelease") == 1
    if "amx_tile" not in (engine_library.cpu_features()):
        assert open_library(path).isa == "vnni"
