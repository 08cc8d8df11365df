"""The size of a trial is what the constants of its file take."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler import relay
from compiler.ir.module import IRModule
from compiler.quantize import Calibration, QConfig
from compiler.runtime.archive import read_archive
from compiler.runtime.artifact import TENSORS, QModule
from compiler.runtime.packed import member_bytes, unpack
from tests.needs import missing
from workers.metrics.costs import device_figures
from workers.metrics.size import FORMS, RESTRICTED, fields_of, size_figures

RNG = np.random.default_rng(0)
DATA = [{"x": RNG.normal(0, 1, (1, 8, 6, 6)).astype("float32")} for _ in range(4)]


def _conv(value: Any, outputs: int = 8, groups: int = 1, size: int = 3) -> Any:
    shape = outputs, 8 // groups, size, size
    weight = relay.const(RNG.normal(0, 0.2, shape).astype("float32"))
    return relay.op.nn.conv2d(value, weight, padding=(size // 2, size // 2), groups=groups)


def _plain() -> IRModule:
    x = relay.var("x", (1, 8, 6, 6))
    return relay.module(relay.op.tanh(_conv(relay.op.nn.relu(_conv(x)), 16, size=1)))


def _residual() -> IRModule:
    x = relay.var("x", (1, 8, 6, 6))
    deep = _conv(relay.op.nn.relu(_conv(x)), groups=8)
    return relay.module(relay.op.nn.global_avg_pool2d(relay.op.add(x, deep)))


def _dense() -> IRModule:
    x = relay.var("x", (1, 8, 6, 6))
    weight = relay.const(RNG.normal(0, 0.1, (20, 288)).astype("float32"))
    return relay.module(
        relay.op.nn.softmax(relay.op.nn.dense(relay.op.nn.batch_flatten(x), weight))
    )


@pytest.mark.parametrize("bits", [2, 3, 5, 8])
@pytest.mark.parametrize("network", [_plain, _residual, _dense])
def test_size_is_what_the_constants_take_in_each_form(
    network: Any, bits: int, tmp_path: Path
) -> None:
    rounding = "sequential" if bits % 2 else "nearest"
    config = QConfig.recommended(
        nbit_weight=bits, weight_rounding=rounding, layers={"<sums>": {"nbit_input": 8}}
    )
    candidate = Calibration(network(), DATA).candidate(config)
    forms = FORMS.keys() - {*RESTRICTED} | {"qdq"}
    sizes = {form: size_figures(candidate, form)["model_bytes"] for form in forms}
    samples = [(DATA[0], QModule(candidate.module).run(DATA[0]))]
    file = tmp_path / "m.qmod"
    QModule(candidate.module, samples=samples).save(file)
    tensors = read_archive(file)[TENSORS]
    scales = [one for one in unpack(tensors, TENSORS).values() if one.dtype == np.float32]
    assert scales, "of channels, which no integer is computed with"
    assert sizes["qmod"] == len(tensors) - member_bytes(scales)
    exported = qsearch.export(file, "c", tmp_path / "c")
    assert sizes["c"] == exported.facts["constant_bytes"]
    written = qsearch.export(file, "qdq", tmp_path / "m.onnx")
    graph = onnx.load(written.files[0]).graph
    assert sizes["qdq"] == sum(len(one.raw_data) for one in graph.initializer)


def test_the_size_for_tflite_is_that_of_the_file(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason=missing("the Python packages of the tests"))
    x = relay.var("x", (1, 4, 6, 6))
    weight = relay.const(np.linspace(-1, 1, 288).reshape(8, 4, 3, 3).astype("float32"))
    mod = relay.module(relay.Function([x], relay.op.nn.relu(relay.op.nn.conv2d(x, weight))))
    sample = {"x": np.linspace(-1, 1, 144).reshape(1, 4, 6, 6).astype("float32")}
    config = QConfig.recommended(**fields_of("tflite"))
    candidate = Calibration(mod, [sample]).candidate(config)
    module = QModule(candidate.module)
    QModule(candidate.module, samples=[(sample, module.run(sample))]).save(tmp_path / "m.qmod")
    (written,) = qsearch.export(tmp_path / "m.qmod", "tflite", tmp_path).files
    assert size_figures(candidate, "tflite")["model_bytes"] == written.stat().st_size


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("network", [_plain, _residual, _dense])
def test_ram_is_the_arena_that_the_exported_header_defines(
    network: Any, bits: int, tmp_path: Path
) -> None:
    config = QConfig.recommended(nbit_weight=bits)
    module = Calibration(network(), DATA).candidate(config).module
    QModule(module, samples=[(DATA[0], QModule(module).run(DATA[0]))]).save(tmp_path / "m.qmod")
    qsearch.export(tmp_path / "m.qmod", "c", tmp_path)
    header = (tmp_path / "m.h").read_text()
    (defined,) = re.findall(r"#define M_ARENA_BYTES (\d+)", header)
    assert device_figures(module, None) == {"ram_bytes": float(defined)}
