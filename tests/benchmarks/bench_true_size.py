"""Networks of true size, with seeded weights, through compile and verify, as a user runs them.

    python -m tests.benchmarks.bench_true_size [name …] [--folder DIR] [--launch TRIALS]

One line per network: CPU seconds and resident memory of `qsearch compile` and `qsearch verify`
(without a flag), each in a process of its own, what verify says, and the signal-to-noise ratio of
the module's outputs to onnxruntime's on the float model, on inputs that calibration did not see.
With ``--launch`` a search of so many trials instead, by one worker, on 100 inputs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import qsearch
from tests.benchmarks.unseen_networks import Network

CALIBRATION = 16
EVALUATION = 100


def resnet50(g: Network) -> str:
    """Bottlenecks of 3, 4, 6 and 3 layers; 224 x 224."""
    x = g.conv(g.input(1, 3, 224, 224), (64, 3, 7, 7), strides=[2, 2])
    x, inner = g("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), 64
    for stage, layers in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for layer in range(layers):
            stride = [2, 2] if stage and not layer else [1, 1]
            y = g.conv(x, (width, inner, 1, 1))
            y = g.conv(y, (width, width, 3, 3), strides=stride)
            y = g.conv(y, (4 * width, width, 1, 1), "")
            if not layer:
                x = g.conv(x, (4 * width, inner, 1, 1), "", strides=stride)
            x, inner = g("Relu", g("Add", x, y)), 4 * width
    return g.head(x, inner, 1000)


def efficientnet_b0(g: Network) -> str:
    """Inverted residuals with squeeze and excite, swish; 224 x 224."""
    x, channels = g.conv(g.input(1, 3, 224, 224), (32, 3, 3, 3), "Silu", strides=[2, 2]), 32
    for kernel, ratio, out, stride, layers in (
        (3, 1, 16, 1, 1),
        (3, 6, 24, 2, 2),
        (5, 6, 40, 2, 2),
        (3, 6, 80, 2, 3),
        (5, 6, 112, 1, 3),
        (5, 6, 192, 2, 4),
        (3, 6, 320, 1, 1),
    ):
        for layer in range(layers):
            wide, step = channels * ratio, 1 if layer else stride
            y = g.conv(x, (wide, channels, 1, 1), "Silu") if ratio > 1 else x
            y = g.conv(y, (wide, 1, kernel, kernel), "Silu", group=wide, strides=[step] * 2)
            small = g.conv(g("GlobalAveragePool", y), (max(1, channels // 4), wide, 1, 1), "Silu")
            gate = g.conv(small, (wide, max(1, channels // 4), 1, 1), "Sigmoid")
            y = g("Mul", y, gate)
            y = g.conv(y, (out, wide, 1, 1), "")
            x, channels = g("Add", x, y) if layer else y, out
    return g.head(g.conv(x, (1280, channels, 1, 1), "Silu"), 1280, 1000)


def _attention(g: Network, x: str, tokens: int, width: int, heads: int) -> str:
    """Self-attention of one sequence, (1, tokens, width)."""
    size = width // heads

    def part(perm: list[int]) -> str:
        apart = g.shaped(g.dense(x, width, width), 1, tokens, heads, size)
        return str(g("Transpose", apart, perm=perm))

    scores = g("MatMul", part([0, 2, 1, 3]), part([0, 2, 3, 1]))
    weights = g("Softmax", g("Mul", scores, g.weight(size**-0.5)), axis=-1)
    joined = g("Transpose", g("MatMul", weights, part([0, 2, 1, 3])), perm=[0, 2, 1, 3])
    return g.dense(g.shaped(joined, 1, tokens, width), width, width)


def vit_base(g: Network) -> str:
    """Twelve layers of width 768 on 196 patches and a class token; 224 x 224."""
    x = g.conv(g.input(1, 3, 224, 224), (768, 3, 16, 16), "", strides=[16, 16], pads=[0] * 4)
    x = g("Transpose", g.shaped(x, 1, 768, 196), perm=[0, 2, 1])
    x = g("Concat", g.random(1, 1, 768, fan=2), x, axis=1)
    x = g("Add", x, g.random(1, 197, 768, fan=8))
    for _ in range(12):
        x = g("Add", x, _attention(g, g.layer_norm(x, 768), 197, 768, 12))
        y = g.dense(g.layer_norm(x, 768), 768, 3072, "Gelu")
        x = g("Add", x, g.dense(y, 3072, 768))
    first = g("Gather", g.layer_norm(x, 768), g.weight(0, np.int64), axis=1)
    return g.dense(first, 768, 1000)


def bert_base(g: Network) -> str:
    """Twelve layers of width 768 on 128 tokens of a vocabulary of 30,522."""
    tokens = g.input(1, 128, dtype=onnx.TensorProto.INT64)
    x = g("Gather", g.random(30522, 768, fan=2), tokens, axis=0)
    x = g.layer_norm(g("Add", x, g.random(1, 128, 768, fan=8)), 768)
    for _ in range(12):
        x = g.layer_norm(g("Add", x, _attention(g, x, 128, 768, 12)), 768)
        y = g.dense(g.dense(x, 768, 3072, "Gelu"), 3072, 768)
        x = g.layer_norm(g("Add", x, y), 768)
    first = g("Gather", x, g.weight(0, np.int64), axis=1)
    return g.dense(g("Tanh", g.dense(first, 768, 768)), 768, 2)


class _Yolo:
    """The blocks of YOLO11n: convolutions with swish, split bottlenecks, pyramid, attention."""

    def __init__(self, g: Network) -> None:
        self._g = g

    def conv(self, x: str, c: int, out: int, k: int = 1, s: int = 1, act: str = "Silu") -> str:
        return self._g.conv(x, (out, c, k, k), act, strides=[s, s])

    def depthwise(self, x: str, c: int, act: str = "Silu") -> str:
        return self._g.conv(x, (c, 1, 3, 3), act, group=c)

    def bottleneck(self, x: str, c: int, inner: int) -> str:
        y = self.conv(self.conv(x, c, inner, 3), inner, c, 3)
        return str(self._g("Add", x, y))

    def c3k2(self, x: str, c: int, out: int, hidden: int, deep: bool) -> str:
        """Two halves; the second goes through a bottleneck, or through two of them and a bypass."""
        halves = self._g.weight([hidden, hidden], np.int64)
        one, two = self._g("Split", self.conv(x, c, 2 * hidden), halves, outputs=2, axis=1)
        if deep:
            inner = hidden // 2
            y = self.conv(two, hidden, inner)
            for _ in range(2):
                y = self.bottleneck(y, inner, inner)
            y = self._g("Concat", y, self.conv(two, hidden, inner), axis=1)
            y = self.conv(y, hidden, hidden)
        else:
            y = self.bottleneck(two, hidden, hidden // 2)
        return self.conv(self._g("Concat", one, two, y, axis=1), 3 * hidden, out)

    def pyramid(self, x: str, c: int) -> str:
        """Max pools one behind the other, all of them joined (SPPF)."""
        made = [self.conv(x, c, c // 2)]
        for _ in range(3):
            made.append(self._g("MaxPool", made[-1], kernel_shape=[5, 5], pads=[2] * 4))
        return self.conv(self._g("Concat", *made, axis=1), 2 * c, c)

    def attention(self, x: str, c: int, area: int, side: int) -> str:
        """Half of the channels through attention over all pixels (C2PSA)."""
        g, half, heads = self._g, c // 2, c // 128
        key, size = 32, half // heads
        parts = g.weight([half, half], np.int64)
        kept, y = g("Split", self.conv(x, c, c), parts, outputs=2, axis=1)
        every = self.conv(y, half, heads * (2 * key + size), act="")
        every = g.shaped(every, 1, heads, 2 * key + size, area)
        sizes = g.weight([key, key, size], np.int64)
        q, k, v = g("Split", every, sizes, outputs=3, axis=2)
        scores = g("MatMul", g("Transpose", q, perm=[0, 1, 3, 2]), k)
        weights = g("Softmax", g("Mul", scores, g.weight(key**-0.5)), axis=-1)
        mixed = g("MatMul", v, g("Transpose", weights, perm=[0, 1, 3, 2]))
        place = self.depthwise(g.shaped(v, 1, half, side, side), half, "")
        mixed = g("Add", g.shaped(mixed, 1, half, side, side), place)
        y = g("Add", y, self.conv(mixed, half, half, act=""))
        y = g("Add", y, self.conv(self.conv(y, half, 2 * half), 2 * half, half, act=""))
        return self.conv(g("Concat", kept, y, axis=1), c, c)


def yolo11n(g: Network) -> str:
    """A detector of 80 classes with heads of three sizes; 640 x 640."""
    m = _Yolo(g)

    def up(x: str) -> str:
        return str(g("Resize", x, "", g.weight([1, 1, 2, 2]), mode="nearest"))

    def join(*parts: str) -> str:
        return str(g("Concat", *parts, axis=1))

    x = m.conv(m.conv(g.input(1, 3, 640, 640), 3, 16, 3, 2), 16, 32, 3, 2)
    x = m.conv(m.c3k2(x, 32, 64, 16, False), 64, 64, 3, 2)
    p3 = m.c3k2(x, 64, 128, 32, False)
    p4 = m.c3k2(m.conv(p3, 128, 128, 3, 2), 128, 128, 64, True)
    x = m.c3k2(m.conv(p4, 128, 256, 3, 2), 256, 256, 128, True)
    p5 = m.attention(m.pyramid(x, 256), 256, 400, 20)
    n4 = m.c3k2(join(up(p5), p4), 384, 128, 64, False)
    n3 = m.c3k2(join(up(n4), p3), 256, 64, 32, False)
    o4 = m.c3k2(join(m.conv(n3, 64, 64, 3, 2), n4), 192, 128, 64, False)
    o5 = m.c3k2(join(m.conv(o4, 128, 128, 3, 2), p5), 384, 256, 128, True)
    rows = []
    for x, c, side in ((n3, 64, 80), (o4, 128, 40), (o5, 256, 20)):
        box = m.conv(m.conv(m.conv(x, c, 64, 3), 64, 64, 3), 64, 64, act="")
        y = m.conv(m.depthwise(x, c), c, 80)
        y = m.conv(m.conv(m.depthwise(y, 80), 80, 80), 80, 80, act="")
        rows.append(g.shaped(join(box, y), 1, 144, side * side))
    box, classes = g(
        "Split", g("Concat", *rows, axis=2), g.weight([64, 80], np.int64), outputs=2, axis=1
    )
    bins = g("Transpose", g.shaped(box, 1, 4, 16, 8400), perm=[0, 2, 1, 3])
    bins = g("Softmax", bins, axis=1)
    sides = g("Conv", bins, g.weight(np.arange(16).reshape(1, 16, 1, 1)))
    sides = g.shaped(sides, 1, 4, 8400)
    return join(g("Mul", sides, g.weight(8.0)), g("Sigmoid", classes))


NETWORKS = (resnet50, vit_base, yolo11n, efficientnet_b0, bert_base)


def made(name: str, folder: Path) -> Path:
    """The folder of one network: model.onnx, calib.npz and dev.npz."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    build = next(one for one in NETWORKS if one.__name__ == name)
    graph = Network(7)
    model = graph.model(build(graph))
    onnx.save(model, place / "model.onnx")
    rng = np.random.default_rng(3)
    entry = model.graph.input[0]
    shape = [dim.dim_value for dim in entry.type.tensor_type.shape.dim]
    for part, count in (("calib", CALIBRATION), ("dev", 2), ("eval", EVALUATION)):
        if entry.type.tensor_type.elem_type == onnx.TensorProto.INT64:
            data: Any = rng.integers(0, 30522, (count, *shape[1:]))
        else:
            # Patches of one colour and noise: a picture's neighbours are alike.
            coarse = rng.normal(size=(count, shape[1], shape[2] // 16, shape[3] // 16))
            data = np.kron(coarse, np.ones((1, 1, 16, 16)))
            data = (data + 0.3 * rng.normal(size=data.shape)).astype("float32")
        np.savez(place / f"{part}.npz", x=data)
    return place


_MEASURED = """
import json, resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, used.ru_utime + used.ru_stime, used.ru_maxrss >> 10]))
"""
"""A process between: the peak of a child begins with the memory of whoever starts it."""


def command(*words: str) -> tuple[int, float, int, str]:
    """Exit code, CPU seconds, peak of resident MB, and what a command prints."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, "qsearch", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True,
    )  # fmt: skip
    said, _, last = done.stdout.rstrip().rpartition("\n")
    code, cpu, peak = json.loads(last)
    return code, cpu, peak, said


def measured(name: str, folder: Path) -> dict[str, Any]:
    """The row of one network."""
    place = made(name, folder)
    module = place / "m.qmod"
    words = ("--model", f"{place}/model.onnx", "--calib", f"{place}/calib.npz")
    code, cpu, peak, said = command("compile", *words, "-o", str(module))
    row: dict[str, Any] = {"network": name, "compile": code, "compile_cpu_s": round(cpu, 1)}
    row["compile_mb"] = peak
    if code:
        return {**row, "said": said}
    (place / "compile.txt").write_text(said)
    code, cpu, peak, said = command("verify", str(module))
    (place / "verify.txt").write_text(said)
    row |= {"qmod_mb": module.stat().st_size >> 20, "verify": code}
    row |= {"verify_cpu_s": round(cpu, 1), "verify_mb": peak}
    data = np.load(place / "dev.npz")["x"]
    session = onnxruntime.InferenceSession(place / "model.onnx")
    floats = np.concatenate([session.run(None, {"x": one[None]})[0] for one in data])
    ours = qsearch.load(module).run({"x": data})[0]
    noise = float(((floats - ours) ** 2).sum())
    row["sqnr_db"] = round(10 * np.log10(float((floats**2).sum()) / max(noise, 1e-30)), 1)
    alike = qsearch.load(module).run({"x": data[:1]}, "reference")[0]
    row["engine_is_reference"] = bool((alike == ours[: len(alike)]).all())
    return {**row, "said": said.splitlines()[0] if code else "proved"}


def launched(name: str, folder: Path, trials: int) -> dict[str, Any]:
    """The row of a search."""
    place = made(name, folder)
    run = place / "run"
    words = ["--model", f"{place}/model.onnx", "--calib", f"{place}/calib.npz", "--fresh"]
    words += ["--eval", f"{place}/eval.npz", "--workers", "1", "--trials", str(trials)]
    code, cpu, peak, said = command("launch", *words, "-o", str(run))
    row: dict[str, Any] = {"network": name, "launch": code, "cpu_s": round(cpu, 1), "mb": peak}
    if not (run / "report.json").exists():
        return {**row, "said": said}
    report = json.loads((run / "report.json").read_text())
    row |= {key: report["best"][key] for key in ("trial", "sqnr_db")}
    return row | {key: report[key] for key in ("calibration_cpu_s", "costs")}


def main() -> int:
    """Print a row per network; 1 where compile or verify refuses one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [one.__name__ for one in NETWORKS]
    parser.add_argument("names", nargs="*", default=names)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--launch", type=int, metavar="TRIALS")
    args = parser.parse_args()
    worst = 0
    with tempfile.TemporaryDirectory(prefix="bench-true-size-") as folder:
        place = args.folder or Path(folder)
        for name in args.names:
            row = launched(name, place, args.launch) if args.launch else measured(name, place)
            print(json.dumps(row), flush=True)
            worst = max(worst, *(row.get(key, 0) for key in ("compile", "verify", "launch")))
    return min(worst, 1)


if __name__ == "__main__":
    sys.exit(main())
