"""Do two versions of the project emit the same bits? Hashes of what one emits, and a comparison.

    python -m tests.benchmarks.bench_bits --json after.json [--against before.json]
        [--models NAME …] [--configurations 12] [--no-studies] [--data ../shared/data]

For every model: seeded random configurations are quantized, and the module (its structure and its
text), the integer ONNX and the C text of each are hashed. Then one search each (seed
0, 24 trials) on two models, whose rows (parameters, scores, hashes of outputs) are kept. With
``--against``, exit code 1 and one line for every difference.

An older version is measured by the same file, through its public entry points alone:

    git worktree add ../before COMMIT
    PYTHONPATH=../before python tests/benchmarks/bench_bits.py --json before.json

Spans, samples, proofs and the metadata of ONNX files are not hashed: they describe the module.
A configuration that is refused counts as the name of its error. A text that differs while the
structure is the same says that the printer changed; such texts are counted and are no difference.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import compiler
import qsearch
from compiler.errors import CompilerError
from qsearch import export

HERE = Path(__file__).resolve()
DATA = HERE.parents[3] / "shared" / "data"
MODELS = (
    "digits_cnn",
    "fashion_mobilenet",
    "fashion_resnet",
    "fashion_outlier",
    "fashion_vit",
    "efficientnet_lite0",
)
STUDIES = ("digits_cnn", "fashion_mobilenet")
SEED = 0
TRIALS = 24
CALIBRATION_IMAGES = {"efficientnet_lite0": 2}
"""Images that a configuration is calibrated on, 16 where the model is not named."""
STUDY_IMAGES = 64

CHOICES: Mapping[str, tuple[Any, ...]] = {
    "weight_granularity": ("channel", "tensor"),
    "activation_scheme": ("unsigned", "asymmetric", "symmetric"),
    "weight_scale": ("max", "power2", "mse"),
    "calibrate_mode": ("percentile", "kl_divergence", "max", "mse", "global_scale"),
    "percentile": (0.999, 0.9999, 0.99999),
    "rounding": ("UPWARD", "TONEAREST", "TONEAREST_EVEN"),
    "requantization": ("float_product", "fixed_point", "power_of_two"),
    "smooth_alpha": (None, None, 0.5, 0.75),
    "weight_rounding": ("nearest", "corrected", "sequential"),
    "nbit_weight": (8, 8, 8, 4, 6),
    "partition_conversions": ("fully_integral", "fully_integral", "enabled", "disabled"),
}
"""Fields of QConfig that are drawn, independently, and their values."""


def configurations(count: int) -> list[dict[str, Any]]:
    """Changes to the recommended configuration; the first are none, the others are drawn."""
    rng = np.random.default_rng(SEED)
    drawn = [
        {name: values[int(rng.integers(len(values)))] for name, values in CHOICES.items()}
        for _ in range(count - 1)
    ]
    return [{}, *drawn][:count]


def images(data: Path, model: str, split: str, count: int) -> tuple[Any, Any]:
    """Inputs as the model takes them, float32 (N, C, H, W), and labels (N,)."""
    spec = importlib.util.spec_from_file_location("shared_data_load", data / "load.py")
    assert spec is not None
    assert spec.loader is not None
    reader = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reader)
    if model.startswith("efficientnet"):
        raw, labels = reader.load_imagenet(f"imagenet_{split}.npz", limit=count)
    elif model.startswith("fashion"):
        raw, labels = reader.load_fashion(split, count)
    else:
        raw, labels = reader.load_digits(split, count)
    return reader.preprocess(raw, model), labels


def emitted(model: Path, calib: Any, changes: Mapping[str, Any], work: Path) -> dict[str, str]:
    """Hash, or name of the error, of every form of one configuration."""
    try:
        made = qsearch.quantize(model, {"input": calib}, changes, dim={"N": 1})
    except (CompilerError, ValueError) as error:
        return {"text": f"refused: {type(error).__name__}"}
    found = {
        "text": sha256(compiler.text(made.module, show_spans=False).encode()),
        "structure": str(compiler.structural_hash(made.module)),
    }
    path = work / "m.qmod"
    made.save(path)
    for form in ("onnx", "c"):
        try:
            written = qsearch_export(path, form, work / form)
        except CompilerError as error:
            found[form] = f"refused: {type(error).__name__}"
            continue
        digest = hashlib.sha256()
        for file in sorted(written):
            content = file.read_bytes()
            digest.update(file.name.encode() + b"\0")
            digest.update(without_metadata(content) if file.suffix == ".onnx" else content)
        found[form] = digest.hexdigest()
    return found


def qsearch_export(path: Path, form: str, folder: Path) -> list[Path]:
    """The files that ``qsearch export`` writes."""
    return list(export(path, form, folder, name="m").files)


def without_metadata(content: bytes) -> bytes:
    """A serialized ONNX model without what describes it."""
    model = onnx.load_model_from_string(content)
    for field in ("metadata_props", "doc_string", "producer_name", "producer_version"):
        model.ClearField(field)
    parts = [model.graph, *model.graph.node, *model.graph.initializer, *model.graph.value_info]
    for part in parts:
        for field in ("metadata_props", "doc_string"):
            with contextlib.suppress(ValueError):
                part.ClearField(field)
    return bytes(model.SerializeToString(deterministic=True))


def study_rows(data: Path, model: str, work: Path) -> list[dict[str, Any]]:
    """Parameters, state, scores and hash of outputs of every trial of one search."""
    calib, _ = images(data, model, "calib", STUDY_IMAGES)
    inputs, labels = images(data, model, "dev", STUDY_IMAGES)
    folder = work / f"study_{model}"
    qsearch.launch(
        data / f"{model}.onnx",
        calib={"input": calib},
        eval={"input": inputs, "labels": labels},
        trials=TRIALS,
        seed=SEED,
        pool="inline",
        out=folder,
    )
    command = [sys.executable, "-m", "qsearch", "trials", str(folder), "--format", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return [{name: value for name, value in row.items() if is_result(name)} for row in rows]


def is_result(column: str) -> bool:
    """False for the columns of ``qsearch trials`` that a clock, a machine or a wording decides."""
    others = ("error", "stage", "cpu_s", "_at", "seconds", "rss_bytes", "driver", "attempts")
    return not column.endswith(others)


def sha256(content: bytes) -> str:
    """In hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def same_structure(before: Any, after: Any) -> int:
    """Give modules of one structure one text; how many had two."""
    count = 0
    for model, rows in after.items():
        for one, other in zip(before[model], rows):
            structure = one.get("structure")
            if structure is not None and structure == other.get("structure"):
                count += one["text"] != other["text"]
                one["text"] = other["text"]
    return count


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """A line for every leaf of two JSON values that differs."""
    pending = [(where, before, after)]
    while pending:
        at, one, other = pending.pop(0)
        if isinstance(one, dict) and isinstance(other, dict):
            names = sorted({*one, *other})
            pending += [(f"{at}/{n}", one.get(n, "absent"), other.get(n, "absent")) for n in names]
        elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            pending += [(f"{at}/{i}", a, b) for i, (a, b) in enumerate(zip(one, other))]
        elif one != other:
            yield f"{at}: {_short(one)} → {_short(other)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def print_differences(lines: Sequence[str], against: Path) -> int:
    """Print what differs from a recorded file; returns the exit code, 1 where something does."""
    for line in lines:
        print(f"differs: {line}")
    print(f"{len(lines)} differences from {against}")
    return 1 if lines else 0


def main(argv: list[str] | None = None) -> int:
    """Measure, write, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=MODELS, choices=MODELS)
    parser.add_argument("--configurations", type=int, default=12)
    parser.add_argument("--no-studies", action="store_true")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, help="where the hashes are written")
    parser.add_argument("--against", type=Path, help="hashes of another version")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"emitted": {}, "studies": {}}
    with tempfile.TemporaryDirectory(prefix="bench-bits-") as folder:
        work = Path(folder)
        for model in args.models:
            begin = time.process_time()
            calib, _ = images(args.data, model, "calib", CALIBRATION_IMAGES.get(model, 16))
            found["emitted"][model] = [
                {"changes": changes} | emitted(args.data / f"{model}.onnx", calib, changes, work)
                for changes in configurations(args.configurations)
            ]
            refused = sum(len(one) == 2 for one in found["emitted"][model])
            spent = time.process_time() - begin
            print(f"{model}: {args.configurations} configurations, {refused} of them refused, "
                  f"{spent:.0f} CPU s", flush=True)  # fmt: skip
        for model in () if args.no_studies else STUDIES:
            begin = time.process_time()
            found["studies"][model] = study_rows(args.data, model, work)
            spent = time.process_time() - begin
            rows = len(found["studies"][model])
            print(f"study of {model}: {rows} trials, {spent:.0f} CPU s", flush=True)
    print(f"sha256 of all: {sha256(json.dumps(found, sort_keys=True).encode())}")
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if args.against is None:
        return 0
    before = json.loads(args.against.read_text(encoding="utf-8"))
    kept = {
        "emitted": {m: before["emitted"].get(m, "absent") for m in found["emitted"]},
        "studies": {m: before["studies"].get(m, "absent") for m in found["studies"]},
    }
    printed = same_structure(kept["emitted"], found["emitted"])
    lines = list(differences(kept, json.loads(json.dumps(found))))
    if printed:
        print(f"{printed} modules of the same structure are printed in another way")
    return print_differences(lines, args.against)


if __name__ == "__main__":
    sys.exit(main())
