"""EfficientNet-Lite0 from an image folder: integers inside, and the file keeps the score."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qsearch
from compiler.ir.analysis import post_order
from compiler.ir.ty import is_float, tensor_fields

pytestmark = [pytest.mark.shared, pytest.mark.slow]

PREPROCESS = """\
resize: 224
crop: 224
channel_order: RGB
layout: NCHW
mean: [127, 127, 127]
std: [128, 128, 128]
"""


def image_folder(packed: Path, folder: Path, count: int) -> Path:
    """The first ``count`` JPEG streams of an imagenet_*.npz as class folders."""
    with np.load(packed) as data:
        blob, offsets, labels = data["jpeg_224"], data["offsets_224"], data["labels"]
    for i in range(count):
        home = folder / str(labels[i])
        home.mkdir(parents=True, exist_ok=True)
        stream = blob[offsets[i] : offsets[i + 1]].tobytes()
        (home / f"{i:04d}.jpg").write_bytes(stream)
    return folder


def test_an_image_folder_search_ends_in_integers_that_keep_their_score(
    shared_data: Path, tmp_path: Path
) -> None:
    calib = image_folder(shared_data / "imagenet_calib.npz", tmp_path / "calib", 16)
    dev = image_folder(shared_data / "imagenet_dev.npz", tmp_path / "dev", 40)
    (tmp_path / "pre.yaml").write_text(PREPROCESS)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "qsearch", "launch"),
            *("--model", str(shared_data / "efficientnet_lite0.onnx")),
            *("--calib", str(calib), "--eval", str(dev)),
            *("--preprocess", str(tmp_path / "pre.yaml"), "--max-drop", "0.15"),
            *("--trials", "2", "--pool", "process", "--json", "-o", str(tmp_path / "run")),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout.splitlines()[-1])
    assert summary["trials"]["complete"] + summary["trials"]["pruned"] == 2
    assert summary["best"]["agreement"] >= 0.85
    # The evaluator computes the shipped integers, so nothing may change between score and file.
    assert summary["emitted"]["equal_outputs"] == 1.0
    assert summary["emitted"]["top1"] == summary["best"]["top1"]
    module = qsearch.load(tmp_path / "run" / "best.qmod").module
    core = [node.checked_type_or_none for node in post_order(module["quantized_main"].body)]
    dtypes = {t.dtype for ty in core if ty is not None for t in tensor_fields(ty)}
    assert "int8" in dtypes
    assert not any(map(is_float, dtypes))
